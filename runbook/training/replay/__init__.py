"""Silent data corruption: parts of a step are computed again, and everything computed is compared."""

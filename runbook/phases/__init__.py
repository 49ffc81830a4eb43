"""What the notebooks call: a package for each phase, and what the phases share."""

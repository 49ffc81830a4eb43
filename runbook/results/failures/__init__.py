"""Known failures in training runs: which log lines show them, what these mean, and remedies."""

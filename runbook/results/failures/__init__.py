"""Known failures of a training run: the log lines that show them, their meaning, and remedies."""

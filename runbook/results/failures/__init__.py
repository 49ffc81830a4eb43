"""Known failures of a training run: the lines that show them, what they mean, and what to do."""

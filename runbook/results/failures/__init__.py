"""Known failures of a training: the lines that show them, what they mean, and what to do."""

"""Reads the training logs of any program into records of the same type."""

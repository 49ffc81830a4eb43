"""Training logs of any program, read into one kind of record."""

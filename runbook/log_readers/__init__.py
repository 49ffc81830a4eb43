"""Read the training logs of all supported programs into one kind of record."""

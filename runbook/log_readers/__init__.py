"""Training logs of any of the programs we know, read into one kind of record."""

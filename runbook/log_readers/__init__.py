"""Reads training logs of any program into one kind of record."""

"""Reads training logs from any program into records of the same type."""

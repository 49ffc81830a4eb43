"""Detects silent data corruption: recomputes parts of a step and compares the results."""

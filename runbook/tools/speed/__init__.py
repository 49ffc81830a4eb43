"""Speeds of other programs and of our own: predict them from a table, explain them from a log."""

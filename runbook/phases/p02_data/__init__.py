"""Notebook 02-data."""

"""The phase of notebook 02-data."""

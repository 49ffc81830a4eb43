"""Phase behind notebook 02-data."""

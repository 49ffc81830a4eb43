"""Phase behind notebook 05-analysis."""

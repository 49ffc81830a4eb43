"""Phase behind notebook 00-plan."""

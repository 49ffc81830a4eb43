"""Phase behind notebook 06-evaluation."""

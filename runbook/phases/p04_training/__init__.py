"""Phase behind notebook 04-training."""

"""Phase behind notebook 03-smoke-test."""

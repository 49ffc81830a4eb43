"""The phase of notebook 04-training."""

"""Notebook 04-training."""

"""Notebook 06-evaluation."""

"""Notebook 00-plan."""

"""Notebook 05-analysis."""

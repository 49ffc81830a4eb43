"""Notebook 03-smoke-test."""

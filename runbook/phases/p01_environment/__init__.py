"""Notebook 01-environment, and `runbook doctor`."""

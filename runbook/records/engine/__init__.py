"""Notebooks executed by papermill, so that a stop is recorded as one."""

"""Executes notebooks with papermill, and records why a notebook stopped."""

"""Execution of notebooks with papermill, which records why a notebook stopped."""

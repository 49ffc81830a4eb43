"""Measurements of this project: `python -m benchmarks.NAME`."""

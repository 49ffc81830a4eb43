"""Benchmarks for this project: `python -m benchmarks.NAME`."""

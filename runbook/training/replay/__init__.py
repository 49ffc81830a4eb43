"""Detects silent data corruption by recomputing parts of a step and comparing the results."""

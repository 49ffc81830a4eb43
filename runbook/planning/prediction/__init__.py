"""Trainings that were not run: rows of a table, layouts of a search, one change to a plan."""

"""Folder on the PYTHONPATH of another project's training program that runs without a GPU."""

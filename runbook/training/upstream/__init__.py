"""Folder for another project's PYTHONPATH, so that its training program runs without a GPU."""

"""A folder to add to PYTHONPATH, so that another project's training program runs without a GPU."""

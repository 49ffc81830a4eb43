"""A folder for PYTHONPATH with which another project's training program runs without a GPU."""

"""A folder for PYTHONPATH that lets another project's training program run without a GPU."""

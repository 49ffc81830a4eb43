"""A folder for PYTHONPATH that lets a training program from another project run without a GPU."""

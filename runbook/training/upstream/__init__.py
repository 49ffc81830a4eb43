"""What another project's training program finds on PYTHONPATH when it is started without a GPU."""

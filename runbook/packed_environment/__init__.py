"""Packs the Python environment for jobs into an archive, and copies it to the disk on each node.

Both sides use only the standard library and Python 3.10 syntax, because the side on the node runs
before the environment is available.
"""

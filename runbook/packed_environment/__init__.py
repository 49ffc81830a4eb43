"""Packs the jobs' Python environment into an archive, and copies it to each node's own disk.

Both sides use only the standard library and the syntax of Python 3.10, because the node's side runs
before the environment is available.
"""

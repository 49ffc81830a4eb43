"""The Python environment of the jobs as one archive, and its copy on each node's own disk.

Both sides use only the standard library, in Python 3.10's language, because the node's side runs
before the environment is there.
"""

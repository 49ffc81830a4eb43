"""Someone's own job script, run in a sandbox, as a run file.

What could not be carried over, and its known errors.
"""

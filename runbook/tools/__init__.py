"""Tools that a run does not need.

Each has its own folder and command, and none imports another.
"""

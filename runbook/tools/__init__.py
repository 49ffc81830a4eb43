"""Tools that a run does not need; none imports another.

Each has its own folder; its command is in `cli`.
"""

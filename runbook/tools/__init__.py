"""Tools that a run does not need. No tool imports another.

Each tool has its own folder; its command is in `cli`.
"""

"""The file `plan.json`: its types, its reader, and the rules that planner and trainer share.

The package uses only the standard library.
"""

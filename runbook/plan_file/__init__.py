"""The file `plan.json`: its types, its reader, and the rules that planner and trainer share.

It uses only the standard library.
"""

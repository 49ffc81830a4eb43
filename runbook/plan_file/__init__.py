"""The file `plan.json`: its types, its reader, and the rules shared by planner and trainer.

The package uses only the standard library.
"""

"""Defines and reads `plan.json`, and has the rules shared by planner and trainer.

The package uses only the standard library.
"""

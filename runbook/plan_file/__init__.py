"""The file plan.json: its types, its reader, and the identity of a training.

The formulas that the planner and the trainer share are here too.
"""

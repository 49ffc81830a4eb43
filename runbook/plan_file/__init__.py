"""The file plan.json.

This package has its types, its reader, the identity of a training, and the formulas that the
planner and the trainer share.
"""

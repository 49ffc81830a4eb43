"""Drills: deliberate faults in a small training run on the local machine.

Each drill breaks something and checks how the training ends.
"""

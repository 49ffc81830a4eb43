"""Drills: deliberate faults in a small training on this machine.

Each drill breaks one thing and checks how the training ends.
"""

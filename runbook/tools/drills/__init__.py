"""Faults on purpose, in a small training on this machine.

Each drill breaks one thing and judges how the training ends.
"""

"""Rehearse the trainer at full size without the machines.

One rank of a job runs on fake tensors, and its allocations, operators and messages are counted.
"""

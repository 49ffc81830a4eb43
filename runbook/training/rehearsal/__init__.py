"""Rehearses the trainer at full size without the job's machines.

A rank of a job runs on fake tensors, and its allocations, operators and messages are counted.
"""

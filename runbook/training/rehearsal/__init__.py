"""Rehearses the trainer at full size without the machines for the job.

A rank in a job runs on fake tensors, and allocations, operators and messages are counted.
"""

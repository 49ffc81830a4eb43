"""Checks that a job runs on each node before training can start.

The checks need only the standard library, and run before anything imports torch.
"""

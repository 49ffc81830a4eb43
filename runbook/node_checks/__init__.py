"""Checks of a job's node.

They need only the standard library, and run before anything imports torch.
"""

"""What a node of a job has.

A program of the standard library asks, before anything imports torch.
"""

"""Checks that a job runs on each of its nodes before it trains.

The checks need only the standard library, and run before anything imports torch.
"""

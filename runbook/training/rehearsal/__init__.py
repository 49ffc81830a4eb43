"""Rehearse the full-size trainer without the machines.

One rank of a job runs on fake tensors, and everything it does is counted.
"""

"""Decides what follows a job that has ended: start again, continue with fewer nodes, or stop.

It uses only the standard library, so that the job itself can make the decision.
"""

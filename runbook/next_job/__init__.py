"""Decides whether a job that has ended is restarted, continued with fewer nodes, or given up.

It uses only the standard library, so that the job itself can make the decision.
"""

"""Submits a phase's jobs, watches them, and decides about restarts."""

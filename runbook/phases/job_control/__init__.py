"""Submits jobs for a phase, watches them, and decides about restarts."""

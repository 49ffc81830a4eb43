"""Represents a run on disk: its folder, files and status, and the machine on which it runs."""

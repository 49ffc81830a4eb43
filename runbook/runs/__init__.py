"""Represents a run on disk: its folder, files and status, and the machine that it runs on."""

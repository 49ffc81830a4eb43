"""Checkpoints: saved, found, checked, loaded, exported."""

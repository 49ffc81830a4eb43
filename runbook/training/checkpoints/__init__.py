"""Saving, finding, verifying, loading and exporting checkpoints."""

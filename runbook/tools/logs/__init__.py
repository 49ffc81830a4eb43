"""The tool logs."""

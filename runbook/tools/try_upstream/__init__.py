"""The tool try_upstream."""

"""The tool redact."""

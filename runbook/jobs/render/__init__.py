"""Renders the text that is sent to a machine: job scripts and training arguments."""

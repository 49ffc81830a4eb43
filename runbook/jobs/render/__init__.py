"""Renders the text sent to a machine: job scripts and training arguments."""

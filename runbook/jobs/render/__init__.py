"""Text that is sent to a machine: job scripts and training arguments."""

"""Every key of a run file, with its type, default and meaning."""

"""Every key in a run file, with its type, default and meaning."""

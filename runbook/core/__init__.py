"""Base modules of all packages: errors, units, tables, files, locks, processes, subprocesses."""

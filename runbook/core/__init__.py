"""Base modules for all packages: errors, units, tables, files, locks, processes, subprocesses."""

"""The base of other packages: errors, units, tables, files, locks, processes, other programs."""

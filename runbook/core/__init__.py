"""The base of every other package: errors, units, the shell, whole files, locks, processes."""

"""What every other package stands on: errors, units, the shell, files written whole, locks, processes."""

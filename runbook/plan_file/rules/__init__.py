"""Rules that the planner and the trainer share. Each has a code, whose text is in `codes`."""

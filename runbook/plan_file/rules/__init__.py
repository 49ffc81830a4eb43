"""Rules that the planner and the trainer share. Each rule has a code, whose text is in `codes`."""

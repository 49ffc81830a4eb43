"""Rules that planner and trainer share. Each has a code, whose text is in `codes`."""

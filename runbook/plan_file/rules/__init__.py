"""Rules the planner and the trainer share. Each has a code; the text for it is in `codes`."""

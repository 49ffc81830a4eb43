"""Rules that planner and trainer share, each with a code; `codes` has their text."""

"""The phases of a run: a package per notebook, and what they share."""

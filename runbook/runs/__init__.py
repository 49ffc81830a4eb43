"""One run on disk: its folder, its files, its status, and what its machine has."""

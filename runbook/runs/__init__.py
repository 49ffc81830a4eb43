"""One run on disk: its folder, files, status and machine."""

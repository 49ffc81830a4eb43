"""Text to token files in one resumable pass: shards, workers, done-marks."""

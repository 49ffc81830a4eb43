"""Turns text into token files in one resumable pass, with shards, workers and done markers."""

"""Reads text from its sources: downloads, buckets, compressed files and documents."""

"""Sources of text: downloads, buckets, compressed files, documents."""

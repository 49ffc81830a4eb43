"""Where text comes from: downloads, buckets, compressed files, documents."""

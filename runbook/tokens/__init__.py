"""Text to verified .bin/.idx: sources, the fused pipeline, indexed files."""

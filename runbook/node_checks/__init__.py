"""What a node of a job has: asked by a program of the standard library, before anything imports torch."""

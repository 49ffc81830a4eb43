"""Signs of life, hangs, stops, bad steps, and faults on purpose."""

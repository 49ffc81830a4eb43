"""What a training costs: parameters and FLOPs to memory, seconds, bytes and money."""

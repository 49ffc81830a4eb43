"""The trainer's own layers, loss and gradient norm, which replace those of megatron-core."""

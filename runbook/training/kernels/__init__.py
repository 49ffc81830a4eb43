"""Our own layers, loss and gradient norm, which replace those in megatron-core."""

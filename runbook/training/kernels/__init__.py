"""Our own layers, loss and gradient norm, used in place of the megatron-core ones."""

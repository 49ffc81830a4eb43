"""The trainer's own layers, loss and gradient norm, which replace megatron-core's."""

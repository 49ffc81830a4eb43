"""Computing that the trainer does itself, in place of megatron-core's: layers, loss, gradient norm."""

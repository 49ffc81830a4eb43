"""Computing that the trainer does itself, in place of megatron-core's.

Layers, loss, gradient norm.
"""

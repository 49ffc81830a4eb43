"""Computations of the trainer itself that replace megatron-core's.

They cover layers, loss and gradient norm.
"""

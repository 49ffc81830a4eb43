"""Computations of the trainer that replace megatron-core's.

They cover layers, loss and gradient norm.
"""

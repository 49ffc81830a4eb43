"""Costs of a training: parameters, FLOPs, memory, seconds, bytes and money."""

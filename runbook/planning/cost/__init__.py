"""Costs of a training run: parameters, FLOPs, memory, seconds, bytes and money."""

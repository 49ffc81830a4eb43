"""Stages in the GPU benchmark (`python -m benchmarks.gpu`): one module per kind of measurement."""

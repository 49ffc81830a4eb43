"""Engines: megatron-core and DeepSpeed behind one interface."""

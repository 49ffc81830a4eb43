"""Configurations for torchtitan, nanotron, GPT-NeoX, NeMo 2 and Megatron Bridge."""

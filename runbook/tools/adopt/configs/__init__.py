"""Configurations of other training programs: torchtitan, nanotron, GPT-NeoX, NeMo 2, Megatron Bridge."""

"""Defaults for using a checkpoint without training: to sample text and to export weights.

The command line, the notebooks and the trainer share them.
"""

TEMPERATURE = 0.7
"""The logits are divided by this before a token is sampled; 0 selects the most likely token."""
HIGHEST_TEMPERATURE = 10.0
LIKELIEST_TOKENS = 40
"""A token is sampled from this many of the most likely tokens, unless `top_p` is set."""
TOKENS = 40
"""Number of tokens to sample after a prompt."""
MOST_TOKENS = 10_000
SEED = 1234
"""Seed for sampling. The same seed gives the same text."""
SHARD_BYTES = 5 * 10**9
"""Largest size for each file with exported weights."""

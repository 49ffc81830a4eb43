"""Defaults of work with a checkpoint without a training: texts that are drawn, weights that are exported.

The command line, the notebooks and the trainer use the same ones.
"""

TEMPERATURE = 0.7
"""Divides the scores of the tokens before one is drawn; 0 takes the likeliest."""
HIGHEST_TEMPERATURE = 10.0
LIKELIEST_TOKENS = 40
"""A token is drawn from this many likeliest ones, unless `top_p` says otherwise."""
TOKENS = 40
"""Tokens drawn after a prompt."""
MOST_TOKENS = 10_000
SEED = 1234
"""Seed of the draw; the same seed gives the same text."""
SHARD_BYTES = 5 * 10**9
"""Largest size of one file of exported weights."""

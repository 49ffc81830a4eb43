"""The request to `python -m runbook.training.offline`, passed as JSON on standard input."""

from __future__ import annotations

from dataclasses import dataclass

from runbook.plan_file.offline_defaults import SHARD_BYTES, TEMPERATURE


@dataclass(frozen=True)
class OfflineRequest:
    """A request to `offline`. Each command reads only the keys it needs."""

    # Checkpoint iteration, or 0 for the newest complete one
    iteration: int = 0
    prompts: tuple[tuple[int, ...], ...] = ()
    # Largest number of tokens to draw after each prompt
    tokens: int = 0
    # At temperature 0, the most likely token is always taken
    temperature: float = TEMPERATURE
    top_p: float = 0.0
    """Total probability of the most likely tokens to draw from; 0 means the 40 most likely."""
    # If False, all tokens are recomputed for each new token
    cache: bool = True
    # Seed for drawing; None means the seed in the plan
    seed: int | None = None
    # Tokens that end a text, in addition to the end-of-document token
    stops: tuple[int, ...] = ()
    # Whether to compute in float32 with the float32 weights in the optimizer, as `score` does
    exact: bool = False
    out: str = ""  # Folder to export to
    # Largest size of a weight file, in bytes
    shard_bytes: int = SHARD_BYTES
    source: str = ""  # Folder to import from
    # Which weights to score: `trained`, `first`
    weights: tuple[str, ...] = ("trained",)
    # Pairs (context, continuation)
    pairs: tuple[tuple[list[int], list[int]], ...] = ()

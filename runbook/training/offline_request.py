"""What `python -m runbook.training.offline` is asked for, as JSON on its standard input."""

from __future__ import annotations

from dataclasses import dataclass

from runbook.plan_file.offline_defaults import SHARD_BYTES, TEMPERATURE


@dataclass(frozen=True)
class OfflineRequest:
    """What is asked for; each command reads its own keys."""

    # Of the checkpoint; 0: the newest whole one
    iteration: int = 0
    prompts: tuple[tuple[int, ...], ...] = ()
    # How many to draw at most after each
    tokens: int = 0
    # 0 takes the likeliest token each time
    temperature: float = TEMPERATURE
    top_p: float = 0.0
    """Draw from the likeliest tokens with this share of the probability; 0: the 40 likeliest."""
    # False computes the whole text again for each token
    cache: bool = True
    # Of the draw; None: the plan's
    seed: int | None = None
    # Tokens after which nothing is drawn, in addition to the end of a document
    stops: tuple[int, ...] = ()
    # In float32, with the optimizer's float32 weights, as `score` does
    exact: bool = False
    out: str = ""  # folder to export to
    # The most that a file of weights has
    shard_bytes: int = SHARD_BYTES
    source: str = ""  # folder to import from
    # Which to score: `trained`, `first`
    weights: tuple[str, ...] = ("trained",)
    # Contexts, and how each continues
    pairs: tuple[tuple[list[int], list[int]], ...] = ()

"""Floating-point operations in a training step, in each convention used to report TFLOP/s.

For the same speed, the conventions differ by up to a third. So every TFLOP/s value names its
convention, and reports are best compared by tokens per second.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from runbook.plan_file.schema import FLOPS_CONVENTION, ModelShape
from runbook.planning.sizes import whole


@dataclass(frozen=True)
class Convention:
    """A way to count operations.

    `hardware` includes the recomputed forward pass; `model` counts only the operations the model
    needs.
    """

    kind: str
    formula: str
    per_sequence: Callable[[ModelShape], float]


def megatron_deepspeed(shape: ModelShape, *, factor: int) -> float:
    """Return the FLOPs as counted by Megatron-DeepSpeed's `throughput_calculator`.

    `factor` is 4 with recomputation and 3 without. The formula undercounts the output layer by a
    quarter.
    """
    s = shape.sequence_length
    h = shape.hidden
    v = shape.padded_vocabulary
    layers = shape.layers
    return 24 * factor * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))


def palm(
    shape: ModelShape,
    *,
    passes: int = 3,
    scores: bool = True,
    embeddings: bool = True,
) -> float:
    """Return the FLOPs as counted in the PaLM paper, appendix B.

    Each pass has 2 operations per parameter and token, plus attention over all pairs (`scores`).

    Three passes add up to 6 N + 12 l h s per token; a fourth pass stands for the repeated forward
    pass. Without `embeddings`, only the output layer is counted, whether it is tied or not.
    """
    parts = whole(shape)
    output_only = parts.layers + parts.final_norm + shape.padded_vocabulary * shape.hidden
    if scores:
        attention = 4 * shape.layers * shape.heads * shape.head_size * shape.sequence_length
    else:
        attention = 0

    return float(
        passes
        * shape.sequence_length
        * (2 * (parts.total if embeddings else output_only) + attention)
    )


_FULL = ModelShape.flops_per_sequence
_CAUSAL = partial(ModelShape.flops_per_sequence, attended=0.5)
"""Counts only the attention scores below the diagonal, which are half of them."""
_FACTOR_3 = partial(megatron_deepspeed, factor=3)
_FACTOR_4 = partial(megatron_deepspeed, factor=4)

CONVENTIONS = {
    # arXiv 2104.04473, equation 3: the forward pass counted twice, for full recomputation
    "narayanan-2021": Convention("hardware", "96 B s l h^2 (1 + s/6h + V/16lh)", _FACTOR_4),
    "megatron-deepspeed-f4": Convention(
        "hardware", "24 x 4 B s l h^2 (1 + s/6h + V/16lh)", _FACTOR_4
    ),
    "megatron-deepspeed-f3": Convention("model", "24 x 3 B s l h^2 (1 + s/6h + V/16lh)", _FACTOR_3),
    # Megatron-LM core 0.5 to 0.11 counts attention scores for all pairs of tokens; since March 2025
    # (0.12) it counts half of them
    "megatron-full": Convention("model", "72 B s l h^2 (1 + s/6h + V/12lh)", _FULL),
    "megatron-causal": Convention("model", "72 B s l h^2 (1 + s/12h + V/12lh)", _CAUSAL),
    "nemo-25.07": Convention("model", "as megatron-full, with grouped queries and SwiGLU", _FULL),
    "nemo-25.09": Convention(
        "model", "as megatron-causal, with grouped queries and SwiGLU", _CAUSAL
    ),
    "palm": Convention("model", "6 N + 12 l h s per token", palm),
    "six-n": Convention("model", "6 N per token", partial(palm, scores=False)),
    "torchtitan": Convention(
        "model", "6 (N - input embeddings) + 12 l h s per token", partial(palm, embeddings=False)
    ),
    "llm-foundry": Convention("model", "6 N + 12 l h s per token", palm),
    "llm-foundry-hardware": Convention(
        "hardware", "8 N + 16 l h s per token", partial(palm, passes=4)
    ),
}
"""The conventions by name. The formulas are for a plain GPT.

The functions also cover grouped queries, SwiGLU and other feed-forward widths.
"""

OURS = FLOPS_CONVENTION
"""The convention used by our trainer and our plans."""


def flops(shape: ModelShape, sequences: float, convention: str = OURS) -> float:
    """Return how many operations a step with this many sequences takes.

    Raise `KeyError` for a convention that is not in `CONVENTIONS`.
    """
    return sequences * CONVENTIONS[convention].per_sequence(shape)


def tflops_per_device(
    shape: ModelShape,
    sequences_per_second: float,
    devices: int,
    convention: str = OURS,
) -> float:
    """Return the TFLOP/s per device at this speed, in the named convention."""
    return flops(shape, sequences_per_second, convention) / devices / 1e12

"""Floating-point operations of a training step, in each convention people report TFLOP/s in.

The conventions differ by up to a third for the same speed, so every TFLOP/s names its own; what is comparable
between two reports is tokens per second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runbook.plan.sizes import Shape, whole


@dataclass(frozen=True)
class Convention:
    """A named way to count; `hardware` counts the recomputed forward pass too, `model` only what the model needs."""

    name: str
    kind: str
    causal: bool
    formula: str
    per_sequence: Callable[[Shape], float]


def narayanan_2021(shape: Shape) -> float:
    """Arxiv 2104.04473, equation 3: the forward pass counted twice, for full recomputation."""
    return megatron_deepspeed(shape, factor=4)


def megatron_deepspeed(shape: Shape, *, factor: int) -> float:
    """`throughput_calculator` of Megatron-DeepSpeed: factor 4 where it thinks activations are recomputed, else 3.

    With factor 3 the output layer is counted a quarter too low.
    """
    s, h, v, layers = shape.sequence_length, shape.hidden, shape.padded_vocabulary, shape.layers
    return 24 * factor * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))


def megatron_full(shape: Shape) -> float:
    """Megatron-LM core 0.5 to 0.11, and NeMo to 25.07: attention scores counted for all pairs of tokens."""
    return _megatron(shape, attended=1.0)


def megatron_causal(shape: Shape) -> float:
    """Megatron-LM since March 2025 (core 0.12), and NeMo from 25.09: only the half of the scores below the diagonal."""
    return _megatron(shape, attended=0.5)


def palm(shape: Shape) -> float:
    """PaLM, appendix B: 6 for each parameter and token, embeddings included, plus attention over all pairs."""
    return float(shape.sequence_length * (6 * whole(shape).total + _attention_per_token(shape)))


def six_n(shape: Shape) -> float:
    """The rule of thumb: 6 for each parameter and token, no attention scores."""
    return float(shape.sequence_length * 6 * whole(shape).total)


def torchtitan(shape: Shape) -> float:
    """Like PaLM, but without the input embeddings; the output layer is kept, tied or not."""
    parts = whole(shape)
    counted = parts.layers + parts.final_norm + shape.padded_vocabulary * shape.hidden
    return float(shape.sequence_length * (6 * counted + _attention_per_token(shape)))


def llm_foundry_hardware(shape: Shape) -> float:
    """llm-foundry's HFU with activation checkpointing: one more forward pass than its MFU."""
    return palm(shape) * 4 / 3


def _megatron(shape: Shape, *, attended: float) -> float:
    s, h, layers = shape.sequence_length, shape.hidden, shape.layers
    width_ratio = shape.heads * shape.head_size / h
    attention = (1 + shape.kv_heads / shape.heads + attended * s / h) * width_ratio
    feed_forward = shape.ffn_hidden / h * (1.5 if shape.gated else 1)
    return 12 * s * layers * h**2 * (attention + feed_forward + shape.padded_vocabulary / (2 * layers * h))


def _attention_per_token(shape: Shape) -> int:
    return 12 * shape.layers * shape.heads * shape.head_size * shape.sequence_length


CONVENTIONS = {
    convention.name: convention
    for convention in (
        Convention("narayanan-2021", "hardware", False, "96 B s l h^2 (1 + s/6h + V/16lh)", narayanan_2021),
        Convention(
            "megatron-deepspeed-f4",
            "hardware",
            False,
            "24 x 4 B s l h^2 (1 + s/6h + V/16lh)",
            lambda shape: megatron_deepspeed(shape, factor=4),
        ),
        Convention(
            "megatron-deepspeed-f3",
            "model",
            False,
            "24 x 3 B s l h^2 (1 + s/6h + V/16lh)",
            lambda shape: megatron_deepspeed(shape, factor=3),
        ),
        Convention("megatron-full", "model", False, "72 B s l h^2 (1 + s/6h + V/12lh)", megatron_full),
        Convention("megatron-causal", "model", True, "72 B s l h^2 (1 + s/12h + V/12lh)", megatron_causal),
        Convention("nemo-25.07", "model", False, "as megatron-full, with grouped queries and SwiGLU", megatron_full),
        Convention("nemo-25.09", "model", True, "as megatron-causal, with grouped queries and SwiGLU", megatron_causal),
        Convention("palm", "model", False, "6 N + 12 l h s a token", palm),
        Convention("six-n", "model", False, "6 N a token", six_n),
        Convention("torchtitan", "model", False, "6 (N - input embeddings) + 12 l h s a token", torchtitan),
        Convention("llm-foundry", "model", False, "6 N + 12 l h s a token", palm),
        Convention("llm-foundry-hardware", "hardware", False, "8 N + 16 l h s a token", llm_foundry_hardware),
    )
}
"""By name. The formulas are those of plain GPT; the functions also know grouped queries, SwiGLU and other widths."""

OURS = "megatron-full"
"""The convention our trainer and our plans report in."""


def flops(shape: Shape, sequences: float, convention: str = OURS) -> float:
    """Operations of one step over this many sequences; `KeyError` for a convention that is not in `CONVENTIONS`."""
    return sequences * CONVENTIONS[convention].per_sequence(shape)


def tflops_per_device(shape: Shape, sequences_per_second: float, devices: int, convention: str = OURS) -> float:
    """TFLOP/s of each device at this speed, in the named convention."""
    return flops(shape, sequences_per_second, convention) / devices / 1e12

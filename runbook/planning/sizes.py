"""Counts the parameters in a GPT by part and rank, and compares the total with the usual label."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import ClassVar

from runbook.core.units import parse_count, show_count
from runbook.params.schema.entries import Model
from runbook.plan_file.schema import ModelShape
from runbook.planning.messages import PlanningMessage

LABEL_TOLERANCE = 0.05
"""Relative difference from the count above which a label is reported as wrong. "13B" for 12.85 B is
not wrong; "375M" for 64.6 M is.
"""


def padded_vocabulary(vocabulary: int, tensor: int, *, own: bool = False) -> int:
    """Return the vocabulary rounded up to a multiple of 128 x tensor, as in Megatron.

    With `own`, round up to a multiple of 128 that `tensor` divides, so that all usual tensor sizes
    lead to the same model. Padded rows contribute to the loss, so with padding as in Megatron, the
    loss depends on the tensor size (by ln(50432 / 50304) = 0.0025).

    >>> [padded_vocabulary(50257, tensor) for tensor in (1, 2, 8)]
    [50304, 50432, 51200]
    >>> [padded_vocabulary(50257, tensor, own=True) for tensor in (1, 8, 3)]
    [50304, 50304, 50304]
    """
    step = math.lcm(128, tensor) if own else 128 * tensor
    return -(-vocabulary // step) * step


def shape_of(
    model: Model,
    *,
    tensor: int = 1,
    sequence_length: int = 0,
    own: bool = False,
) -> ModelShape:
    """Return the shape of a catalogue model, split over `tensor` ranks, with this sequence length.

    If the length is 0, the one in the catalogue is used. With `own`, the vocabulary is padded as in
    our own trainer.
    """
    length = sequence_length or model.sequence_length
    return replace(
        stated_shape(model),
        kv_heads=model.kv_heads or model.heads,
        ffn_hidden=model.ffn_hidden or 4 * model.hidden,
        sequence_length=length,
        positions=model.positions or length,
        padded_vocabulary=padded_vocabulary(model.vocabulary, tensor, own=own),
        rope_base=float(model.rope_base),
    )


def stated_shape(model: Model) -> ModelShape:
    """Return the shape the catalogue states, with 0 for defaults.

    The vocabulary is not padded yet.
    """
    return ModelShape(
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn_hidden=model.ffn_hidden,
        sequence_length=model.sequence_length,
        positions=model.positions,
        vocabulary=model.vocabulary,
        padded_vocabulary=0,
        tied_embeddings=model.tied_embeddings,
        position_embedding=model.position_embedding,
        normalization=model.normalization,
        activation=model.activation,
        biases=model.biases,
        qkv_biases=model.qkv_biases,
        norm_epsilon=model.norm_epsilon,
        rope_base=model.rope_base,
    )


@dataclass(frozen=True)
class Parameters:
    """Parameters by part. `output` is 0 if the output layer is the token embedding itself."""

    COMPUTED: ClassVar = ("total",)

    layers: int
    token_embedding: int
    position_embedding: int
    final_norm: int
    output: int

    @property
    def total(self) -> int:
        """Return the total number of parameters."""
        return (
            self.layers
            + self.token_embedding
            + self.position_embedding
            + self.final_norm
            + self.output
        )


def whole(shape: ModelShape) -> Parameters:
    """Return the parameter counts for the whole model."""
    return on_rank(
        shape,
        tensor=1,
        pipeline=1,
        stage=0,
    )


def on_rank(
    shape: ModelShape,
    *,
    tensor: int,
    pipeline: int,
    stage: int,
    layers: int = 0,
) -> Parameters:
    """Return the number of parameters, by part, on one rank in a pipeline stage.

    `layers` is the number of layers in the stage, since stages may differ. Norms, position
    embeddings and the biases after the second matrix in each block exist on every tensor rank. Tied
    embeddings exist on the first stage and again on the last, where they count as `output`.
    """
    assert 0 <= stage < pipeline, f"stage {stage} of {pipeline}"
    first = stage == 0
    last = stage == pipeline - 1
    embedding = shape.padded_vocabulary * shape.hidden // tensor
    learned = shape.position_embedding == "learned"
    own_output = not shape.tied_embeddings or not first
    return Parameters(
        layers=(layers or shape.layers // pipeline) * layer(shape, tensor=tensor),
        token_embedding=embedding if first else 0,
        position_embedding=shape.positions * shape.hidden if first and learned else 0,
        final_norm=_norm(shape) if last else 0,
        output=embedding if last and own_output else 0,
    )


def layer(shape: ModelShape, *, tensor: int = 1) -> int:
    """Return the number of parameters in a transformer layer on one of `tensor` ranks."""
    attention_width = shape.heads * shape.head_size
    query_key_value = attention_width + 2 * shape.kv_heads * shape.head_size
    feed_forward_in = shape.ffn_hidden * (2 if shape.gated else 1)
    columns = query_key_value + feed_forward_in
    matrices = shape.hidden * (columns + attention_width + shape.ffn_hidden)
    if shape.biases:
        split_biases = columns
    elif shape.qkv_biases:
        split_biases = query_key_value
    else:
        split_biases = 0

    whole_biases = 2 * shape.hidden if shape.biases else 0
    return (matrices + split_biases) // tensor + whole_biases + 2 * _norm(shape)


def _norm(shape: ModelShape) -> int:
    return shape.hidden * (2 if shape.normalization == "layernorm" else 1)


def expected_first_loss(shape: ModelShape) -> float:
    """Return the loss for an untrained model, which considers all tokens equally likely.

    Megatron-LM includes the padded tokens, which adds 0.02.
    """
    return math.log(shape.vocabulary)


def label_count(label: str) -> int | None:
    """Return the number of parameters stated in a label, or None if there is no number in it.

    >>> label_count("375M"), label_count("GPT-3 1.3b"), label_count("tiny")
    (375000000, 1300000000, None)
    """
    match = re.search(r"(?<![\d.])(\d+(?:\.\d+)?)\s?([kKmMbBtT])(?![A-Za-z])", label)
    return parse_count(f"{match[1]}{match[2].upper()}") if match else None


def label_fits(label: str, parameters: int) -> bool:
    """Return whether the label roughly matches this number of parameters, or states no number.

    >>> label_fits("13B", 12_853_626_880), label_fits("375M", 64_633_856)
    (True, False)
    """
    named = label_count(label)
    return named is None or abs(named - parameters) <= LABEL_TOLERANCE * parameters


def label_text(label: str, parameters: int) -> str:
    """Return a text that compares the label with the actual number of parameters.

    >>> label_text("375M", 64_633_856)
    '"375M" is 64.6 M: 64,633,856 parameters by count; the label says 5.8 times as many'
    >>> label_text("175B", 174_615_846_912)
    '"175B" is 175 B: 174,615,846,912 parameters by count'
    """
    text = PlanningMessage.LABEL.fill(
        label=label,
        rounded=show_count(parameters),
        parameters=parameters,
    )
    named = label_count(label)
    if named is None or label_fits(label, parameters):
        return text
    ratio = named / parameters
    if ratio >= 1.1:
        return text + PlanningMessage.LABEL_TOO_LARGE.fill(ratio=ratio)
    return text + PlanningMessage.LABEL_TOO_SMALL.fill(ratio=ratio)

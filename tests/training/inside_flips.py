"""Flips a bit inside a block of a layer, once per step."""

import random
from dataclasses import dataclass

LAYERS = 4
INSIDE = (
    ("forward", "input_layernorm"),
    ("backward", "linear_fc2"),
    ("forward", "linear_qkv"),
    ("backward", "linear_fc1"),
    ("forward", "linear_fc1"),
    ("backward", "linear_qkv"),
    ("forward", "pre_mlp_layernorm"),
    ("backward", "core_attention"),
)
"""Outputs that have no fingerprint if a single rank computes a layer."""
BEFORE_SUMS = (("backward", "linear_fc1"), ("backward", "linear_qkv"))
"""The bit flips that are left out with tensor-parallel ranks.

A bit here flips after the fingerprint is taken, and the following sum hides which rank's bit it
was.
"""
INSIDE_OF_TENSOR_RANKS = tuple(output for output in INSIDE if output not in BEFORE_SUMS)


@dataclass(frozen=True)
class InsideFlip:
    """Return the bit that flips in the first computation of a step."""

    part: str
    module: str
    layer: int
    rank: int
    bit: int
    element: int

    @classmethod
    def of(cls, step, ranks):
        """Draw the flip of a step.

        The lowest bits are left out, because they may change nothing.
        """
        dice = random.Random(step)
        outputs = INSIDE if ranks == 1 else INSIDE_OF_TENSOR_RANKS
        part, module = outputs[step % len(outputs)]
        return cls(
            part=part,
            module=module,
            layer=dice.randrange(1, LAYERS + 1),
            rank=dice.randrange(ranks),
            bit=dice.randrange(14, 31),
            element=dice.randrange(10_000),
        )

"""Bits that flip inside a block of a layer, one in each step."""

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
"""Outputs whose fingerprints are not taken where one rank computes a layer alone."""
BEFORE_SUMS = (("backward", "linear_fc1"), ("backward", "linear_qkv"))
"""Of them, those that are not flipped with tensor-parallel ranks.

A bit flips here after its fingerprint was taken, and the sum that follows hides whose it was.
"""
INSIDE_OF_TENSOR_RANKS = tuple(output for output in INSIDE if output not in BEFORE_SUMS)


@dataclass(frozen=True)
class InsideFlip:
    """The bit that flips in the first computation of a step."""

    part: str
    module: str
    layer: int
    rank: int
    bit: int
    element: int

    @classmethod
    def of(cls, step, ranks):
        """Draw the flip of a step; the lowest bits may change nothing, so they stay."""
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

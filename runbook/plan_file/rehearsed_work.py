"""Work of one rank that a rehearsal counted, by part of the step: the trainer writes it, the planner prices it."""

from dataclasses import dataclass

FORWARD, BACKWARD, ONCE, OPTIMIZER = "forward", "backward", "once", "optimizer"
MATRIX, ATTENTION, MOVED, KERNELS = "matrix_flops", "attention_flops", "moved_bytes", "kernels"


@dataclass(frozen=True)
class Work:
    """What one part of a step computes, moves through the device's memory and sends."""

    part: str
    """`FORWARD` or `BACKWARD`: of one micro-batch; `ONCE`: of a step besides those; `OPTIMIZER`."""
    chunk: int
    """Of the model, where a stage of an interleaved pipeline has several."""
    amounts: dict[str, int]
    """`MATRIX`, `ATTENTION` (of all pairs of tokens), `MOVED` (bytes, by all kernels but attention) and `KERNELS`.

    And bytes of collectives by `group:operation:overlapped` or `:alone`: whether other work goes on meanwhile.
    """

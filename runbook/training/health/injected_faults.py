"""Points in the trainer where a drill can inject a fault into a rank.

They do nothing if the environment variable RUNBOOK_FAULTS is not set.
`runbook/tools/drills/faults.py` describes what this variable can contain, and the effects.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path

from runbook.training.health.heartbeat import FOLDER_VARIABLE

VARIABLE = "RUNBOOK_FAULTS"


class NoFaults:
    """A rank without injected faults."""

    def has(self, kind: str) -> bool:
        """Return whether this rank has an injected fault of this kind."""
        return False

    def step(self, iteration: int) -> None:
        """Called when a step begins."""

    def loss(self, loss: float, iteration: int) -> float:
        """Return the loss the trainer sees for a step."""
        return loss

    def begin_computation(self, iteration: int, number: int) -> None:
        """Called before part of a step is computed.

        `number` is 0 for the first computation and 1, 2 ... for repetitions, or -1 if the
        computation is for another replica.
        """

    def flipped_bit(self, part: str, layer: int) -> tuple[int, int] | None:
        """Return the element and the bit to flip in a tensor, or None to flip nothing.

        The tensor belongs to a part that is computed more than once.
        """
        return None

    def save(self, boundary: str) -> None:
        """Called when a save reaches the boundary between two parts."""


armed = NoFaults()
"""The faults injected into this rank. The trainer sets them as soon as it knows which rank it is.
"""


def faults_from(environment: Mapping[str, str], rank: int) -> NoFaults:
    """Return the faults the environment variable sets for this rank and job folder."""
    faults = NoFaults()
    text = environment.get(VARIABLE, "")
    if text:
        job = Path(environment.get(FOLDER_VARIABLE, "")).name
        faults = importlib.import_module("runbook.tools.drills.faults").faults_from(text, rank, job)

    return faults

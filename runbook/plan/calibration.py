"""What a smoke test measured of a machine, as a factor on the step times of later plans for it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from runbook.errors import PlanError
from runbook.plan import flops
from runbook.plan.choices import Choice
from runbook.plan.layout import Layout

LIKE = 30.0
"""A step of another run is held to be like the measured one where it has at most so many times its operations, or at
least that part of them: a toy model's steps are mostly overhead and say nothing of a large one's."""

FEWEST = 3
"""Steps that give a factor, after the first, which loads and compiles."""


@dataclass(frozen=True)
class Calibration:
    """One smoke test's measured steps against the plain plan of it."""

    factor: float
    measured_seconds: float
    predicted_seconds: float
    steps: int
    machine: str
    """Which machine: its CPU and cores where the jobs run here, else site and device."""
    engine: str
    precision: str
    operations: float
    """Of one step, in our convention."""
    run: str
    measured: str
    """When, as an ISO date."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @property
    def text(self) -> str:
        """The factor and where it is from, for people."""
        return f"times {self.factor:.3g} as measured by the smoke test of {self.run} on {self.measured[:10]}"


def read(content: Mapping[str, Any]) -> Calibration:
    """The calibration that `as_dict` wrote; `PlanError` where it is none."""
    names = {field.name for field in fields(Calibration)}
    try:
        found = Calibration(**{name: content[name] for name in names})
        whole = all(0 < float(value) < math.inf for value in (found.factor, found.predicted_seconds, found.operations))
    except (KeyError, TypeError, ValueError) as error:
        raise PlanError(f"this is no calibration: {error}. Run the smoke test again.") from None
    if not whole:
        raise PlanError(f"a calibration of {found.factor} is no factor. Run the smoke test again.")
    return found


def calibrate(measured_seconds: Sequence[float], predicted_seconds: float, *, skip: int = 1) -> float:
    """What to multiply predicted steps with: the median of measured steps, the first left out, over the prediction.

    >>> calibrate([30.0, 12.0, 11.0, 13.0, 12.0], 10.0)
    1.2
    """
    kept = list(measured_seconds)[skip:]
    if not kept or predicted_seconds <= 0 or any(not 0 < seconds < math.inf for seconds in kept):
        raise PlanError(
            f"{len(measured_seconds)} measured steps and a prediction of {predicted_seconds:g} s give no calibration: "
            f"at least {skip + 1} steps with a time above 0 are needed. Run the smoke test with more iterations."
        )
    return statistics.median(kept) / predicted_seconds


@dataclass(frozen=True)
class Measured:
    """All that smoke tests have measured, and which machine the plan is for."""

    machine: str
    found: tuple[Calibration, ...] = ()

    def holds_for(self, choice: Choice, layout: Layout) -> Calibration | None:
        """The newest of the same machine, engine and number format whose step is like this phase's, or None."""
        operations = flops.flops(choice.shape, layout.global_batch)
        wanted = (self.machine, engine_of(choice), str(choice.training.precision))
        like = [
            one
            for one in self.found
            if (one.machine, one.engine, one.precision) == wanted and 1 / LIKE <= operations / one.operations <= LIKE
        ]
        return max(like, key=lambda one: one.measured, default=None)


def engine_of(choice: Choice) -> str:
    """The program whose steps are timed: our own trainer's engine, or a framework."""
    return str(choice.training.engine if choice.own_trainer else choice.training.framework)

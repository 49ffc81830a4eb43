"""Corrects planned step times with measurements from a smoke test."""

import contextlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.json_records import OMIT_DEFAULT, from_json
from runbook.planning.choice import Choice
from runbook.planning.cost import flops
from runbook.planning.cost.measured_steps import (
    PARTS,
    PLACES,
    Correction,
    MeasuredStep,
    StepProfile,
    correction,
)
from runbook.planning.messages import PlanningMessage

LIKE = 30.0
"""Two steps count as similar if their operation counts differ by at most this factor.

With a toy model, a step is mostly overhead, which says nothing about steps with a large model.
"""

FEWEST = 3
"""A factor is computed from at least this many steps. The first step, which loads and compiles,
does not count.
"""


@dataclass(frozen=True)
class Calibration:
    """The step time measured in a smoke test, compared with the uncorrected plan."""

    factor: float
    measured_seconds: float
    predicted_seconds: float
    steps: int
    machine: str
    """Identifies the machine: by CPU and number of cores if the jobs run here, or else by site and
    device.
    """
    engine: str
    precision: str
    operations: float
    """FLOPs per step, in our convention."""
    run: str
    measured: str
    """When this was measured, as an ISO date."""
    warned: bool = field(default=False, metadata=OMIT_DEFAULT)
    """Whether the smoke test passed only with a warning; if so, it is not used to correct other
    runs.
    """

    profile: StepProfile | None = field(default=None, metadata=OMIT_DEFAULT)
    """How the measured step was planned to spend its time; None on CPUs and unknown devices."""

    def factor_for(self, step: StepProfile | None) -> float:
        """Return the factor for a planned step time.

        It is nearer to 1 than the measured factor if the step spends its time in other ways than
        the measured step.
        """
        found = self._correction(step)
        return found.factor if found else self.factor

    def text(self, step: StepProfile | None) -> str:
        """Return the factor for a planned step time, and its source, as text."""
        found = self._correction(step)
        if found is None:
            return PlanningMessage.CORRECTED_BY_SMOKE_TEST.fill(
                factor=self.factor, run=self.run, measured=self.measured[:10]
            )
        return PlanningMessage.CORRECTED_FOR_LAYOUT.fill(
            factor=found.factor,
            low=found.low,
            high=found.high,
            smoke_test=self.factor,
            run=self.run,
            measured=self.measured[:10],
        )

    def _correction(self, step: StepProfile | None) -> Correction | None:
        if step is None or self.profile is None:
            return None
        return correction(step, [MeasuredStep(self.profile, math.log(self.factor))])


def read_calibration(content: Any) -> Calibration | None:
    """Return the calibration from JSON that `as_json` wrote, or None for any other JSON."""
    with contextlib.suppress(RefusedError):
        calibration = from_json(
            Calibration, content, name="the calibration", failure="this is no calibration:"
        )
        figures = (calibration.factor, calibration.predicted_seconds, calibration.operations)
        is_complete = calibration.profile is None or _is_complete(calibration.profile)
        if is_complete and all(0 < figure < math.inf for figure in figures):
            return calibration

    return None


def _is_complete(profile: StepProfile) -> bool:
    """Return whether a profile that was read has all shares and places."""
    numbers = (*profile.shares, *profile.place)
    lengths = (len(profile.shares), len(profile.place))
    return lengths == (len(PARTS), PLACES) and all(map(math.isfinite, numbers))


def calibrate(measured_seconds: Sequence[float], predicted_seconds: float) -> float | None:
    """Return the factor that corrects predicted step times.

    The factor is the median of the measured step times, without the first, divided by the predicted
    step time.

    Return None if there are too few steps, or if a measured or predicted time is invalid.

    >>> calibrate([30.0, 12.0, 11.0, 13.0, 12.0], 10.0), calibrate([30.0, 12.0, 11.0], 10.0)
    (1.2, None)
    """
    steps = measured_seconds[1:]
    if len(steps) < FEWEST or predicted_seconds <= 0:
        return None
    if not all(0 < seconds < math.inf for seconds in steps):
        return None
    return statistics.median(steps) / predicted_seconds


@dataclass(frozen=True)
class Calibrations:
    """Measurements from all smoke tests, and the machine that the plan is for."""

    machine: str
    found: tuple[Calibration, ...] = ()

    def holds_for(self, choice: Choice) -> Calibration | None:
        """Return the newest measurement for the same machine, engine and number format, or None.

        The measured step must be similar in size to a step in this phase.
        """
        operations = flops.flops(choice.shape, choice.global_batch)
        circumstances = (self.machine, choice.program, choice.training.precision)
        like = [
            calibration
            for calibration in self.found
            if (calibration.machine, calibration.engine, calibration.precision) == circumstances
            and 1 / LIKE <= operations / calibration.operations <= LIKE
        ]
        return max(like, key=lambda calibration: calibration.measured, default=None)

"""Corrects planned step times with measurements from a smoke test."""

import contextlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.json_records import OMIT_DEFAULT, from_json
from runbook.planning.choice import Choice
from runbook.planning.cost import flops
from runbook.planning.cost.measured_steps import (
    CAUSES,
    MOST,
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
    others: tuple["Calibration", ...] = field(default=(), metadata=OMIT_DEFAULT)
    """Earlier measurements under the same circumstances, the newest first."""

    def factor_for(self, step: StepProfile | None) -> float:
        """Return the factor for a planned step time.

        It is nearer to 1 than the measured factors if the step spends its time in other ways than
        the measured steps.
        """
        corrected = self._correction(step)
        return corrected.factor if corrected else self.factor

    def text(self, step: StepProfile | None) -> str:
        """Return the factor for a planned step time, and its source, as text."""
        corrected = self._correction(step)
        if corrected is None:
            return PlanningMessage.CORRECTED_BY_SMOKE_TEST.fill(
                factor=self.factor, run=self.run, measured=self.measured[:10]
            )
        return PlanningMessage.CORRECTED_FOR_LAYOUT.fill(
            factor=corrected.factor,
            low=corrected.low,
            high=corrected.high,
            count=corrected.measurements,
            smoke_test=self.factor,
            run=self.run,
            measured=self.measured[:10],
        )

    def _correction(self, step: StepProfile | None) -> Correction | None:
        if step is None or self.step is None:
            return None
        measured = (self.step, *(other.step for other in self.others))
        return correction(step, [one for one in measured if one])

    @property
    def step(self) -> MeasuredStep | None:
        """Return the measured step, if it was planned part by part."""
        if self.profile is None:
            return None
        return MeasuredStep(self.profile, math.log(self.factor))


def read_calibration(content: Any) -> Calibration | None:
    """Return the calibration from JSON that `as_json` wrote, or None for any other JSON."""
    with contextlib.suppress(RefusedError):
        calibration = from_json(
            Calibration, content, name="the calibration", failure="this is no calibration:"
        )
        if all(map(_is_usable, (calibration, *calibration.others))):
            return calibration

    return None


def _is_usable(calibration: Calibration) -> bool:
    """Return whether the figures that were read are positive, and a profile is complete."""
    figures = (calibration.factor, calibration.predicted_seconds, calibration.operations)
    if not all(0 < figure < math.inf for figure in figures):
        return False
    profile = calibration.profile
    if profile is None:
        return True
    numbers = (*profile.shares, *profile.place)
    lengths = (len(profile.shares), len(profile.place))
    return lengths == (len(CAUSES), PLACES) and all(map(math.isfinite, numbers))


def calibrate(measured_seconds: Sequence[float], predicted_seconds: float) -> float | None:
    """Return the factor that corrects predicted step times.

    To get the factor, the median of the measured step times (except the first) is divided by the
    predicted step time.

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
    """Measurements from all smoke tests, and the machine the plan is for."""

    machine: str
    found: tuple[Calibration, ...] = ()

    def holds_for(self, choice: Choice) -> Calibration | None:
        """Return the newest measurement for the same machine, engine and number format, or None.

        The measured step must be similar in size to a step in this phase. If it was planned part by
        part, the newest other such measurements are added as `others`.
        """
        operations = flops.flops(choice.shape, choice.global_batch)
        circumstances = (self.machine, choice.program, choice.training.precision)
        like = [
            calibration
            for calibration in self._all
            if (calibration.machine, calibration.engine, calibration.precision) == circumstances
            and 1 / LIKE <= operations / calibration.operations <= LIKE
        ]
        newest = max(like, key=lambda calibration: calibration.measured, default=None)
        if newest is None or newest.step is None:
            return newest
        others = [one for one in like if one.step and one != newest]
        others.sort(key=lambda calibration: calibration.measured, reverse=True)
        return replace(newest, others=tuple(others[: MOST - 1]))

    @property
    def _all(self) -> tuple[Calibration, ...]:
        """Return each measurement once, also those that a plan stores as `others`."""
        every = [one for found in self.found for one in (found, *found.others)]
        return tuple(dict.fromkeys(replace(one, others=()) for one in every))

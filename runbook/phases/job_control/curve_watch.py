"""Forecasts the final loss, and notes when the forecast leaves the sealed interval."""

from __future__ import annotations

from runbook.core.files import read_lines
from runbook.plan_file.phase_names import FULL
from runbook.results.expected_loss import LEFT_EVENT, ExpectedLoss, expected_losses
from runbook.runs.planned_run import PlannedTraining


class CurveWatch:
    """Forecasts the loss again at each evaluation during training, and at no other time."""

    def __init__(self, training: PlannedTraining) -> None:
        self._training = training
        self._evaluations = training.folder / training.phase_plan.log.validation
        self._size = 0
        self._newest: ExpectedLoss | None = None

    def look(self) -> str | None:
        """Return the expected final loss.

        Return None for a smoke test, or for a curve that is too short.
        """
        if self._evaluations.exists():
            size = self._evaluations.stat().st_size
        else:
            size = 0

        if size != self._size and self._training.phase == FULL:
            self._size = size
            self._read()

        return self._newest.as_text() if self._newest else None

    def _read(self) -> None:
        """Check all evaluations since the last call, so that a late call misses nothing."""
        after = self._newest.iteration if self._newest else 0
        training = self._training
        for expected in expected_losses(training.folder, training.phase_plan, after):
            has_just_left = expected.has_left and not (self._newest and self._newest.has_left)
            self._newest = expected
            if has_just_left:
                self._note(expected)

    def _note(self, expected: ExpectedLoss) -> None:
        """Add the event once per iteration, even if more than one process watches."""
        sealed = expected.sealed
        assert sealed is not None
        events = read_lines(self._training.events_path)
        for event in events:
            if event.get("event") == LEFT_EVENT and event.get("iteration") == expected.iteration:
                return

        self._training.append_event(
            LEFT_EVENT,
            iteration=expected.iteration,
            loss=expected.loss,
            low=expected.low,
            high=expected.high,
            sealed_low=sealed.low,
            sealed_high=sealed.high,
        )

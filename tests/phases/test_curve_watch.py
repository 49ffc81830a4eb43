"""During a training run, the final loss is forecast from the run's own curve. The logbook notes
when this forecast leaves the sealed interval.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from suite.messages import says
from toy_run import open_run

from runbook.phases.job_control.curve_watch import CurveWatch
from runbook.records.logbook import make_entry
from runbook.results.expected_loss import LEFT_EVENT, newest_expected_loss
from runbook.results.forecast_seal import Forecast, SealedForecasts, seal
from runbook.results.messages import ResultMessage


class WatchedRun:
    """A run opened for training. A test writes its evaluations."""

    def __init__(self, runs: Path) -> None:
        self.phase = open_run("04-training", "training.iterations=1000", runs=runs)
        self.plan = self.phase.phase_plan
        self.validation = self.phase.folder / self.plan.log.validation
        self.validation.parent.mkdir(parents=True, exist_ok=True)
        self.watch = CurveWatch(self.phase.training)

    def seal(self, low: float, high: float, *, late: bool = False) -> None:
        loss = Forecast("loss", "nats", (low + high) / 2, low, high, "a test")
        seal(SealedForecasts("toy", "a" * 16, "2026-11-27", late, (loss,)), self.phase.folder)

    def evaluate(self, *shares: float) -> None:
        """Write evaluations on a typical loss curve, after these fractions of the training."""
        with self.validation.open("a") as stream:
            for share in shares:
                iteration = round(share * self.plan.duration.iterations)
                loss = 3.0 + 2.0 * math.exp(-3 * share)
                line = {
                    "iteration": iteration,
                    "loss": loss,
                    "perplexity": math.exp(loss),
                    "samples": 8,
                    "seconds": 0.1,
                }
                stream.write(json.dumps(line) + "\n")

    def notes(self) -> list[dict[str, object]]:
        path = self.phase.folder / self.plan.log.events
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == LEFT_EVENT]


@pytest.fixture
def watched(runs) -> WatchedRun:
    return WatchedRun(runs)


def test_the_forecast_begins_with_three_evaluations_and_a_quarter_of_the_steps(watched):
    assert watched.watch.look() is None
    watched.evaluate(0.05, 0.1, 0.15, 0.2)
    assert watched.watch.look() is None
    watched.evaluate(0.3)
    assert says(watched.watch.look(), ResultMessage.LOSS_BY_CURVE, share=0.3)
    watched.evaluate(0.5)
    assert says(watched.watch.look(), ResultMessage.LOSS_BY_CURVE, share=0.5)
    assert watched.notes() == []


def test_leaving_the_sealed_interval_is_noted_once_with_its_iteration(watched):
    watched.seal(4.5, 4.6)
    watched.evaluate(0.2, 0.4, 0.6, 0.8, 0.9, 1.0)
    text = watched.watch.look()
    assert text.endswith("sealed 4.500 to 4.600: outside")
    (note,) = watched.notes()
    assert note["iteration"] < watched.plan.duration.iterations, "it was to be seen before the end"
    assert note["high"] < note["sealed_low"]
    entry = make_entry(note).text
    assert all(str(note[name])[:5] in entry for name in ("iteration", "sealed_low", "sealed_high"))
    CurveWatch(watched.phase.training).look()
    assert len(watched.notes()) == 1, "another watcher finds it noted"


def test_a_loss_inside_its_seal_or_without_one_is_no_note(watched):
    watched.evaluate(0.3, 0.5, 0.7)
    watched.watch.look()
    watched.seal(1.0, 9.0)
    watched.evaluate(0.9)
    assert says(watched.watch.look(), ResultMessage.SEALED_INTERVAL, low=1.0, high=9.0)
    watched.seal(8.0, 9.0, late=True)
    watched.evaluate(1.0)
    watched.watch.look()
    assert watched.notes() == []


def test_no_evaluation_is_forecast_twice(watched, monkeypatch):
    watched.evaluate(0.3, 0.5, 0.7)
    watched.watch.look()
    monkeypatch.setattr(watched.watch, "_read", lambda: pytest.fail("nothing was evaluated since"))
    assert watched.watch.look()


def test_status_shows_it(watched):
    watched.evaluate(0.3, 0.5, 0.7)
    expected = newest_expected_loss(watched.phase.folder, watched.plan)
    assert expected is not None
    assert expected.as_text() == watched.watch.look()

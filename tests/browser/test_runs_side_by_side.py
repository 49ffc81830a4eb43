"""The page with all runs, opened as a file: two loss curves in one chart, one still growing."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "records"))

from made_run import write_run

from runbook.records.pages.overlay import read_overlay_curve, write_live_curve
from runbook.records.pages.runs_index import write_runs_index

pytestmark = [pytest.mark.browser]


def begin_training(runs: Path) -> Path:
    """Create a run with three steps whose job has just written its heartbeat."""
    run_folder = write_run(runs, "training", state="interrupted", ended="", verdict="unknown")
    job = run_folder / "jobs" / "04-training"
    job.mkdir(parents=True)
    (job / "job.json").write_text("{}")
    (job / "heartbeat").write_text(f"{time.time():.0f} 0 another-machine\n")
    write_steps(run_folder, 3)
    return run_folder


def write_steps(run_folder: Path, number: int) -> None:
    rows = [
        {"iteration": n, "loss": 9 - n / 10, "seconds": 1.0, "consumed_tokens": 512 * n}
        for n in range(1, number + 1)
    ]
    (run_folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_two_losses_are_laid_over_each_other_while_one_trains(tmp_path, page):
    runs = tmp_path / "runs"
    write_run(runs, "finished")
    training = begin_training(runs)
    index = write_runs_index(runs)
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(index.as_uri())
    overlay = page.locator("#overlay")
    assert overlay.locator("svg polyline").count() == 2
    write_steps(training, 40)
    write_live_curve(training, read_overlay_curve(training, is_running=True))
    page.wait_for_function("() => document.getElementById('live').textContent.includes('step 40')")
    curves = overlay.locator("svg polyline")
    lengths = [len(curve.get_attribute("points").split()) for curve in curves.all()]
    assert sorted(lengths) == [40, 100]
    for axis in ("tokens", "time", "step"):
        overlay.locator("select").select_option(label=axis)
        assert curves.count() == 2
    overlay.get_by_role("checkbox", name="finished").uncheck()
    assert curves.count() == 1
    write_live_curve(training, read_overlay_curve(training, is_running=False))
    page.wait_for_function("() => document.getElementById('live').textContent.includes('ended')")
    write_steps(training, 41)  # the job after a planned stop
    write_live_curve(training, read_overlay_curve(training, is_running=True))
    page.wait_for_function("() => document.getElementById('live').textContent.includes('step 41')")
    assert wrong == []

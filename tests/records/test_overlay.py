"""Losses from several runs in one chart: what is read, thinned, and followed while a run trains."""

from __future__ import annotations

import json
import re

from made_run import write_run

from runbook.records.pages import overlay
from runbook.records.pages.overlay import curve_of_rows, read_overlay_curve, write_live_curve
from runbook.records.pages.runs_index import write_runs_index


def row(iteration, *, segment=0, loss=5.0, time=0.0):
    return {
        "iteration": iteration,
        "loss": loss,
        "seconds": 2.0,
        "segment": segment,
        "time": time,
        "consumed_tokens": 1000 * iteration,
    }


def test_a_step_done_again_counts_once_and_the_restart_is_marked(tmp_path):
    rows = [row(1), row(2), row(3), row(3, segment=1, loss=4.0), row(4, segment=1)]
    curve = curve_of_rows(tmp_path, rows, is_running=True)
    assert [point[0] for point in curve.points] == [1, 2, 3, 4]
    assert curve.points[2][:3] == (3, 3000, 4.0)
    assert [point[0] for point in curve.restarts] == [3]


def test_time_is_wall_time_where_it_is_known_and_the_sum_of_steps_elsewhere(tmp_path):
    with_clock = curve_of_rows(tmp_path, [row(1, time=100.0), row(2, time=160.0)], is_running=True)
    assert [point[3] for point in with_clock.points] == [0.0, 60.0]
    without = curve_of_rows(tmp_path, [row(1), row(2)], is_running=True)
    assert [point[3] for point in without.points] == [2.0, 4.0]


def test_losses_that_are_no_numbers_are_left_out(tmp_path):
    rows = [row(1), row(2, loss=None), row(3, loss=float("nan")), row(4, loss="high"), {}]
    curve = curve_of_rows(tmp_path, rows, is_running=False)
    assert [point[0] for point in curve.points] == [1]
    json.loads(curve.as_json())


def test_a_long_history_is_read_in_part_and_keeps_its_end_within_a_few_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(overlay, "READ_BYTES", 10_000)
    lines = [json.dumps(row(number, loss=10 / number)) + "\n" for number in range(1, 5001)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines) + '{"iteration": 50')
    curve = read_overlay_curve(tmp_path, is_running=False)
    assert 10 < len(curve.points) <= overlay.MOST_POINTS
    assert curve.points[-1][0] > 4900


def test_the_index_lays_the_losses_of_runs_over_each_other(tmp_path):
    runs = tmp_path / "runs"
    write_run(runs, "a")
    write_run(runs, "b")
    (runs / "a" / "run.yaml").write_text("run: a\ntraining: {learning_rate: 1.0e-3}\n")
    (runs / "b" / "run.yaml").write_text("run: b\ntraining: {learning_rate: 2.0e-3}\n")
    text = write_runs_index(runs).read_text()
    drawn = json.loads(re.search(r'<script type="application/json">(.*?)</script>', text)[1])
    assert {series["name"]: len(series["points"]) for series in drawn["series"]} == {
        "a": 100,
        "b": 100,
    }
    table = text.partition("Parameters that differ")[2].partition("</table>")[0]
    assert re.findall(r"<td>([^<]*)</td>", table) in (["0.001", "0.002"], ["0.002", "0.001"])
    assert "<code>training.learning_rate</code>" in table
    assert "<code>run</code>" not in table


def test_a_name_cannot_leave_the_script(tmp_path):
    run_folder = write_run(tmp_path / "runs", "a<b")
    text = write_live_curve(run_folder, read_overlay_curve(run_folder, is_running=True)).read_text()
    assert text.startswith("receiveCurve({") and "<" not in text

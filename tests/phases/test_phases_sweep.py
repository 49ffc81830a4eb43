"""The results table of a sweep: one row per variant, filled in as the variants run."""

from __future__ import annotations

import csv
import json
import re

from toy_run import open_run

from runbook.phases.p05_analysis import phase as analysis
from runbook.phases.phase_steps import VARIANTS
from runbook.results.messages import ResultMessage
from runbook.results.run_tables import NEVER_MEASURED, SAMPLES_PER_SECOND, TFLOPS_PER_DEVICE


def measured_lines(open_phase, seconds, last=30):
    spec = open_phase.phase_plan
    return "".join(
        json.dumps(
            {
                "iteration": n,
                "seconds": seconds,
                "loss": 9.0,
                "global_batch": spec.batch.global_,
                "world_size": spec.parallel.world_size,
                "segment": 0,
            }
        )
        + "\n"
        for n in range(1, last + 1)
    )


def test_a_run_that_was_trained_has_its_speed_and_source_and_another_is_never_measured(runs, queue):
    open_phase = open_run("04-training", runs=runs)
    (row,) = analysis.variants_tables([open_phase.settings], runs)[0].rows
    assert (row["run"], row["verdict"], row[SAMPLES_PER_SECOND]) == ("local", NEVER_MEASURED, None)
    (open_phase.folder / "metrics.jsonl").write_text("")
    (row,) = analysis.variants_tables([open_phase.settings], runs)[0].rows
    assert (row["verdict"], row["source"]) == (NEVER_MEASURED, "local/plan.json")
    (open_phase.folder / "metrics.jsonl").write_text(measured_lines(open_phase, 2.0))
    (row,) = analysis.variants_tables([open_phase.settings], runs)[0].rows
    assert row["verdict"] == "ok"
    assert row[SAMPLES_PER_SECOND] == open_phase.phase_plan.batch.global_ / 2.0
    assert row[TFLOPS_PER_DEVICE] > 0
    assert row["source"] == "local/metrics.jsonl:1-30"
    assert [
        point["run"] for point in analysis.variants_tables([open_phase.settings], runs)[1].rows
    ] == ["local"]


def test_runs_without_a_step_are_named_and_the_others_are_compared(runs, queue, monkeypatch):
    bound = open_run("04-training", runs=runs)
    others = [open_run("04-training", f"as={name}", runs=runs) for name in ("longer", "waiting")]
    for open_phase in (bound, others[0]):
        (open_phase.folder / "metrics.jsonl").write_text(measured_lines(open_phase, 2.0))
    (others[1].folder / "metrics.jsonl").write_text("")
    monkeypatch.setattr(
        analysis, "variants_of", lambda run, project: [one.settings for one in others]
    )
    shown = repr(analysis.show_variants(bound))
    empty = others[1].folder / "metrics.jsonl"
    reason = ResultMessage.NO_WHOLE_RECORD.fill(path=empty, unread_lines=0)
    assert f"local--waiting is not compared: {reason}" in shown
    assert re.search(r"Results side by side\n.*local +local--longer +last / first", shown)


def test_a_variant_that_is_half_done_is_not_called_ok(runs, queue, monkeypatch):
    bound = open_run("04-training", runs=runs)
    half = open_run("04-training", "as=half", runs=runs)
    planned = half.phase_plan.duration.iterations
    for open_phase, last in ((bound, planned), (half, planned // 2)):
        path = open_phase.folder / "metrics.jsonl"
        path.write_text(measured_lines(open_phase, 2.0, last))
    monkeypatch.setattr(analysis, "variants_of", lambda run, project: [half.settings])
    shown = repr(analysis.show_variants(bound))
    progress = f"{planned // 2} of {planned} iterations"
    unfinished = ResultMessage.NOT_FINISHED.fill(progress=progress)
    rows = list(csv.DictReader((bound.folder / VARIANTS).read_text().splitlines()))
    assert {row["run"]: row["verdict"] for row in rows} == {
        "local": "ok",
        "local--half": unfinished,
    }
    assert f"local--half: {unfinished}" in shown


def test_every_variant_of_the_lumi_document_is_a_row(tmp_path):
    table = analysis.variants_tables(analysis.variants_of("lumi-13b"), tmp_path)[0]
    verdicts = {row["run"].removeprefix("lumi-13b--"): row["verdict"] for row in table}
    assert verdicts["13b-1n-dp8-zero1"].startswith("refused by the plan: 04-training: memory")
    assert verdicts["2n-zero2"] == NEVER_MEASURED
    assert len(verdicts) == 9  # the run itself and its eight variants
    assert all(
        column in table.columns
        for column in ("Model Size", "Nodes", "PP", "TP", "DP", "Zero Stage")
    )

"""Memory planned for a CPU against peaks of real trainings.

measured_peaks.csv: peak resident memory of the last rank over three steps of mock data, megatron-core 0.16.1, torch
2.13, gloo, Linux, 2 cores, 2026-11-21. Measure again with `python -m runbook.training plan.json` and its metrics.jsonl.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.plan.choices import full_choice
from runbook.plan.layout import lay_out
from runbook.plan.memory import all_stages, node_bytes

from .conftest import build

HERE = Path(__file__).parent
ROWS = list(csv.DictReader((HERE / "measured_peaks.csv").read_text(encoding="utf-8").splitlines()))


def planned(row: dict[str, str]) -> float:
    """Bytes of one process."""
    number = {name: int(text) for name, text in row.items() if text.isdigit()}
    sections = {
        "training": {
            **{name: number[name] for name in ("sequence_length", "micro_batch", "global_batch")},
            "precision": row["precision"],
            "recompute": row["recompute"],
        },
        "parallel": {name: number[name] for name in ("tensor", "pipeline", "zero_stage")},
        "jobs": {"training": {"devices_per_node": number["processes"]}},
    }
    choice = full_choice(build(sections, model=read_models(project_root(HERE)).get(row["model"])))
    layout = lay_out(choice)
    least, _ = node_bytes(all_stages(choice, layout, choice.shape), number["processes"])
    return least / number["processes"]


def test_ten_configurations_are_planned_within_ten_percent() -> None:
    wrong = {index: planned(row) / int(row["peak_bytes"]) - 1 for index, row in enumerate(ROWS)}
    assert len([error for error in wrong.values() if abs(error) <= 0.10]) >= 10, wrong
    assert all(abs(error) <= 0.15 for error in wrong.values()), wrong


@pytest.mark.parametrize("index", range(len(ROWS)))
def test_no_peak_is_far_above_the_plan(index: int) -> None:
    assert int(ROWS[index]["peak_bytes"]) <= 1.16 * planned(ROWS[index])

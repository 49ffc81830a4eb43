"""Memory planned for a CPU against peaks of real trainings.

measured_peaks.csv: peak resident memory of the fullest rank over nine steps of mock data (metrics.jsonl), both engines,
megatron-core 0.16.1, deepspeed 0.19.8, torch 2.13, gloo, Linux, 2 cores, 2026-11-22; those with one data-parallel copy
at commit 1b663c7. Measure again with `python -m benchmarks.memory_against_plan --all` and `--deepspeed`.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.planning.cost.memory import all_stages, node_bytes
from runbook.planning.layout import full_choice

from .conftest import build

HERE = Path(__file__).parent
ROWS = list(csv.DictReader((HERE / "measured_peaks.csv").read_text(encoding="utf-8").splitlines()))


def planned(row: dict[str, str]) -> float:
    """Bytes of one process."""
    number = {name: int(text) for name, text in row.items() if text.isdigit()}
    layout_keys = ("tensor", "pipeline", "virtual_pipeline", "zero_stage")
    sections = {
        "training": {
            **{name: number[name] for name in ("sequence_length", "micro_batch", "global_batch")},
            **{name: row[name] for name in ("engine", "precision", "recompute")},
            "dropout": float(row["dropout"]),
        },
        "parallel": {name: number[name] for name in layout_keys},
        "jobs": {"training": {"devices_per_node": number["processes"]}},
    }
    choice = full_choice(build(sections, model=read_models(project_root(HERE)).get(row["model"])))
    least, _ = node_bytes(all_stages(choice), number["processes"])
    return least / number["processes"]


@pytest.mark.parametrize("index", range(len(ROWS)))
def test_each_configuration_is_planned_within_ten_percent(index: int) -> None:
    row = ROWS[index]
    assert planned(row) == pytest.approx(int(row["peak_bytes"]), rel=0.10)

"""`make sites`: run the five documents' run files end to end on this machine, and their smoke tests
on a real Slurm cluster.

Only the site, model and length in a run file are changed. It only runs by name, because it takes
minutes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from two_nodes import lines_of

RUNS = ("lumi-13b", "azure-175b", "polaris-25b", "slurm-oscar", "aws-pile-175b")
WORDS = (
    "model=tiny",
    "training.iterations=8",
    "training.warmup_iterations=2",
    "training.global_batch=8",
    "training.save_interval=4",
    "training.smoke.iterations=6",
    "training.smoke.global_batch=8",
)
ALL_ON_SLURM = "lumi-13b"
PHASES = (
    "00-plan",
    "01-environment",
    "02-data",
    "03-smoke-test",
    "04-training",
    "05-analysis",
    "06-evaluation",
)


def words(site: str) -> list[str]:
    return [word for pair in (f"site={site}", *WORDS) for word in ("--set", pair)]


def states(folder: Path) -> dict[str, str]:
    return {
        path.stem: json.loads(path.read_text())["state"]
        for path in sorted((folder / "records").glob("*.json"))
    }


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.rotate(5)
def test_every_phase_of_a_run_file_is_done_on_this_machine(run, project):
    project.call("run", run, "--as", "here", *words("local"), timeout=1100)
    folder = project.runs / f"{run}--here"
    assert states(folder) == dict.fromkeys(PHASES, "done")
    assert lines_of(folder / "metrics.jsonl")[-1]["iteration"] == 8


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.rotate(5)
def test_the_smoke_test_of_a_run_file_is_done_on_two_nodes_of_slurm(run, project):
    rest = [
        "--set",
        "data.dataset=mock",
        "--set",
        "training.rehearsal_waived_by=the tests",
        "--to",
        "smoke",
    ]
    more = ["--to", "evaluation"] if run == ALL_ON_SLURM else rest
    project.call("run", run, "--as", "slurm", *words("two-nodes"), *more, timeout=900)
    folder = project.runs / f"{run}--slurm"
    assert states(folder) == dict.fromkeys(PHASES if run == ALL_ON_SLURM else PHASES[:4], "done")
    rows = lines_of(folder / "smoke" / "metrics.jsonl")
    assert rows[-1]["iteration"] == 6 and {row["world_size"] for row in rows} == {2}
    assert (folder / "jobs" / "03-smoke-test" / "hostfile").read_text() == "node1\nnode2\n"

"""Starts a process per rank with mpiexec, as on Polaris, through the notebooks. Only the queue is a
stand-in.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from suite.scripts import command_of, options_of
from suite.stand_in import FIRST_JOB, FIRST_VARIABLE
from two_nodes import PROJECT, Project, lines_of

pytestmark = [pytest.mark.notebooks, pytest.mark.training]


class Host:
    """The part of a cluster that `Project` needs: the environment, with the stand-in programs on
    the PATH.
    """

    def __init__(self, home: Path) -> None:
        text = (PROJECT / "tests" / "jobs" / "pbs_stand_in.py").read_text()
        home.mkdir(exist_ok=True)
        for name in ("qsub", "qstat", "qselect", "qdel"):
            (home / name).write_text(f"#!{sys.executable} -S\n{text}")
            (home / name).chmod(0o755)
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RUNBOOK_", "SLURM"))
        }
        path = f"{home}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = own | {
            "PATH": path,
            "PBS_STAND_IN": str(home),
            FIRST_VARIABLE: str(FIRST_JOB),
        }


def mpiexec_is_missing() -> str:
    """Return why the test does not run. If Slurm is required, so is this test."""
    if shutil.which("mpiexec"):
        return ""
    assert not os.environ.get("RUNBOOK_REQUIRE_SLURM"), "mpiexec is not installed (Debian: mpich)"
    return "mpiexec is not installed (Debian: mpich)"


def test_mpiexec_trains_with_a_rank_a_process(tmp_path):
    if missing := mpiexec_is_missing():
        pytest.skip(missing)
    project = Project(tmp_path / "a project", Host(tmp_path / "stand-in"))
    words = [
        "site=one-host",
        "data.dataset=mock",
        "training.iterations=6",
        "training.global_batch=8",
    ]
    project.call(
        "run", "queued", *(word for pair in words for word in ("--set", pair)), "--to", "smoke"
    )
    run = project.runs / "queued"
    folder = run / "jobs" / "03-smoke-test"
    command = command_of((folder / "job.sh").read_text(), "mpiexec")
    options = options_of(command, "mpiexec", flags=("--envall",))
    assert (options["-n"], options["--ppn"]) == ("2", "2")
    assert options["--hostfile"] == "$job/hostfile"
    rows = lines_of(run / "smoke" / "metrics.jsonl")
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5, 6] and {
        row["world_size"] for row in rows
    } == {2}
    assert (folder / "started").read_text().startswith(f"job pbs-{FIRST_JOB}\n")
    assert f"pbs-{FIRST_JOB}" in project.call("status", "queued")

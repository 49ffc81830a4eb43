"""A job that runs Python from a copy on each of two nodes, on a real Slurm cluster.

Its trainer is a few lines long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from chained_run import SITE
from packed_environment.conftest import PROJECT, Packed
from packed_environment.test_job_from_copy import write_trainer
from two_nodes import Cluster, wait_until

from runbook import params
from runbook.core.files import read_lines
from runbook.jobs import get_scheduler
from runbook.jobs.job_folder import JobFolder, JobState, Scheduler
from runbook.jobs.messages import JobReason
from runbook.jobs.render.training_job import ENVIRONMENT_FILE, render_job, write_job
from runbook.planning import make_plan
from runbook.tools.drills.bench import write_project

pytestmark = pytest.mark.slurm
PHASE = "04-training"
WORDS = ("site=nodes", "jobs.training.nodes=2", "training.rehearsal_waived_by=the tests")


class TwoNodeJob:
    """A job submitted to the tests' Slurm cluster. Each node uses a separate folder as its disk."""

    def __init__(self, packed: Packed, name: str) -> None:
        root = packed.root / "project"
        write_project(root, packed.environment / "bin" / "python")
        site = SITE.format(python=packed.environment / "bin" / "python", nodes=2)
        (root / "params" / "sites" / "nodes.yaml").write_text(site)
        copy = f"jobs.environment_copy={packed.disk}/$SLURMD_NODENAME"
        settings = params.load("drill", set_words=[*WORDS, copy], project=root)
        rendered = render_job(settings, make_plan(settings), PHASE, package=PROJECT)
        files = rendered.files | {ENVIRONMENT_FILE: packed.manifest.as_text()}
        self.folder = JobFolder(packed.root / name / "jobs" / PHASE)
        self.scheduler: Scheduler = get_scheduler(settings.site)
        write_job(self.folder, replace(rendered, files=files))
        self.scheduler.submit(self.folder)
        wait_until(lambda: self.scheduler.state(self.folder).final, f"the end of {name}")

    @property
    def state(self) -> JobState:
        return self.scheduler.state(self.folder).state

    @property
    def err(self) -> str:
        return self.folder.err.read_text()

    def answers(self) -> dict[str, str]:
        """Return how each node obtained its Python."""
        rows = read_lines(self.folder.path / "environment.jsonl")
        return {row["node"]: row["state"] for row in rows}


@pytest.fixture
def packed(tmp_path, cluster: Cluster, monkeypatch) -> Iterator[Packed]:
    for name in ("PATH", "SLURM_CONF", "CLUSTER_DIR"):
        monkeypatch.setenv(name, cluster.environment[name])
    packed = Packed(tmp_path)
    write_trainer(packed)
    yield packed
    cluster.wait_idle()


def test_each_node_unpacks_once_and_all_ranks_run_from_their_nodes_copy(packed):
    job = TwoNodeJob(packed, "copied")
    assert job.state is JobState.DONE, job.err
    assert job.answers() == {"node1": "unpacked", "node2": "unpacked"}
    prefixes = sorted(line.split()[0] for line in job.folder.out.read_text().splitlines())
    nodes = [Path(prefix).relative_to(packed.disk).parts[0] for prefix in prefixes]
    assert nodes == ["node1", "node2"]
    assert not list(packed.disk.glob("*/*/*/environment")), "the copies are removed at the end"
    (event,) = read_lines(packed.root / "copied" / "events.jsonl")
    assert (event["nodes"], event["nodes_with_copy"]) == (2, 2)


def test_a_node_without_a_copy_ends_a_job_whose_shared_environment_has_changed(packed):
    (packed.disk / "node2").write_text("no folder can be made here")
    (packed.packages / "answers.py").write_text("ANSWER = 43\n")
    job = TwoNodeJob(packed, "refused")
    assert job.state is JobState.FAILED
    assert job.answers() == {"node1": "unpacked", "node2": "refused"}
    assert job.folder.reason.read_text().strip() == JobReason.COPY_CHANGED.fill()
    assert not list(packed.disk.glob("*/*/*/environment"))

"""A chain of jobs with a stand-in for PBS: the same script four times, each started after the
previous one has ended."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from suite.messages import says
from suite.stand_in import FIRST_JOB, FIRST_VARIABLE

from runbook import params
from runbook.core import processes
from runbook.jobs import queue
from runbook.jobs.job_folder import JobFolder, JobState
from runbook.jobs.messages import JobLine
from runbook.jobs.pbs import Pbs
from runbook.jobs.queue import QueueScheduler
from runbook.jobs.render import training_job
from runbook.jobs.render.training_job import render_job, write_job
from runbook.planning import make_plan

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(
        shutil.which("mpiexec") is None, reason="mpiexec is not installed (Debian: mpich)"
    ),
]
PROJECT = Path(__file__).parents[2]
TRAINER = f"""#!/usr/bin/env bash
# The first start is killed, the second is stopped by its time limit, the third finishes.
if [[ $2 == runbook.next_job ]]; then exec {sys.executable} "$@"; fi
echo start >>starts
case $(wc -l <starts) in
  1) kill -KILL $$ ;;
  2) exit 75 ;;
esac
"""
WAITING_MPIEXEC = """#!/usr/bin/env bash
# MPICH's mpiexec when it has lost its second node: rank 0 fails, and the other rank is waited for without an end.
PMI_RANK=0 MPI_LOCALRANKID=0 bash "${@: -1}" || exec sleep infinity
"""
FAILS_ONCE = f"""#!/usr/bin/env bash
if [[ $2 == runbook.next_job ]]; then exec {sys.executable} "$@"; fi
echo start >>starts
if (($(wc -l <starts) == 1)); then kill -KILL $$; fi
"""
WORDS = (
    "training.framework=runbook",
    "jobs.account=project",
    "jobs.stage=/stage",
    "jobs.training.nodes=1",
    "jobs.training.devices_per_node=1",
    "jobs.training.partition=debug",
    "jobs.training.walltime=00:10:00",
    "jobs.training.chain=4",
    "parallel.tensor=1",
    "parallel.pipeline=1",
    "parallel.zero_stage=0",
    "parallel.sequence=false",
    "training.offload=false",
    "training.sequence_length=128",
    "model=tiny",
)


@pytest.fixture
def pbs(tmp_path, monkeypatch) -> QueueScheduler:
    """Return the adapter, with the stand-in programs on our PATH."""
    home = tmp_path / "stand-in"
    home.mkdir()
    for name in ("qsub", "qstat", "qselect", "qdel"):
        text = (Path(__file__).parent / "pbs_stand_in.py").read_text()
        (home / name).write_text(f"#!{sys.executable} -S\n{text}")
        (home / name).chmod(0o755)
    monkeypatch.setenv("PBS_STAND_IN", str(home))
    monkeypatch.setenv(FIRST_VARIABLE, str(FIRST_JOB))
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    monkeypatch.setattr(queue, "ASK_SECONDS", 0.0)
    return QueueScheduler(Pbs())


@pytest.fixture
def folder(tmp_path) -> JobFolder:
    """Render a training job with a quick program that needs no accelerator."""
    trainer = tmp_path / "trainer"
    trainer.write_text(TRAINER)
    trainer.chmod(0o755)
    settings = params.load("polaris-25b", set_words=WORDS, project=PROJECT)
    site = settings.site.model_copy(
        update={
            "environment": {},
            "modules": [],
            "setup": [],
            "directives": {},
            "step_options": [],
            "python": str(trainer),
            "paths": {},
            "binding": type(settings.site.binding)(),
        }
    )
    settings = replace(settings, site=site)
    job = JobFolder(tmp_path / "a run" / "jobs" / "04-training")
    write_job(job, render_job(settings, make_plan(settings), "04-training", package=PROJECT))
    return job


def test_a_killed_and_a_stopped_job_are_followed_and_a_finished_one_is_not(pbs, folder):
    pbs.submit(folder)
    assert pbs.queue_followers(folder, 3) == [f"pbs-{FIRST_JOB + place}" for place in (1, 2, 3)]
    assert processes.wait_until(lambda: pbs.state(folder).final, 600), pbs.state(folder)
    status = pbs.state(folder)
    assert (status.state, status.job_id) == (JobState.DONE, f"pbs-{FIRST_JOB + 2}"), (
        folder.err.read_text()
    )
    starts = folder.run_folder / "starts"
    assert starts.read_text().splitlines() == ["start"] * 3
    events = (folder.run_folder / "events.jsonl").read_text().splitlines()
    ends = [event for event in map(json.loads, events) if event["event"] == "ended"]
    assert [end["decision"] for end in ends] == ["go on", "go on", "done"]
    log = folder.err.read_text()
    assert not says(log, JobLine.LEAVES_AT_ONCE), "the fourth was deleted while it waited"


def test_mpiexec_that_waits_for_a_lost_node_is_ended_soon_after_the_first_rank(
    pbs, tmp_path, monkeypatch, request
):
    monkeypatch.setattr(training_job, "UNENDED_SECONDS", 1)
    folder = request.getfixturevalue("folder")
    (tmp_path / "trainer").write_text(FAILS_ONCE)
    program = tmp_path / "stand-in" / "mpiexec"
    program.write_text(WAITING_MPIEXEC)
    program.chmod(0o755)
    pbs.submit(folder)
    pbs.queue_followers(folder, 1)
    assert processes.wait_until(lambda: pbs.state(folder).final, 600), pbs.state(folder)
    assert pbs.state(folder).state is JobState.DONE, folder.err.read_text()
    events = (folder.run_folder / "events.jsonl").read_text().splitlines()
    ends = [event for event in map(json.loads, events) if event["event"] == "ended"]
    assert [end["exit_code"] for end in ends] == [1, 0]

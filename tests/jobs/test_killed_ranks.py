"""If a signal ends a rank, the job records this in a file, both on this machine and in a queue, for
every rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runbook import params
from runbook.core import shell
from runbook.jobs import job_folder
from runbook.jobs.job_end import EndCause
from runbook.jobs.job_folder import JobFolder, JobState, JobStatus
from runbook.jobs.render.training_job import render_job, write_job
from runbook.next_job.decisions import decide_restart
from runbook.params.schema.site import Container
from runbook.phases.job_control.ended_jobs import read_attempt
from runbook.plan_file.job_ends import Action
from runbook.planning import make_plan

PROJECT = Path(__file__).parents[2]
WORDS = (
    "training.framework=runbook",
    "jobs.launcher=srun",
    "jobs.stage=/stage",
    "jobs.image=/image.sqsh",
    "jobs.training.nodes=1",
)
SRUN = """#!/usr/bin/env bash
# Two tasks on this machine. As `srun --kill-on-bad-exit=1`: after a bad end the other task gets TERM, and the highest
# exit code counts.
while [[ $1 == -* ]]; do shift; done
tasks=()
for rank in 0 1; do
  SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" &
  tasks+=($!)
done
worst=0
for _ in 0 1; do
  code=0
  wait -n || code=$?
  if ((code > worst)); then worst=$code; fi
  if ((code)); then kill -TERM "${tasks[@]}" 2>/dev/null; fi
done
exit "$worst"
"""
# The other rank loses its connection, and fails with its own message. In a queue, it does so after
# the job has recorded the kill.
KILLED = """
if rank == {killed}:
    os.kill(os.getpid(), {signal})
record = os.environ['RUNBOOK_JOB_FOLDER'] + '/rank-signal'
while 'SLURM_PROCID' in os.environ and not os.path.exists(record):
    time.sleep(0.02)
sys.exit('RuntimeError: Connection closed by peer')
"""


@pytest.fixture
def queue_job(tmp_path, monkeypatch):
    """Return a function that runs the job as Slurm would, with a stand-in for srun, and returns its
    folder."""
    programs = tmp_path / "programs"
    programs.mkdir()
    stand_ins = {
        "srun": SRUN,
        "scontrol": "#!/bin/sh\necho node-1\n",
        "trainer": f"#!{sys.executable} -IS\nimport os, signal, sys, time\n"
        "rank = int(os.environ['RANK'])\nexec(os.environ['LINES_TO_RUN'])\n",
    }
    for name, text in stand_ins.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    settings = params.load("slurm-oscar", set_words=WORDS, project=PROJECT)
    plan = make_plan(settings)
    site = settings.site.model_copy(
        update={
            "container": Container(),
            "environment": {},
            "modules": [],
            "setup": [],
            "node_setup": [],
            "python": str(programs / "trainer"),
        }
    )
    rendered = render_job(replace(settings, site=site), plan, "04-training", package=PROJECT)
    folder = JobFolder(tmp_path / "run" / "jobs" / "04-training")

    def run(lines: str) -> JobFolder:
        write_job(folder, rendered)
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SLURM_SUBMIT_DIR": str(folder.path),
            "SLURM_JOB_ID": "12",
            "SLURM_JOB_NODELIST": "node-1",
            "LINES_TO_RUN": lines,
        }
        ended = shell.run(
            ["bash", str(folder.script)],
            cwd=folder.path,
            env=environment,
            check=False,
            timeout=600,
        )
        folder.err.write_text(ended.err)
        return folder

    return run


def attempt_of(folder: JobFolder):
    status = job_folder.read_end(folder, "slurm-12")
    run = folder.run_folder
    return read_attempt(folder, status, run / "metrics.jsonl", run / "events.jsonl")


@pytest.mark.parametrize("killed", [0, 1])
def test_a_rank_killed_before_its_first_step_is_started_again_under_a_queue(killed, queue_job):
    folder = queue_job(KILLED.format(killed=killed, signal=9))
    attempt = attempt_of(folder)
    assert (attempt.end.state, attempt.end.exit_code) == (JobState.FAILED, 1)
    assert (attempt.end.signal, attempt.end.cause) == (9, EndCause.KILLED)
    assert folder.signal.read_text() == "9\n"
    assert folder.rank_signal.read_text() == f"{killed} 9\n"
    assert decide_restart([attempt], budget=3).action is Action.GO_ON


def test_a_rank_that_fails_by_itself_before_its_first_step_is_not(queue_job):
    attempt = attempt_of(queue_job("sys.exit('RuntimeError: no such thing')"))
    assert attempt.end.cause is EndCause.OTHER
    # srun ends the other rank with SIGTERM if it is still running, which is not a kill from
    # outside.
    assert attempt.end.signal in (None, signal.SIGTERM)
    assert decide_restart([attempt], budget=3).action is Action.STOP


def test_a_segmentation_fault_is_a_signal_and_no_kill(queue_job):
    attempt = attempt_of(queue_job(KILLED.format(killed=1, signal=11)))
    assert (attempt.end.signal, attempt.end.cause) == (11, EndCause.OTHER)
    assert decide_restart([attempt], budget=3).action is Action.STOP


@pytest.mark.jobs
def test_the_same_kill_on_this_machine_ends_alike(bench):
    folder = bench.submit(KILLED.format(killed=1, signal=9))
    status: JobStatus = bench.wait(folder)
    assert (status.state, status.exit_code, status.signal) == (JobState.FAILED, 1, 9)
    attempt = attempt_of(folder)
    assert attempt.end.cause is EndCause.KILLED
    assert decide_restart([attempt], budget=3).action is Action.GO_ON


@pytest.mark.parametrize(
    ("files", "signal"),
    [
        ({"exit_code": "1", "signal": "9"}, 9),
        ({"exit_code": "1", "signal": "9", "rank-0": "1"}, 9),
        # Jobs from older versions did not write a file `signal`.
        ({"exit_code": "1", "rank-0": "137"}, 9),
        ({"exit_code": "137"}, 9),
        ({"exit_code": "1", "rank-0": "1"}, None),
        ({"exit_code": "1"}, None),
        ({"exit_code": "1", "signal": "garbage"}, None),
        ({"exit_code": "0", "signal": "9"}, None),
    ],
)
def test_a_folder_says_which_signal_ended_a_rank(files, signal, tmp_path):
    folder = JobFolder(tmp_path / "run" / "jobs" / "04-training")
    folder.path.mkdir(parents=True)
    for name, text in files.items():
        (folder.path / name).write_text(text + "\n")
    assert job_folder.read_end(folder, "local-1").signal == signal


def test_a_job_of_the_same_number_in_another_queue_is_not_ended(queue_job, tmp_path):
    def start(folder: Path) -> subprocess.Popen[bytes]:
        marks = {"RUNBOOK_JOB": "slurm-12", "RUNBOOK_JOB_FOLDER": str(folder)}
        return subprocess.Popen(["sleep", "600"], env={**os.environ, **marks})

    foreign = start(tmp_path / "another run" / "jobs" / "04-training")
    leftover = start(tmp_path / "run" / "jobs" / "04-training")
    try:
        queue_job("sys.exit(0)")
        assert leftover.wait(timeout=60) == -signal.SIGKILL
        assert foreign.poll() is None
    finally:
        for process in (foreign, leftover):
            process.kill()
            process.wait()

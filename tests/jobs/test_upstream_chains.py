"""The documents' programs in a chain. A program that does not resume is stopped, and saved steps count as progress."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from suite.messages import containing, says

from runbook import params
from runbook.core import shell
from runbook.core.processes import wait_until
from runbook.jobs.job_folder import JobFolder
from runbook.jobs.messages import JobLine, JobReason
from runbook.jobs.render.training_job import render_job, write_job
from runbook.params.schema.site import Container
from runbook.planning import make_plan

PROJECT = Path(__file__).parents[2]
SRUN = """#!/usr/bin/env bash
# One task on this machine, which TERM ends.
while [[ $1 == -* ]]; do shift; done
export SLURM_PROCID=0 SLURM_LOCALID=0
exec "$@"
"""
PROGRAM = """
import os, pathlib, signal, sys, time
checkpoints = pathlib.Path(os.environ["CHECKPOINTS"])
tracker = checkpoints / "latest_checkpointed_iteration.txt"
print("> building train, validation, and test datasets ...", flush=True)
begin = 0
if tracker.exists() and os.environ["LOADS"] == "yes":
    begin = int(tracker.read_text())
    print(f"  successfully loaded checkpoint from {checkpoints} [ t 1/1, p 1/1 ] at iteration {begin}", flush=True)
for iteration in range(begin + 1, begin + 3):
    print(f" [2026-11-26 21:00:00] iteration {iteration:8d}/      60 | consumed samples: 8 |", flush=True)
if os.environ["LOADS"] == "no" and tracker.exists():
    time.sleep(300)  # until it is ended
(checkpoints / f"iter_{iteration:07d}").mkdir()
print(f"  successfully saved checkpoint from iteration {iteration:7d} to {checkpoints}", flush=True)
tracker.write_text(str(iteration))
if os.environ["LOST"]:
    sys.exit(f"srun: error: Task launch for 12.0 failed on node {os.environ['LOST']}: Socket timed out")
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Behaves like Megatron-LM e958b2ca: it prints the same lines and writes the same files."""


class UpstreamChain:
    """A run with chained jobs, which a test starts one after another, as a queue would."""

    def __init__(self, root: Path) -> None:
        programs = root / "programs"
        programs.mkdir()
        stand_ins = {
            "srun": SRUN,
            "scontrol": "#!/bin/sh\necho node-1\n",
            "scancel": '#!/bin/sh\necho "$@" >>"$CANCELLED"\n',
        }
        for name, text in stand_ins.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        (root / "program.py").write_text(PROGRAM)
        self.cancelled = root / "cancelled"
        self.checkpoints = root / "checkpoints"
        self.folder = JobFolder(root / "run" / "jobs" / "04-training")
        self.environment = {
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CHECKPOINTS": str(self.checkpoints),
            "CANCELLED": str(self.cancelled),
            "SLURM_SUBMIT_DIR": str(self.folder.path),
            "SLURM_JOB_NODELIST": "node-1",
        }
        write_job(self.folder, render_job(*_planned(root), "04-training", package=PROJECT))
        self.folder.chain.write_text("slurm-12\nslurm-13\nslurm-14\nslurm-15\n")

    def run_job(self, number: int, loads: bool = True, lost: str = "") -> str:
        """Run one job in the chain to completion. Return the standard error from all its jobs so
        far.
        """
        environment = {
            **self.environment,
            "SLURM_JOB_ID": str(number),
            "LOADS": "yes" if loads else "no",
            "LOST": lost,
        }
        command = f"exec bash {self.folder.script.name} >>out 2>>err"
        argv = ["bash", "-c", command]
        shell.run(argv, cwd=self.folder.path, env=environment, check=False, timeout=600)
        return self.folder.err.read_text()

    def decision(self) -> list[str]:
        """Return the lines of the newest decision."""
        return self.folder.decision.read_text().splitlines()


def _planned(root: Path):
    words = (
        "jobs.launcher=srun",
        "jobs.stage=/stage",
        "jobs.training.nodes=1",
        "jobs.image=/image.sqsh",
        "jobs.training.devices_per_node=1",
        "jobs.training.chain=4",
        "parallel.tensor=1",
        "parallel.pipeline=1",
        "model=tiny",
        "training.framework=megatron-lm",
    )
    settings = params.load("slurm-oscar", set_words=words, project=PROJECT)
    plan = make_plan(settings)
    phase = plan.phases["04-training"]
    checkpoint = replace(phase.checkpoint, folder=str(root / "checkpoints"))
    log = replace(phase.log, tensorboard=str(root / "tensorboard"))
    data = replace(phase.data, cache=str(root / "cache"))
    phase = replace(phase, checkpoint=checkpoint, log=log, data=data)
    checkout = settings.site.frameworks["megatron-lm"]
    site = settings.site.model_copy(
        update={
            "container": Container(),
            "environment": {},
            "modules": [],
            "setup": [],
            "node_setup": [],
            "python": sys.executable,
            "frameworks": {
                "megatron-lm": checkout.model_copy(
                    update={"folder": str(root), "script": "program.py"}
                )
            },
        }
    )
    planned = replace(plan, phases={**plan.phases, "04-training": phase})
    return replace(settings, site=site), planned


@pytest.fixture
def chain(tmp_path) -> UpstreamChain:
    return UpstreamChain(tmp_path)


def test_the_first_job_of_a_chain_takes_the_others_out_of_the_queue(chain):
    chain.checkpoints.mkdir()
    (chain.checkpoints / "latest_checkpointed_iteration.txt").write_text("20")
    chain.run_job(12, loads=False)
    assert chain.decision()[0] == "stop"
    assert chain.cancelled.read_text().split() == ["13", "14", "15"]


def test_killed_jobs_go_on_while_each_saves_something_new(chain):
    for number, saved in ((12, 2), (13, 4)):
        log = chain.run_job(number)
        assert chain.decision()[0] == "go on", log
        tracker = chain.checkpoints / "latest_checkpointed_iteration.txt"
        assert int(tracker.read_text()) == saved
    assert chain.folder.path.joinpath("exit_code.1").read_text().strip() == "1"


def test_a_program_that_begins_anew_is_ended_and_its_chain_with_it(chain):
    chain.run_job(12)
    log = chain.run_job(13, loads=False)
    assert chain.folder.exit_code.read_text().strip() == "2"
    tracker = containing(chain.checkpoints / "latest_checkpointed_iteration.txt")
    reason = chain.folder.reason.read_text()
    assert says(reason, JobReason.WITHOUT_CHECKPOINT, tracker=tracker)
    assert chain.decision()[0] == "stop"
    assert chain.cancelled.read_text() == "14 15\n"
    log = chain.run_job(14)
    decision = {"job": "slurm-14", "previous": "slurm-13", "action": "stop"}
    assert says(log, JobLine.LEAVES_AT_ONCE, **decision)
    assert chain.folder.exit_code.read_text().strip() == "2", "what ended before stays as it is"


def test_a_job_whose_node_was_lost_waits_before_the_next_one_begins(chain):
    jobs = ThreadPoolExecutor(1)
    log = jobs.submit(chain.run_job, 12, lost="node-1")
    said = "waits 120 s, in which the queue can take the lost node out of service"
    assert wait_until(
        lambda: chain.folder.err.exists() and said in chain.folder.err.read_text(), 120
    )
    assert (chain.decision()[0], chain.decision()[4]) == ("go on", "120")
    assert not chain.folder.exit_code.exists(), "the job still holds its nodes"
    chain.folder.cancelled.touch()  # a user ends the wait
    assert log.result(timeout=600)
    assert chain.folder.exit_code.read_text().strip() == "1"

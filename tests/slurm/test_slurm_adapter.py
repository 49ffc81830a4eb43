"""The adapter with a real Slurm cluster, without training: what is refused, what is found again,
and how it knows that a job has ended.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from suite.messages import containing, refuses, says
from two_nodes import Cluster, wait_until

from runbook.core.errors import JobError
from runbook.jobs import queue
from runbook.jobs.job_folder import JobFolder, JobState, next_job_folder, read_started
from runbook.jobs.messages import JobMessage, JobReason
from runbook.jobs.queue import QueueScheduler
from runbook.jobs.render.task_job import Task, data_tasks, render_task
from runbook.jobs.render.training_job import write_job
from runbook.jobs.slurm import Slurm
from runbook.params import load
from runbook.params.settings import Settings

pytestmark = pytest.mark.slurm

SLEEP = ("sleep", "300")
ASLEEP = "#!/bin/bash\n{directives}\nsleep 300\n"
"""A job that reports nothing, as if it had been ended before its first line."""


@pytest.fixture
def slurm(cluster: Cluster, monkeypatch) -> QueueScheduler:
    """Return the adapter on the head node.

    Nothing is left in the queue afterwards.
    """
    monkeypatch.setenv("PATH", cluster.environment["PATH"])
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    monkeypatch.setenv("CLUSTER_DIR", cluster.environment["CLUSTER_DIR"])
    monkeypatch.setattr(queue, "ASK_SECONDS", 0.0)
    yield QueueScheduler(Slurm())
    cluster.ask("scancel", "--user=root")
    wait_until(lambda: not cluster.ask("squeue", "-h"), "an empty queue")


@pytest.fixture(scope="module")
def settings(project) -> Settings:
    return load("queued", project=project.root)


@pytest.fixture
def run_folder(tmp_path) -> Path:
    return tmp_path / "a run"


def plain(run_folder: Path, *directives: str, phase: str = "04-training") -> JobFolder:
    """Create a folder with a script that only sleeps and writes no file."""
    folder = next_job_folder(run_folder, phase)
    folder.path.mkdir(parents=True)
    lines = "\n".join(f"#SBATCH --{word}" for word in ("output=out", "error=err", *directives))
    folder.script.write_text(ASLEEP.format(directives=lines))
    return folder


def task(
    run_folder: Path, settings: Settings, argv: tuple[str, ...] = SLEEP, **options
) -> JobFolder:
    """Create a folder with a job as the data phase submits it."""
    folder = next_job_folder(run_folder, "02-data")
    write_job(
        folder, render_task(settings, "02-data", Task("a test", argv, **options), Path("/nowhere"))
    )
    return folder


def jobs(cluster: Cluster) -> list[str]:
    return cluster.ask("squeue", "-h", "-t", "all", "-o", "%i").split()


def begun(slurm: QueueScheduler, folder: JobFolder) -> None:
    wait_until(
        lambda: slurm.state(folder).state is JobState.RUNNING and read_started(folder) is not None,
        "the job runs",
    )


@pytest.mark.parametrize(
    ("directives", "words"),
    [
        (
            ("partition=short", "time=00:10:00"),
            JobMessage.REQUEST_NOT_POSSIBLE.of(
                text=containing(
                    "walltime of 10 min", "limit of partition short, 5 min", "MaxTime=00:05:00"
                )
            ),
        ),
        (
            ("partition=short", "nodes=2"),
            JobMessage.REQUEST_NOT_POSSIBLE.of(
                text=containing(
                    "2 nodes are more than partition short allows per job (1)", "MaxNodes=1"
                )
            ),
        ),
        (
            ("nodes=3",),
            JobMessage.REQUEST_NOT_POSSIBLE.of(
                text=containing("3 nodes are more than partition main has (2)")
            ),
        ),
        (
            ("partition=fast",),
            JobMessage.REQUEST_NOT_POSSIBLE.of(
                text=containing("there is no partition fast; there are", "main", "short", "paid")
            ),
        ),
        (
            ("partition=paid", "account=chemistry"),
            JobMessage.REQUEST_NOT_POSSIBLE.of(
                text=containing("account chemistry is not allowed; partition paid allows physics")
            ),
        ),
        (
            ("partition=paid",),
            JobMessage.REQUEST_NOT_POSSIBLE.of(
                text=containing("no account is given, but partition paid allows only physics")
            ),
        ),
        (
            ("partition=shut",),
            JobMessage.REQUEST_NOT_POSSIBLE.of(
                text=containing("partition shut is INACTIVE and accepts no jobs")
            ),
        ),
        (
            ("reservation=mine",),
            JobMessage.JOB_REFUSED.of(last_words=containing("Requested reservation is invalid")),
        ),
        (
            ("gpus-per-node=9",),
            JobMessage.JOB_REFUSED.of(last_words=containing("Invalid generic resource")),
        ),
        # Without accounts, the controller allows no account in that partition. sbatch accepts the
        # job, but it never starts.
        (
            ("partition=paid", "account=physics"),
            JobMessage.NEVER_STARTS.of(
                reason=containing("account not known, so it can't use this partition")
            ),
        ),
    ],
)
def test_what_the_queue_cannot_give_is_refused_in_its_own_words_and_leaves_nothing(
    slurm, cluster, run_folder, directives, words
):
    before = cluster.ask("squeue", "-h", "-o", "%i").split()
    folder = plain(run_folder, *directives)
    with refuses(JobError, words):
        slurm.submit(folder)
    assert cluster.ask("squeue", "-h", "-o", "%i").split() == before
    assert not folder.record.exists()
    assert next_job_folder(run_folder, "04-training").path == folder.path


def test_a_machine_without_slurm_is_told(slurm, run_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    folder = plain(run_folder)
    with refuses(JobError, JobMessage.NO_LOGIN_NODE, missing="sbatch, squeue, scontrol, scancel"):
        slurm.submit(folder)
    assert not folder.record.exists()


def test_a_controller_that_is_down_ends_nothing_and_takes_nothing(slurm, cluster, run_folder):
    running = plain(run_folder)
    slurm.submit(running)
    wait_until(lambda: slurm.state(running).state is JobState.RUNNING, "it runs")
    cluster.do("ctld-stop")
    try:
        status = slurm.state(running)
        assert status.state is JobState.UNKNOWN and not status.final
        slurm_says = "Unable to contact slurm controller"
        assert slurm_says in status.reason
        other = plain(run_folder, phase="03-smoke-test")
        with pytest.raises(JobError) as caught:
            slurm.submit(other)
        unknown = {"speaker": Slurm.speaker, "queue_word": Slurm.queue_word}
        assert says(str(caught.value), JobMessage.QUEUES_UNKNOWN, **unknown)
        assert slurm_says in str(caught.value)
        assert not other.record.exists()
    finally:
        cluster.do("ctld-start")
    wait_until(lambda: slurm.state(running).state is JobState.RUNNING, "it runs still")


SBATCH_WHOSE_ANSWER_IS_LOST = """#!/bin/sh
{sbatch} "$@" >/dev/null
echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
exit 1
"""


def test_a_submission_whose_answer_was_lost_is_found_and_not_doubled(
    slurm, cluster, run_folder, monkeypatch, tmp_path
):
    real = shutil.which("sbatch")
    (tmp_path / "sbatch").write_text(SBATCH_WHOSE_ANSWER_IS_LOST.format(sbatch=f"'{real}'"))
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    before = set(jobs(cluster))
    folder = plain(run_folder)
    job_id = slurm.submit(folder)
    assert [f"slurm-{number}" for number in set(jobs(cluster)) - before] == [job_id]
    assert slurm.submit(folder) == job_id
    assert len(set(jobs(cluster)) - before) == 1


def test_a_submission_while_the_controller_restarts_is_made_once(slurm, cluster, run_folder):
    before = set(jobs(cluster))
    folder = plain(run_folder, "hold")
    refusing = slurm.queue.refuse

    def stop_then_refuse(script: str) -> None:
        refusing(script)
        cluster.do("ctld-stop")
        restart.start()

    restart = threading.Timer(12, cluster.do, ["ctld-start"])  # sbatch itself tries for 10 s
    slurm.queue.refuse = stop_then_refuse
    job_id = slurm.submit(folder)
    restart.join()
    assert [f"slurm-{number}" for number in set(jobs(cluster)) - before] == [job_id]
    slurm.queue.refuse = refusing
    assert slurm.submit(folder) == job_id


def test_a_submission_that_was_killed_is_found_by_its_mark(slurm, cluster, run_folder):
    folder = plain(run_folder)
    job_id = slurm.submit(folder)
    record = json.loads(folder.record.read_text())
    del record["queue_id"]
    folder.record.write_text(
        json.dumps(record | {"job_id": ""})
    )  # as if killed before the answer came
    before = jobs(cluster)
    assert slurm.state(folder).job_id == job_id
    assert slurm.submit(folder) == job_id
    assert jobs(cluster) == before
    assert json.loads(folder.record.read_text())["job_id"] == job_id


def test_a_submission_that_never_reached_the_queue_is_made_again(slurm, cluster, run_folder):
    folder = plain(run_folder)
    folder.record.write_text(
        json.dumps({"job_id": "", "token": "runbook-none", "submitted": time.time() - 3600})
    )
    assert slurm.state(folder).state is JobState.LOST
    before = set(jobs(cluster))
    assert slurm.submit(folder).removeprefix("slurm-") in set(jobs(cluster)) - before


def test_a_second_job_of_a_phase_is_refused_while_one_waits(slurm, run_folder):
    slurm.submit(plain(run_folder, "hold"))
    with refuses(
        JobError, JobMessage.SAME_FILES, state="pending", reason=containing("PENDING, JobHeldUser")
    ):
        slurm.submit(plain(run_folder))


def test_a_job_cancelled_before_it_said_anything_is_known_by_the_queue(slurm, run_folder):
    folder = plain(run_folder)
    slurm.submit(folder)
    wait_until(lambda: slurm.state(folder).state is JobState.RUNNING, "it runs")
    status = slurm.cancel(folder, grace_seconds=0)
    assert (status.state, status.exit_code) == (JobState.CANCELLED, None)
    assert status.reason.startswith("CANCELLED")
    waiting = plain(run_folder, "hold")
    slurm.submit(waiting)
    assert slurm.cancel(waiting).state is JobState.CANCELLED


def test_a_job_is_asked_to_stop_and_says_how_it_ended(slurm, run_folder, settings):
    folder = task(run_folder, settings)
    slurm.submit(folder)
    begun(slurm, folder)
    status = slurm.cancel(folder)
    assert (status.state, status.exit_code) == (JobState.CANCELLED, 75)
    by = JobReason.AT.fill(request=JobReason.REQUEST_TO_CANCEL.fill())
    assert status.reason == JobReason.STOPPED.fill(by=by)


def test_an_end_is_known_from_the_jobs_files_without_the_queue(
    slurm, run_folder, settings, monkeypatch, tmp_path
):
    folder = task(run_folder, settings, ("false",))
    slurm.submit(folder)
    wait_until(lambda: slurm.state(folder).final, "its end")
    monkeypatch.setenv("PATH", str(tmp_path))
    status = slurm.state(folder)
    assert (status.state, status.exit_code, status.reason) == (
        JobState.FAILED,
        1,
        JobReason.ENDED.fill(code=1, by=""),
    )


def test_a_job_is_queued_again_under_its_number_and_keeps_what_it_said(
    slurm, cluster, run_folder, settings
):
    folder = task(run_folder, settings)
    job_id = slurm.submit(folder)
    begun(slurm, folder)
    cluster.ask("scontrol", "requeue", job_id.removeprefix("slurm-"))
    wait_until(lambda: slurm.state(folder).state is JobState.PENDING, "queued again")
    with refuses(JobError, JobMessage.SAME_FILES):
        slurm.submit(task(run_folder, settings))
    wait_until(lambda: (folder.path / "started.1").exists(), "its second start")
    begun(slurm, folder)
    assert slurm.state(folder).job_id == job_id


def test_the_queues_warning_before_its_limit_stops_the_job(slurm, cluster, run_folder, settings):
    folder = task(run_folder, settings, ("bash", "-c", "echo begun; exec sleep 300"))
    job_id = slurm.submit(folder)
    # The script can take the signal before it starts its program.
    wait_until(lambda: folder.out.exists() and "begun" in folder.out.read_text(), "it works")
    # What --signal=B:USR1@300 in the script does. The limit itself is minutes away.
    cluster.ask("scancel", "--signal=USR1", "--batch", job_id.removeprefix("slurm-"))
    wait_until(lambda: slurm.state(folder).final, "its end")
    status = slurm.state(folder)
    assert (status.state, status.exit_code, status.reason) == (
        JobState.STOPPED,
        75,
        JobReason.STOPPED.fill(by=JobReason.AT.fill(request="SIGUSR1")),
    )


FAIL_ONE = ("bash", "-c", '[ "$RUNBOOK_ELEMENT" != 1 ]')


def test_what_waits_for_an_array_starts_after_all_of_it_and_never_after_a_failure(
    slurm, run_folder, settings
):
    good = task(run_folder, settings, ("true",), is_array=True)
    slurm.submit(good)
    last = JobFolder(run_folder / "jobs" / "02-data-join")
    write_job(
        last,
        render_task(settings, "02-data", Task("join", ("true",), part="join"), Path("/nowhere")),
    )
    slurm.submit(last, after=[good])
    wait_until(lambda: slurm.state(last).final, "the last job's end")
    assert (slurm.state(good).state, slurm.state(last).state) == (JobState.DONE, JobState.DONE)

    bad = task(run_folder, settings, FAIL_ONE, is_array=True)
    slurm.submit(bad)
    never = JobFolder(run_folder / "jobs" / "02-data-join-2")
    write_job(
        never,
        render_task(settings, "02-data", Task("join", ("true",), part="join"), Path("/nowhere")),
    )
    slurm.submit(never, after=[bad])
    wait_until(lambda: slurm.state(never).final, "the last job is taken out")
    assert slurm.state(bad).state is JobState.FAILED
    ended = JobReason.ENDED.fill(code=1, by="")
    assert slurm.state(bad).reason == f"element-1: {ended}"
    assert slurm.state(never).state is JobState.CANCELLED and not never.started.exists()


SHARES = """
import os, sys
from runbook.phases.p02_data.tokenize_share import share_of
print(os.uname().nodename, *share_of(os.environ), len(os.sched_getaffinity(0)), flush=True)
"""


def test_each_task_of_each_node_gets_a_share_of_the_text(slurm, run_folder, project):
    words = ["jobs.data.nodes=2", "jobs.data.tasks_per_node=2", "jobs.data.array=0"]
    settings = load("queued", set_words=words, project=project.root)
    folder = next_job_folder(run_folder, "02-data")
    shares = data_tasks(settings, sys.executable)[0]
    shares = replace(shares, argv=(sys.executable, "-c", SHARES))
    write_job(folder, render_task(settings, "02-data", shares, Path(__file__).parents[2]))
    slurm.submit(folder)
    wait_until(lambda: slurm.state(folder).final, "its end")
    lines = [line.split() for line in folder.out.read_text().splitlines()]
    assert slurm.state(folder).state is JobState.DONE, folder.err.read_text()
    assert sorted(line[1:3] for line in lines) == [[str(number), "4"] for number in range(4)]
    assert {line[0] for line in lines if line[1] in "01"} == {"node1"}
    assert {line[0] for line in lines if line[1] in "23"} == {"node2"}


def test_every_node_runs_a_program_that_is_meant_for_each(slurm, run_folder, settings):
    folder = JobFolder(run_folder / "jobs" / "01-environment")
    write_job(
        folder,
        render_task(
            settings,
            "01-environment",
            Task("names", ("hostname",), on_each_node=True),
            Path("/nowhere"),
        ),
    )
    slurm.submit(folder)
    wait_until(lambda: slurm.state(folder).final, "its end")
    assert sorted(folder.out.read_text().split()) == ["node1", "node2"], folder.err.read_text()


def test_a_job_submitted_from_inside_another_takes_nothing_over_from_it(
    slurm, run_folder, settings, monkeypatch
):
    for name, value in {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "64",
        "SLURM_MEM_PER_CPU": "1",
        "SLURM_NNODES": "9",
    }.items():
        monkeypatch.setenv(name, value)
    folder = task(
        run_folder, settings, ("bash", "-c", 'echo "$SLURM_NNODES ${SLURM_MEM_PER_CPU-none}"')
    )
    slurm.submit(folder)
    wait_until(lambda: slurm.state(folder).final, "its end")
    assert folder.out.read_text() == "1 none\n", slurm.state(folder)


def test_a_cluster_that_died_leaves_nothing_and_starts_again(cluster, tmp_path_factory):
    other = Cluster(tmp_path_factory.mktemp("other"))
    other.environment["CLUSTER_OWNER"] = "1"
    try:
        other.do("start")
        for name in ("slurmctld", "node1"):
            os.kill(int((other.folder / "run" / f"{name}.pid").read_text()), 9)
        other.do("start")
        assert sorted(other.ask("srun", "-N2", "hostname").split()) == ["node1", "node2"]
    finally:
        other.do("stop")
    wait_until(lambda: not other.processes(), "every process gone")
    hosts = Path("/etc/hosts").read_text()
    assert "10.66.0" not in hosts

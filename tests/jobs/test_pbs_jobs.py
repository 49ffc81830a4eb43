"""The PBS adapter with a stand-in on the PATH (pbs_stand_in.py, which is not PBS), and a real
mpiexec."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from suite.messages import containing, refuses, says
from suite.stand_in import FIRST_JOB, FIRST_VARIABLE

from runbook.core import processes
from runbook.core.errors import JobError
from runbook.jobs import queue
from runbook.jobs.job_folder import JobFolder, JobState, next_job_folder
from runbook.jobs.messages import JobMessage, JobReason
from runbook.jobs.pbs import Pbs
from runbook.jobs.queue import QueueScheduler
from runbook.jobs.render.task_job import Task, render_task
from runbook.jobs.render.training_job import write_job
from runbook.params import load
from runbook.params.settings import Settings
from runbook.phases.job_control import task_jobs
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.doctor import queue_checks
from runbook.planning.messages import PlanningMessage

pytestmark = pytest.mark.jobs
PROJECT = Path(__file__).parents[2]


@pytest.fixture(params=["history", "no history"])
def pbs(request, tmp_path, monkeypatch) -> QueueScheduler:
    home = tmp_path / "stand-in"
    home.mkdir()
    if request.param == "history":
        (home / "history").touch()
    for name in ("qsub", "qstat", "qselect", "qdel"):
        program = home / name
        text = (Path(__file__).parent / "pbs_stand_in.py").read_text()
        program.write_text(f"#!{sys.executable} -S\n{text}")
        program.chmod(0o755)
    monkeypatch.setenv("PBS_STAND_IN", str(home))
    monkeypatch.setenv(FIRST_VARIABLE, str(FIRST_JOB))
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    monkeypatch.setattr(queue, "ASK_SECONDS", 0.0)
    yield QueueScheduler(Pbs())
    for path in home.glob("*.json"):
        for pid in json.loads(path.read_text())["pids"]:
            with suppress(ProcessLookupError):
                os.killpg(pid, 9)


@pytest.fixture
def settings() -> Settings:
    """Return settings for the Polaris run on a site that has only the programs on this machine."""
    words = ["jobs.account=project", "jobs.stage=/stage", "jobs.data.partition=debug"]
    own = load("polaris-25b", set_words=words, project=PROJECT)
    directives = {"place": "scatter"}
    return replace(
        own, site=own.site.model_copy(update={"environment": {}, "directives": directives})
    )


def task(
    run_folder: Path, settings: Settings, *argv: str, array: int = 0, walltime: int = 0, **options
) -> JobFolder:
    jobs = settings.run.jobs
    data = jobs.data.model_copy(update={"array": array, "walltime": walltime})
    settings = replace(
        settings,
        run=settings.run.model_copy(update={"jobs": jobs.model_copy(update={"data": data})}),
    )
    folder = next_job_folder(run_folder, "02-data")
    write_job(
        folder, render_task(settings, "02-data", Task("a test", argv, **options), Path("/nowhere"))
    )
    return folder


@contextmanager
def paused_script(stand_in: Path) -> Iterator[None]:
    """Stop the script in the only job, so that it writes no heartbeat."""
    (job,) = stand_in.glob("*.json")
    # The files that the script writes may be there before the server has recorded its process.
    assert processes.wait_until(lambda: bool(json.loads(job.read_text())["pids"]), 60)
    (script,) = json.loads(job.read_text())["pids"]
    os.killpg(script, signal.SIGSTOP)
    assert processes.wait_until(lambda: is_stopped(script), 60)
    yield
    os.killpg(script, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat").read_text()
    state = status.rpartition(")")[2].split()[0]
    return state == "T"


def end_of(pbs: QueueScheduler, folder: JobFolder) -> JobState:
    assert processes.wait_until(lambda: pbs.state(folder).final, 300), pbs.state(folder)
    return pbs.state(folder).state


def test_a_job_is_submitted_and_its_end_is_known_by_its_files_and_by_the_history(
    pbs, tmp_path, settings
):
    folder = task(tmp_path / "a run", settings, "false")
    assert pbs.submit(folder) == f"pbs-{FIRST_JOB}"
    assert json.loads(folder.record.read_text())["queue_id"] == f"{FIRST_JOB}.stand-in"
    assert end_of(pbs, folder) is JobState.FAILED
    assert pbs.state(folder).reason == JobReason.ENDED.fill(code=1, by="")
    folder.exit_code.unlink()  # as if the disk had been full at the end
    folder.heartbeat.unlink()
    assert processes.wait_until(lambda: pbs.state(folder).final, 60)
    words = {
        True: "F (Exit_status 1), partition debug, on localhost",
        False: "the queue no longer lists the job, which began on",
    }[(tmp_path / "stand-in" / "history").exists()]
    assert pbs.state(folder).reason.startswith(words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "#PBS -l walltime=02:00:00",
            JobMessage.REQUEST_NOT_POSSIBLE.of(
                text=containing(
                    "walltime of 2 h",
                    "limit of queue debug, 1 h",
                    "resources_max.walltime=01:00:00",
                )
            ),
        ),
        (
            "#PBS -l select=3",
            JobMessage.REQUEST_NOT_POSSIBLE.of(
                text=containing("3 nodes are more than queue debug allows per job (2)")
            ),
        ),
        (
            "#PBS -q nowhere",
            JobMessage.REQUEST_NOT_POSSIBLE.of(
                text="there is no queue nowhere; there are debug, prod"
            ),
        ),
        (
            "#PBS -A nobody",
            JobMessage.JOB_REFUSED.of(
                last_words=containing("account nobody is not allowed to submit")
            ),
        ),
    ],
)
def test_what_the_queue_cannot_give_is_refused_and_leaves_nothing(
    pbs, tmp_path, settings, line, words
):
    folder = task(tmp_path / "a run", settings, "true")
    folder.script.write_text(f"#!/bin/bash\n#PBS -q debug\n{line}\ntrue\n")
    with refuses(JobError, words):
        pbs.submit(folder)
    assert not folder.record.exists() and not list((tmp_path / "stand-in").glob("*.json"))


def test_a_server_that_is_down_is_no_end_of_a_job(pbs, tmp_path, settings):
    folder = task(tmp_path / "a run", settings, "sleep", "300")
    pbs.submit(folder)
    assert processes.wait_until(
        lambda: pbs.state(folder).state is JobState.RUNNING and folder.heartbeat.exists(), 60
    )
    (tmp_path / "stand-in" / "down").touch()
    assert pbs.state(folder).state is JobState.RUNNING  # its heartbeat is recent
    with paused_script(tmp_path / "stand-in"):
        folder.heartbeat.write_text("1 1 another-boot\n")
        status = pbs.state(folder)
    assert status.state is JobState.UNKNOWN
    pbs_says = "cannot connect to server"
    assert pbs_says in status.reason
    with pytest.raises(JobError) as caught:
        pbs.submit(JobFolder(task(tmp_path / "other", settings, "true").path))
    unknown = {"speaker": Pbs.speaker, "queue_word": Pbs.queue_word}
    assert says(str(caught.value), JobMessage.QUEUES_UNKNOWN, **unknown)
    assert pbs_says in str(caught.value)
    (tmp_path / "stand-in" / "down").unlink()
    assert pbs.cancel(folder).state is JobState.CANCELLED


def test_a_submission_whose_answer_was_lost_is_found_and_not_doubled(pbs, tmp_path, settings):
    (tmp_path / "stand-in" / "lost").touch()
    folder = task(tmp_path / "a run", settings, "sleep", "300")
    assert pbs.submit(folder) == f"pbs-{FIRST_JOB}"
    assert pbs.submit(folder) == f"pbs-{FIRST_JOB}"
    assert len(list((tmp_path / "stand-in").glob("*.json"))) == 1
    assert pbs.cancel(folder).state is JobState.CANCELLED


def test_an_array_and_what_waits_for_all_of_it(pbs, tmp_path, settings):
    good = task(tmp_path / "a run", settings, "true", array=2, is_array=True)
    pbs.submit(good)
    join = task(tmp_path / "b run", settings, "true")
    pbs.submit(join, after=[good])
    assert (end_of(pbs, join), end_of(pbs, good)) == (JobState.DONE, JobState.DONE)


def test_what_a_failed_array_holds_back_was_deleted_before_it_ran(pbs, tmp_path, settings):
    bad = task(
        tmp_path / "c run", settings, "bash", "-c", "exit $RUNBOOK_ELEMENT", array=2, is_array=True
    )
    pbs.submit(bad)
    never = task(tmp_path / "d run", settings, "true")
    pbs.submit(never, after=[bad])
    has_history = (tmp_path / "stand-in" / "history").exists()
    assert (end_of(pbs, never), end_of(pbs, bad)) == (
        JobState.CANCELLED if has_history else JobState.LOST,
        JobState.FAILED,
    )
    assert not never.started.exists()
    assert pbs.submit(task(tmp_path / "d run", settings, "true")).startswith(
        "pbs-"
    )  # nothing blocks the next job


def test_a_failed_element_before_the_last_fails_the_array_and_what_waits_for_it(
    pbs, tmp_path, settings
):
    """For the array, PBS reports only the exit status from the last element, 0.

    It therefore starts jobs that need the array to succeed (afterok).
    """
    bad = task(
        tmp_path / "c run",
        settings,
        "bash",
        "-c",
        "exit $((1 - RUNBOOK_ELEMENT))",
        array=2,
        is_array=True,
    )
    pbs.submit(bad)
    join = task(tmp_path / "d run", settings, "touch", "joined")
    pbs.submit(join, after=[bad])
    assert (end_of(pbs, join), end_of(pbs, bad)) == (JobState.FAILED, JobState.FAILED)
    element = bad.path / "element-0"
    assert pbs.state(join).reason == JobReason.REFUSED_AFTER.fill(job=element, code=1)
    assert not (tmp_path / "d run" / "joined").exists()


def test_an_array_whose_element_left_no_exit_code_is_not_done(pbs, tmp_path, settings):
    folder = task(tmp_path / "a run", settings, "true", array=2, is_array=True)
    pbs.submit(folder)
    assert end_of(pbs, folder) is JobState.DONE
    for name in ("exit_code", "heartbeat"):  # as if its node had been lost
        (folder.path / "element-0" / name).unlink()
    (folder.path / "element-1" / "heartbeat").unlink()
    assert pbs.state(folder).state is JobState.LOST


def test_a_pending_job_is_pending_and_can_be_cancelled(pbs, tmp_path, settings):
    first = task(tmp_path / "a run", settings, "sleep", "300")
    pbs.submit(first)
    second = task(tmp_path / "b run", settings, "true")
    pbs.submit(second, after=[first])
    assert pbs.state(second).state is JobState.PENDING
    assert pbs.cancel(second).state is JobState.CANCELLED
    assert pbs.cancel(first).state is JobState.CANCELLED


def test_out_and_err_can_be_read_while_the_job_runs(pbs, tmp_path, settings):
    folder = task(
        tmp_path / "a run", settings, "bash", "-c", "echo said; echo complained >&2; sleep 300"
    )
    pbs.submit(folder)
    assert processes.wait_until(
        lambda: folder.err.exists() and "complained" in folder.err.read_text(), 60
    )
    assert folder.out.read_text() == "said\n" and pbs.state(folder).state is JobState.RUNNING
    pbs.cancel(folder)


def test_the_walltime_of_any_job_is_named(pbs, tmp_path, settings):
    """Make the script believe that the job began an hour ago.

    The queue ends the job once its program is ready.
    """
    folder = task(
        tmp_path / "a run",
        settings,
        "bash",
        "-c",
        "trap 'exit 255' TERM; echo trapped; sleep 300 & wait",
        walltime=3600,
    )
    script = folder.script.read_text()
    assert script.count("begin=$now\n") == 1
    folder.script.write_text(script.replace("begin=$now\n", "begin=$((now - 3600))\n"))
    pbs.submit(folder)
    assert processes.wait_until(
        lambda: folder.out.exists() and "trapped" in folder.out.read_text(), 60
    )
    (tmp_path / "stand-in" / "walltime-over").touch()
    assert end_of(pbs, folder) is JobState.TIMEOUT
    by = JobReason.AT.fill(request=JobReason.END_OF_WALLTIME.fill())
    assert pbs.state(folder).reason == JobReason.ENDED.fill(code=255, by=by)


def test_a_job_that_is_deleted_is_no_timeout(pbs, tmp_path, settings):
    folder = task(
        tmp_path / "a run",
        settings,
        "bash",
        "-c",
        "trap 'exit 255' TERM; echo trapped; sleep 300 & wait",
        walltime=60,
    )
    pbs.submit(folder)
    # The job writes its first heartbeat before its program starts, so wait for output from the
    # program. TERM ends a program without a trap with exit code 143, which means stopped.
    assert processes.wait_until(
        lambda: folder.out.exists() and "trapped" in folder.out.read_text(), 60
    )
    Pbs().end(f"{FIRST_JOB}.stand-in")
    assert end_of(pbs, folder) is JobState.FAILED
    by = JobReason.AT.fill(request="SIGTERM")
    assert pbs.state(folder).reason == JobReason.ENDED.fill(code=255, by=by)


def test_the_ranks_of_a_task_are_told_where_to_meet(pbs, tmp_path, settings):
    folder = task(tmp_path / "a run", settings, "bash", "-c", "echo $MASTER_ADDR $MASTER_PORT")
    pbs.submit(folder)
    assert end_of(pbs, folder) is JobState.DONE
    assert folder.out.read_text() == f"localhost {49152 + FIRST_JOB % 16384}\n"


def test_error_numbers_of_pbs_are_not_signals(pbs, tmp_path, settings):
    folder = task(tmp_path / "a run", settings, "true")
    folder.script.write_text("#!/bin/bash\n#PBS -l select=1:system=polaris\ntrue\n")
    with refuses(
        JobError,
        JobMessage.JOB_REFUSED,
        last_words="qsub ended with exit code 187. Its output: qsub: Unknown resource: system",
    ):
        pbs.submit(folder)


def test_an_array_whose_join_is_refused_is_taken_back(pbs, tmp_path, settings, monkeypatch):
    refusal = JobError("no more jobs")

    def refuse_join(self, folder, *, after=()):
        if after:
            raise refusal
        return QueueScheduler.submit(self, folder)

    monkeypatch.setattr(pbs, "submit", refuse_join.__get__(pbs))
    data = settings.run.jobs.data.model_copy(update={"array": 2})
    jobs = settings.run.jobs.model_copy(update={"data": data})
    own = replace(settings, run=settings.run.model_copy(update={"jobs": jobs}))
    run = SimpleNamespace(settings=own, folder=tmp_path / "a run")
    tasks = [Task("shares", ("sleep", "300"), is_array=True), Task("join", ("true",), part="join")]
    with pytest.raises(JobError) as caught:
        task_jobs._submit_tasks(run, "02-data", pbs, tasks)
    assert caught.value is refusal
    assert pbs.state(JobFolder(tmp_path / "a run" / "jobs" / "02-data")).state is JobState.CANCELLED


def test_doctor_says_whether_jobs_are_remembered_and_which_queues_there_are(
    pbs, tmp_path, settings
):
    history = (tmp_path / "stand-in" / "history").exists()
    found = {check.name: (check.verdict, check.value) for check in queue_checks(settings)}
    one_node = PhaseMessage.LIMITS_ASKED.fill(
        nodes="1 node", time_limit=PlanningMessage.QUEUE_TIME.fill()
    )
    two_nodes = PhaseMessage.LIMITS_ASKED.fill(nodes="2 nodes", time_limit="30 min")
    not_kept = ("warn", PhaseMessage.HISTORY_NOT_KEPT.fill())
    queues = {
        "data": ("pass", "debug"),
        "smoke": ("pass", "debug"),
        "training": ("fail", "debug-scaling"),
    }
    limits = {
        "data": ("pass", one_node),
        "environment": ("pass", one_node),
        "smoke": ("pass", two_nodes),
    }
    assert found == {
        "scheduler": ("pass", PhaseMessage.PROGRAM_ANSWERS.fill(program="qstat")),
        "job history": ("pass", "kept") if history else not_kept,
        **{PhaseMessage.QUEUE_OF_JOB.fill(section=name): row for name, row in queues.items()},
        **{PhaseMessage.LIMITS_OF_JOB.fill(section=name): row for name, row in limits.items()},
    }


@pytest.mark.skipif(
    shutil.which("mpiexec") is None, reason="mpiexec is not installed (Debian: mpich)"
)
def test_mpiexec_starts_a_program_once_on_each_host(pbs, tmp_path, settings):
    folder = task(
        tmp_path / "a run",
        settings,
        "bash",
        "-c",
        'echo "rank ${PMI_RANK-none}"',
        on_each_node=True,
    )
    pbs.submit(folder)
    assert end_of(pbs, folder) is JobState.DONE, folder.err.read_text()
    assert folder.out.read_text() == "rank 0\n"

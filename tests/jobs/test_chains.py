"""Jobs that share a folder and follow each other: queued together, shown as one job, and cancelled
together."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runbook.core.checks import counted
from runbook.core.errors import JobError
from runbook.jobs.job_folder import JobFolder, JobRecord, JobState
from runbook.jobs.pbs import Pbs
from runbook.jobs.queue import Queue, QueueJob, QueueScheduler, QueueSilentError
from runbook.jobs.slurm import Slurm
from runbook.phases.job_control.ended_jobs import decision_of_job
from runbook.runs.messages import RunMessage
from runbook.runs.status import _request_stop


class FakeQueue:
    """A queue that numbers submitted jobs, and reports the states that a test sets."""

    kind = "slurm"

    def __init__(self) -> None:
        self.submitted: list[tuple[str, str]] = []
        self.states: dict[str, JobState] = {}
        self.exit_codes: dict[str, int] = {}
        self.ended: list[str] = []
        self.most_jobs = 10

    def submit(self, folder, token, after, follows=""):
        if len(self.submitted) == self.most_jobs:
            raise JobError("Slurm refused the job: QOSMaxSubmitJobPerUserLimit")
        self.submitted.append((token, follows))
        return str(12 + len(self.submitted))

    def ask(self, job):
        state = self.states.get(job)
        if not state:
            return None
        return QueueJob(job, state, str(state).upper(), exit_code=self.exit_codes.get(job))

    def end(self, job):
        self.ended.append(job)
        self.states[job] = JobState.CANCELLED


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue()


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    job = JobFolder(tmp_path / "jobs" / "04-training")
    job.path.mkdir(parents=True)
    JobRecord(job_id="slurm-12", queue_id="12", token="mark", submitted=time.time()).write(job)
    return job


@pytest.fixture
def scheduler(queue: FakeQueue, folder: JobFolder) -> QueueScheduler:
    made = QueueScheduler(queue)
    assert made.queue_followers(folder, 2) == ["slurm-13", "slurm-14"]
    return made


def began(folder: JobFolder, number: int) -> None:
    folder.started.write_text(
        f"job slurm-{number}\npid 1\nstart 1\nboot_id b\nhost h\nnamespace n\ntime 1\n"
    )


def ended(folder: JobFolder, code: int, action: str) -> None:
    folder.exit_code.write_text(f"{code}\n")
    folder.reason.write_text("rank 0 ended\n")
    folder.decision.write_text(f"{action}\nelsewhere\n\nwhy\n")


def test_a_decision_that_is_half_written_is_none(tmp_path):
    folder = JobFolder(tmp_path / "jobs" / "04-training")
    folder.path.mkdir(parents=True)
    ended(folder, 1, "stop")
    assert decision_of_job(folder).why == "why"
    folder.decision.write_text("stop\nelsewhere\n")
    assert decision_of_job(folder) is None


def test_each_job_of_a_chain_waits_for_the_one_before_and_is_written_down(queue, scheduler, folder):
    assert queue.submitted == [("mark-2", "12"), ("mark-3", "13")]
    assert folder.chain.read_text().splitlines() == ["slurm-12", "slurm-13", "slurm-14"]


def test_what_the_queue_took_is_written_down_where_it_refuses_the_next(queue, folder):
    queue.most_jobs = 1
    with pytest.raises(JobError) as caught:
        QueueScheduler(queue).queue_followers(folder, 2)
    assert "QOSMaxSubmitJobPerUserLimit" in str(caught.value)
    assert folder.chain.read_text() == "slurm-12\nslurm-13\n"


@pytest.mark.parametrize(
    ("code", "action", "state"),
    [
        (75, "go on", JobState.PENDING),
        (1, "go on", JobState.PENDING),
        (1, "stop", JobState.FAILED),
        (0, "done", JobState.DONE),
    ],
)
def test_a_folder_is_pending_while_the_next_job_of_its_chain_will_train(
    queue, scheduler, folder, code, action, state
):
    began(folder, 12)
    ended(folder, code, action)
    queue.states = {"13": JobState.PENDING, "14": JobState.PENDING}
    status = scheduler.state(folder)
    assert status.state is state
    assert status.job_id == ("slurm-13" if state is JobState.PENDING else "slurm-12")


def test_a_job_that_takes_over_is_no_end_of_the_chain(queue, scheduler, folder):
    """A job moves the decision aside before it moves the start record from the previous job
    (chain.sh.j2).
    """
    began(folder, 12)
    ended(folder, 137, "go on")
    folder.decision.rename(folder.path / "decision.slurm-12")
    queue.states = {"13": JobState.RUNNING, "14": JobState.PENDING}
    status = scheduler.state(folder)
    assert (status.state, status.job_id) == (JobState.PENDING, "slurm-13")


def test_a_job_that_has_taken_over_while_it_was_asked_for_counts(queue, scheduler, folder):
    began(folder, 12)
    ended(folder, 137, "go on")

    def take_over(job):
        if job == "12":
            return
        for name in ("decision", "exit_code", "reason"):
            (folder.path / name).unlink(missing_ok=True)
        began(folder, 14)
        folder.heartbeat.write_text(f"{time.time():.0f} 1.0 another\n")
        return

    queue.ask = take_over
    status = scheduler.state(folder)
    assert (status.state, status.job_id) == (JobState.RUNNING, "slurm-14")


def test_a_queue_that_does_not_answer_is_no_end_of_the_chain(queue, scheduler, folder, monkeypatch):
    """A watcher that took the silence to mean that the chain has ended would start a second one in
    the same folders.
    """
    began(folder, 12)
    ended(folder, 75, "go on")

    def silent(job):
        raise QueueSilentError("squeue: connection refused")

    monkeypatch.setattr(queue, "ask", silent)
    status = scheduler.state(folder)
    assert status.state is JobState.UNKNOWN
    assert not status.final


def test_a_later_job_of_the_chain_trains_where_the_next_one_was_cancelled(queue, scheduler, folder):
    began(folder, 12)
    ended(folder, 75, "go on")
    queue.states = {"13": JobState.FAILED, "14": JobState.PENDING}
    status = scheduler.state(folder)
    assert (status.state, status.job_id) == (JobState.PENDING, "slurm-14")


def test_a_job_that_was_killed_with_its_script_is_followed(queue, scheduler, folder):
    began(folder, 12)
    queue.states = {"12": JobState.FAILED, "13": JobState.PENDING}
    assert scheduler.state(folder).state is JobState.PENDING


@pytest.mark.parametrize("code", [137, 0])
def test_the_queues_own_exit_code_of_a_killed_job_ends_no_chain(queue, scheduler, folder, code):
    """A killed job leaves no exit_code file, and chain.sh reads only that file."""
    began(folder, 12)
    queue.states = {"12": JobState.LOST, "13": JobState.PENDING}
    queue.exit_codes = {"12": code}
    assert scheduler.state(folder).state is JobState.PENDING


def test_an_old_decision_of_a_requeued_job_hides_no_new_one(queue, scheduler, folder):
    began(folder, 12)
    ended(folder, 1, "stop")
    (folder.path / "decision.slurm-12").write_text("go on\nelsewhere\n\nwhy\n")
    queue.states = {"13": JobState.PENDING}
    assert scheduler.state(folder).state is JobState.FAILED


def test_a_job_that_is_moving_the_files_of_the_one_before_has_not_ended(queue, scheduler, folder):
    queue.states = {"12": JobState.FAILED, "13": JobState.RUNNING}
    assert not folder.started.exists()
    assert scheduler.state(folder).state is JobState.PENDING


def test_a_chain_that_is_used_up_has_ended_as_its_last_job(queue, scheduler, folder):
    began(folder, 14)
    ended(folder, 75, "go on")
    status = scheduler.state(folder)
    assert (status.state, status.job_id) == (JobState.STOPPED, "slurm-14")


def test_a_person_who_stops_a_job_stops_its_chain(queue, scheduler, folder):
    began(folder, 12)
    ended(folder, 75, "go on")
    queue.states = {"13": JobState.PENDING}
    folder.stop_requested.touch()
    assert scheduler.state(folder).state is JobState.STOPPED


def test_cancelling_takes_all_jobs_of_the_chain_out_of_the_queue(queue, scheduler, folder):
    queue.states = dict.fromkeys(("12", "13", "14"), JobState.PENDING)
    assert scheduler.cancel(folder).state is JobState.CANCELLED
    assert sorted(queue.ended) == ["12", "13", "14"]


@pytest.mark.parametrize(
    ("kind", "option"),
    [(Slurm, "--dependency=afterany:12"), (Pbs, "depend=afterany:12")],
)
def test_both_queues_start_the_next_job_however_the_one_before_ended(kind: type[Queue], option):
    argv, _ = kind().submission("mark", [], "12")
    assert option in argv


def test_a_chain_that_is_stopped_between_two_jobs_ends_and_says_so(queue, scheduler, folder):
    began(folder, 12)
    ended(folder, 75, "go on")
    queue.states = {"13": JobState.PENDING, "14": JobState.PENDING}
    said = _request_stop(folder, scheduler)
    waiting = counted(2, "waiting job")
    assert said == RunMessage.CHAIN_ENDS.fill(job_name="04-training", waiting=waiting)
    assert queue.ended == ["13", "14"]
    assert scheduler.state(folder).state is JobState.STOPPED

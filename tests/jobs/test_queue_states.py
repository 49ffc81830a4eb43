"""The state of a queued job, according to its files and, if the queue answers, to the queue."""

import json
import os
import threading
import time
from pathlib import Path

import pytest
from suite.messages import containing, refuses, says

from runbook.core.errors import JobError
from runbook.jobs.job_folder import JobFolder, JobState, heartbeat_age
from runbook.jobs.messages import JobMessage, JobReason
from runbook.jobs.queue import LostAnswerError, QueueJob, QueueScheduler, QueueSilentError


class FakeQueue:
    """A queue with the answers that a test sets.

    None: it does not know the job. An error: it does not answer.
    """

    kind = "slurm"

    def __init__(self):
        self.answer = None
        self.asked = 0
        self.submits = []
        self.on_submit = lambda: "12"
        self.found = None

    def refuse(self, script):
        pass

    def submit(self, folder, token, after):
        self.submits.append((token, tuple(after)))
        return self.on_submit()

    def find(self, folder, token):
        return self._say(self.found)

    def ask(self, job):
        self.asked += 1
        return self._say(self.answer)

    def end(self, job):
        self.answer = QueueJob(job, JobState.CANCELLED, "CANCELLED", "")

    def send(self, job, signal_name):
        pass

    def queues(self, names):
        return []

    @staticmethod
    def _say(answer):
        if isinstance(answer, Exception):
            raise answer
        return answer


SILENT = QueueSilentError("squeue said: Unable to contact slurm controller")


@pytest.fixture
def queue():
    return FakeQueue()


@pytest.fixture
def scheduler(queue, monkeypatch):
    monkeypatch.setattr("runbook.jobs.queue.ASK_SECONDS", 0.0)
    return QueueScheduler(queue)


@pytest.fixture
def folder(tmp_path):
    made = JobFolder(tmp_path / "run" / "jobs" / "04-training")
    made.path.mkdir(parents=True)
    made.script.write_text("#!/bin/bash\n#SBATCH --partition=main\ntrue\n")
    return made


def begin(folder: JobFolder, beat_seconds_ago: float = 0.0, job: str = "slurm-12") -> None:
    folder.started.write_text(
        f"job {job}\npid 1\nstart 1\nboot_id b\nhost node1\nnamespace n\ntime {time.time():.0f}\n"
    )
    folder.heartbeat.write_text(f"{time.time() - beat_seconds_ago:.0f} 1 another-machine\n")


def said(state, word="", **more):
    return QueueJob("12", state, word or str(state).upper(), "", **more)


def test_a_job_that_gives_signs_of_life_runs_and_the_queue_is_not_asked(scheduler, queue, folder):
    scheduler.submit(folder)
    begin(folder)
    queue.answer = SILENT
    assert scheduler.state(folder).state is JobState.RUNNING
    assert queue.asked == 0


@pytest.mark.parametrize(
    ("answer", "beat", "state"),
    [
        (SILENT, 60, JobState.UNKNOWN),
        (SILENT, None, JobState.UNKNOWN),
        (
            None,
            60,
            JobState.UNKNOWN,
        ),  # forgotten, but seen a minute ago, because files on a network arrive late
        (None, 600, JobState.LOST),
        (None, None, JobState.LOST),
        (said(JobState.RUNNING), 600, JobState.RUNNING),
        (said(JobState.PENDING), 600, JobState.PENDING),
        (
            said(JobState.DONE, "COMPLETED"),
            60,
            JobState.RUNNING,
        ),  # files from the job may still arrive
        (said(JobState.DONE, "COMPLETED"), 600, JobState.DONE),
        (said(JobState.FAILED, exit_code=1), 60, JobState.FAILED),
        (said(JobState.FAILED, exit_code=75), 60, JobState.STOPPED),
        (said(JobState.CANCELLED), None, JobState.CANCELLED),
        (said(JobState.TIMEOUT), 600, JobState.TIMEOUT),
        (said(JobState.LOST, "NODE_FAIL"), 600, JobState.LOST),
        (said(JobState.UNKNOWN, "DREAMING"), 600, JobState.UNKNOWN),
    ],
)
def test_what_is_said_of_a_job_without_an_exit_code(scheduler, queue, folder, answer, beat, state):
    scheduler.submit(folder)
    if beat is not None:
        begin(folder, beat)
    queue.answer = answer
    status = scheduler.state(folder)
    assert (status.state, status.job_id) == (state, "slurm-12")
    assert status.reason


def test_a_job_that_the_queue_forgot_ended_with_its_last_sign_of_life(scheduler, queue, folder):
    scheduler.submit(folder)
    begin(folder, 600)
    seen = float(folder.heartbeat.read_text().split()[0])
    queue.answer = None
    status = scheduler.state(folder)
    assert (status.state, status.ended) == (JobState.LOST, seen)
    moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seen))
    assert says(
        status.reason, JobMessage.FORGOTTEN_BY_QUEUE, course=containing(f"last seen {moment}")
    ), "an age would grow each time it is asked"


def test_an_exit_code_is_believed_before_the_queue_but_for_a_job_that_waits_again(
    scheduler, queue, folder
):
    scheduler.submit(folder)
    begin(folder)
    folder.exit_code.write_text("75 \n")
    for answer in (SILENT, None, said(JobState.FAILED), said(JobState.CANCELLED)):
        queue.answer = answer
        assert scheduler.state(folder).state is JobState.STOPPED
    queue.answer = said(
        JobState.RUNNING, "COMPLETING"
    )  # as after a node is lost, before the job is back in the queue
    assert not scheduler.state(folder).final
    os.utime(folder.exit_code, (time.time() - 700, time.time() - 700))
    assert (
        scheduler.state(folder).state is JobState.STOPPED
    )  # it is stuck in the queue, but the job has ended
    os.utime(folder.exit_code)
    queue.answer = said(JobState.PENDING)
    status = scheduler.state(folder)
    assert (status.state, status.reason) == (
        JobState.PENDING,
        JobMessage.QUEUED_AGAIN.fill(reason=JobReason.EXIT_CODE.fill(code=75)),
    )
    folder.exit_code.write_text("0  \n")
    assert scheduler.state(folder).state is JobState.DONE


@pytest.mark.parametrize(
    ("beat", "answer", "state"),
    [
        (10, SILENT, JobState.RUNNING),  # a heartbeat within the last 20 s is enough
        (30, SILENT, JobState.UNKNOWN),
        (100, None, JobState.UNKNOWN),  # files from the last 120 s may not have arrived yet
        (140, None, JobState.LOST),
    ],
)
def test_signs_of_life_count_for_20_seconds_alone_and_for_120_beside_the_queue(
    scheduler, queue, folder, beat, answer, state
):
    scheduler.submit(folder)
    begin(folder, beat)
    queue.answer = answer
    assert scheduler.state(folder).state is state


@pytest.mark.parametrize(
    ("age", "answer", "state"),
    [
        (500, said(JobState.RUNNING, "COMPLETING"), JobState.RUNNING),
        (700, said(JobState.RUNNING, "COMPLETING"), JobState.STOPPED),
        (3400, said(JobState.PENDING), JobState.PENDING),
        (3800, said(JobState.PENDING), JobState.STOPPED),
    ],
)
def test_a_queue_may_clean_up_for_10_minutes_and_start_a_job_again_for_an_hour(
    scheduler, queue, folder, age, answer, state
):
    scheduler.submit(folder)
    begin(folder)
    folder.exit_code.write_text("75 \n")
    os.utime(folder.exit_code, (time.time() - age, time.time() - age))
    queue.answer = answer
    assert scheduler.state(folder).state is state


@pytest.mark.parametrize(("seconds_ahead", "is_dated"), [(40, True), (80, False)])
def test_a_sign_of_life_may_lie_a_minute_in_the_future(folder, seconds_ahead, is_dated):
    begin(folder, -seconds_ahead)
    assert (heartbeat_age(folder) is not None) == is_dated


def test_an_exit_code_that_is_half_written_is_none(scheduler, queue, folder):
    scheduler.submit(folder)
    begin(folder, 600)
    folder.exit_code.write_text("  \n")
    queue.answer = said(JobState.RUNNING)
    assert scheduler.state(folder).state is JobState.RUNNING


def test_a_queue_is_not_asked_about_a_job_all_the_time(queue, folder, monkeypatch):
    monkeypatch.setattr("runbook.jobs.queue.ASK_SECONDS", 3600.0)
    scheduler = QueueScheduler(queue)
    scheduler.submit(folder)
    queue.answer = said(JobState.PENDING)
    assert [scheduler.state(folder).state for _ in range(5)] == [JobState.PENDING] * 5
    assert queue.asked == 1


def test_a_refused_job_leaves_its_folder_for_the_next(scheduler, queue, folder):
    refusal = JobError("sbatch said: invalid account")

    def refuse():
        raise refusal

    queue.on_submit = refuse
    with pytest.raises(JobError) as caught:
        scheduler.submit(folder)
    assert caught.value is refusal
    assert not folder.record.exists()


def test_a_lost_answer_is_looked_up_and_an_unknown_one_is_never_submitted_twice(
    scheduler, queue, folder
):
    def lose():
        raise LostAnswerError("The answer of sbatch was lost.")

    queue.on_submit = lose
    queue.found = SILENT
    unknown = JobMessage.SUBMISSION_UNKNOWN.of(
        lost="The answer of sbatch was lost.", silent=str(SILENT)
    )
    with refuses(JobError, unknown):
        scheduler.submit(folder)
    assert scheduler.state(folder).state is JobState.UNKNOWN
    with pytest.raises(
        QueueSilentError
    ):  # and it is not submitted a second time while the queue does not answer
        scheduler.submit(folder)
    assert len(queue.submits) == 1
    queue.found, queue.answer = "12", said(JobState.PENDING)
    assert scheduler.submit(folder) == "slurm-12"
    assert len(queue.submits) == 1
    assert json.loads(folder.record.read_text())["queue_id"] == "12"


def test_to_stop_gently_a_file_is_made_that_every_rank_sees(scheduler, queue, folder):
    scheduler.submit(folder)
    begin(folder)
    scheduler.request_stop(folder)
    assert folder.stop.exists()
    folder.exit_code.write_text("75 \n")
    with refuses(JobError, JobMessage.NOT_RUNNING):
        scheduler.request_stop(folder)


def test_a_job_that_has_saved_is_not_ended_by_the_queue_while_its_starter_cleans_up(
    scheduler, queue, folder
):
    scheduler.submit(folder)
    begin(folder)
    queue.answer = said(JobState.RUNNING)
    (folder.path / "rank-0").write_text("75\n")  # real pyxis took 20 s more to remove the container
    finish = threading.Timer(1.0, lambda: folder.exit_code.write_text("75 \n"))
    finish.start()
    status = scheduler.cancel(folder, grace_seconds=0.1)
    finish.join()
    assert (status.state, status.exit_code) == (JobState.CANCELLED, 75)
    assert queue.answer.state is JobState.RUNNING


def test_a_starter_that_never_ends_after_its_ranks_is_ended_by_the_queue(
    scheduler, queue, folder, monkeypatch
):
    monkeypatch.setattr("runbook.jobs.queue.CLEANUP_SECONDS", 0.2)
    scheduler.submit(folder)
    begin(folder)
    queue.answer = said(JobState.RUNNING)
    (folder.path / "rank-0").write_text("75\n")
    scheduler.cancel(folder, grace_seconds=0.1)
    assert queue.answer.state is JobState.CANCELLED


def test_a_job_that_waits_again_after_an_end_is_taken_out_of_the_queue(scheduler, queue, folder):
    scheduler.submit(folder)
    begin(folder, 600)
    folder.exit_code.write_text("75 \n")
    queue.answer = said(JobState.PENDING)
    assert scheduler.cancel(folder).state is JobState.CANCELLED
    assert queue.answer.state is JobState.CANCELLED


def test_what_a_job_waits_for_is_named_to_the_queue(scheduler, queue, folder):
    queue.on_submit = lambda: "12[].server"
    scheduler.submit(folder)
    other = JobFolder(Path(folder.path.parent / "05-last"))
    other.path.mkdir()
    other.script.write_text("true\n")
    scheduler.submit(other, after=[folder])
    assert queue.submits[-1][1] == ("12[].server",)
    assert scheduler.state(folder).job_id == "slurm-12"

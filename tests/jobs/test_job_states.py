"""Job states when the process cannot be queried: after a reboot, on another host, with odd clocks
or broken files.
"""

import json
import os
import time
from dataclasses import asdict

import pytest
from pydantic import TypeAdapter
from suite.messages import containing, refuses, says

from runbook.core import processes
from runbook.core.errors import JobError
from runbook.core.messages import CoreMessage
from runbook.core.processes import Identity
from runbook.core.units import show_duration
from runbook.jobs import get_scheduler, job_folder
from runbook.jobs.job_folder import (
    JobFolder,
    JobState,
    latest_job_folder,
    next_job_folder,
    submitted_job_folders,
)
from runbook.jobs.local import LocalScheduler
from runbook.jobs.messages import JobMessage, JobReason
from runbook.params.schema.site import Hardware, Site

OTHER_BOOT = "00000000-0000-0000-0000-000000000000"
SCHEDULER = LocalScheduler()


@pytest.fixture
def job(tmp_path):
    """Create the files that a job script writes. This process plays the role of the script."""
    folder = JobFolder(tmp_path / "run" / "jobs" / "04-training")
    folder.path.mkdir(parents=True)
    return Job(folder, processes.identify(os.getpid()))


class Job:
    def __init__(self, folder, identity):
        self.folder = folder
        self.identity = identity

    def started(self, **changes):
        lines = {"job": "local-0123", **asdict(self.identity), "time": 1000} | changes
        self.folder.started.write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
        return self

    def heartbeat(self, *, clock=0.0, uptime=0.0, boot_id=OTHER_BOOT):
        """Write a heartbeat that is `clock` seconds old by the other machine's clock and `uptime`
        seconds old by ours."""
        self.folder.heartbeat.write_text(
            f"{time.time() - clock:.0f} {processes.uptime_seconds() - uptime:.2f} {boot_id}\n"
        )
        return self

    def exit_code(self, code, reason=""):
        self.folder.exit_code.write_text(f"{code}\n")
        if reason:
            self.folder.reason.write_text(reason + "\n")
        return self

    @property
    def status(self):
        return SCHEDULER.state(self.folder)


def test_a_process_that_runs_is_a_job_that_runs(job):
    status = job.started().status
    assert (status.state, status.job_id, status.started) == (JobState.RUNNING, "local-0123", 1000.0)
    assert not status.final


def test_a_rebooted_machines_job_is_lost_although_its_process_number_is_in_use(job):
    status = job.started(boot_id=OTHER_BOOT).heartbeat(clock=1).status
    assert status.state is JobState.LOST
    assert status.reason == JobMessage.MACHINE_REBOOTED.fill(host=processes.host_name())


def test_a_lost_job_ended_with_its_last_sign_of_life_and_grows_no_older(job):
    seen = time.time() - 700
    for sign in (f"{seen:.0f} 1 {OTHER_BOOT}\n", ""):
        job.started(boot_id=OTHER_BOOT).folder.heartbeat.write_text(sign)
        status = job.status
        assert status.final
        assert (status.started, status.ended) == (1000.0, round(seen) if sign else 1000.0)


def test_a_reboot_between_submission_and_start_is_lost_too(job):
    record = {"job_id": "local-0123", "process": asdict(job.identity) | {"boot_id": OTHER_BOOT}}
    job.folder.record.write_text(json.dumps(record))
    assert job.status.state is JobState.LOST


def test_a_later_process_of_the_same_number_is_not_the_job(job):
    status = job.started(start=job.identity.start - 1).status
    assert status.state is JobState.LOST
    assert status.reason == JobMessage.PROCESS_VANISHED.fill(pid=os.getpid())


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (0, JobState.DONE),
        (75, JobState.STOPPED),
        (1, JobState.FAILED),
        (2, JobState.FAILED),
        (137, JobState.FAILED),
    ],
)
def test_an_exit_code_counts_more_than_everything_else(code, state, job):
    # The clock for file times may be a few milliseconds behind.
    before = time.time() - 1
    status = job.started(boot_id=OTHER_BOOT).exit_code(code, "why").status
    assert (status.state, status.exit_code, status.reason) == (state, code, "why")
    assert status.final
    assert before <= status.ended <= time.time()


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_copied_job_ended_when_it_did_and_not_when_it_was_copied(is_copied, job):
    """A copy has new modification times: a job that took half a minute was shown with nine minutes."""
    job.started(boot_id=OTHER_BOOT).exit_code(0)
    job.folder.heartbeat.write_text(f"1030 1 {OTHER_BOOT}\n")
    os.utime(job.folder.exit_code, (2000, 2000))
    copied_at = 2000 if is_copied else 1000
    os.utime(job.folder.started, (copied_at, copied_at))
    assert job.status.ended == (1030 if is_copied else 2000)


def test_markers_say_why_a_job_ended_but_a_finished_one_is_done(job):
    job.started().exit_code(75)
    job.folder.timed_out.touch()
    assert job.status.state is JobState.TIMEOUT
    job.folder.cancelled.touch()
    assert job.status.state is JobState.CANCELLED
    job.exit_code(0)
    assert job.status.state is JobState.DONE
    assert job.status.reason == JobReason.EXIT_CODE.fill(code=0)


@pytest.mark.parametrize("text", ["", "\n", "x\n", "-1\n", "0x0\n", "²\n"])
def test_a_broken_exit_code_is_no_exit_code(text, job):
    job.started().folder.exit_code.write_text(text)
    assert job.status.state is JobState.RUNNING


class TestOtherHost:
    @pytest.fixture
    def job(self, job):
        return job.started(boot_id=OTHER_BOOT, host="login2", pid=4711)

    @pytest.mark.parametrize("seconds", [0, 100, -50])
    def test_a_fresh_sign_of_life_is_a_job_that_runs(self, seconds, job):
        status = job.heartbeat(clock=seconds).status
        assert status.state is JobState.RUNNING
        assert status.reason.startswith("process 4711 on login2, seen ")

    def test_an_old_sign_of_life_is_unknown_and_says_where_to_look(self, job):
        status = job.heartbeat(clock=3690).status
        assert status.state is JobState.UNKNOWN
        assert not status.final
        sign_of_life = JobMessage.NO_SIGN_OF_LIFE.fill(age="1 h 1 min")
        sighting = JobMessage.RAN_ELSEWHERE.fill(host="login2", sign_of_life=sign_of_life)
        assert status.reason == JobMessage.CANCEL_SAYS_SO.fill(sighting=sighting)

    def test_a_sign_of_life_from_the_future_is_unknown(self, job):
        status = job.heartbeat(clock=-3600).status
        assert (status.state, job_folder.heartbeat_age(job.folder)) == (JobState.UNKNOWN, None)
        assert says(status.reason, JobMessage.NO_DATED_SIGN_OF_LIFE)

    @pytest.mark.parametrize("text", ["", "nan nan x", "inf 1 x", "1", "a b c\n"])
    def test_a_broken_sign_of_life_is_unknown(self, text, job):
        job.folder.heartbeat.write_text(text)
        assert job.status.state is JobState.UNKNOWN

    def test_cancelling_it_asks_it_through_its_folder_and_takes_the_persons_word(self, job):
        job.heartbeat(clock=3690)
        status = SCHEDULER.cancel(job.folder, grace_seconds=0.1)
        assert status.state is JobState.CANCELLED
        assert status.reason == JobMessage.CANCELLED_ELSEWHERE.fill(
            sign_of_life=JobMessage.NO_SIGN_OF_LIFE.fill(age=show_duration(3690)), host="login2"
        )
        assert job.folder.cancelled.exists()

    def test_one_that_lives_is_not_called_cancelled_before_it_has_ended(self, job):
        job.heartbeat()
        assert SCHEDULER.cancel(job.folder, grace_seconds=0.1).state is JobState.RUNNING
        job.exit_code(75, "saved and stopped at the request to cancel")
        assert job.status.state is JobState.CANCELLED

    def test_it_cannot_be_stopped_from_here(self, job):
        with refuses(JobError, JobMessage.RUNS_ELSEWHERE, where="login2"):
            SCHEDULER.request_stop(job.heartbeat().folder)

    def test_it_is_not_submitted_again(self, job):
        job.folder.script.write_text("exit 0\n")
        with refuses(JobError, JobMessage.FOLDER_HOLDS_JOB, state="unknown"):
            SCHEDULER.submit(job.folder)
        following = next_job_folder(job.folder.run_folder, "04-training")
        following.path.mkdir()
        following.script.write_text("exit 0\n")
        with refuses(JobError, JobMessage.SAME_FILES):
            SCHEDULER.submit(following)

    def test_another_container_of_this_machine_is_another_host(self, job):
        job.started(namespace="pid:[1]")
        assert job.heartbeat(uptime=1, boot_id=processes.boot_id()).status.state is JobState.RUNNING
        assert (
            job.heartbeat(uptime=1000, boot_id=processes.boot_id()).status.state is JobState.UNKNOWN
        )


def test_on_one_machine_a_changed_clock_does_not_change_the_age(job):
    for clock in (-10_000, 0, 10_000):
        job.started().heartbeat(clock=clock, uptime=42, boot_id=processes.boot_id())
        assert 41 < job_folder.heartbeat_age(job.folder) < 45


def test_an_interrupted_submission_is_pending_for_a_moment_then_lost(job):
    record = {
        "job_id": "local-0123",
        "host": processes.host_name(),
        "boot_id": processes.boot_id(),
        "process": None,
    }
    job.folder.record.write_text(json.dumps(record | {"uptime": processes.uptime_seconds()}))
    assert (job.status.state, job.status.reason) == (JobState.PENDING, "being submitted")
    job.folder.record.write_text(json.dumps(record | {"uptime": processes.uptime_seconds() - 60}))
    assert (job.status.state, job.status.reason) == (
        JobState.LOST,
        JobMessage.SUBMISSION_INTERRUPTED.fill(),
    )
    job.folder.record.write_text(json.dumps(record | {"boot_id": OTHER_BOOT, "host": "login2"}))
    assert (job.status.state, job.status.reason) == (
        JobState.UNKNOWN,
        JobMessage.SUBMITTED_ELSEWHERE.fill(host="login2"),
    )


@pytest.mark.jobs
def test_an_interrupted_submission_is_made_good(bench):
    folder = bench.write("print('ran')", ranks=1)
    record = {
        "job_id": "local-0123",
        "host": processes.host_name(),
        "boot_id": processes.boot_id(),
        "process": None,
    }
    folder.record.write_text(json.dumps(record | {"uptime": processes.uptime_seconds() - 60}))
    assert bench.scheduler.submit(folder) != "local-0123"
    assert bench.wait(folder).state is JobState.DONE
    assert folder.out.read_text() == "ran\n"


def test_a_folder_without_a_job_or_a_script_is_told(job):
    with refuses(
        JobError,
        JobMessage.NO_JOB_SUBMITTED,
        folder=containing("04-training"),
        record_name="job.json",
    ):
        SCHEDULER.state(job.folder)
    with refuses(JobError, JobMessage.SCRIPT_MISSING, script=containing("job.sh")):
        SCHEDULER.submit(job.folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Invalid JSON"),
        ("[]", "Input should be an object"),
        ('{"a": 1}', "job_id: Field required"),
        ('{"job_id": 7}', "job_id: Input should be a valid string"),
        ('{"job_id": "7", "submitted": "soon"}', "submitted: Input should be a valid number"),
        ('{"job_id": "7", "process": {"pid": 1}}', "process: start: Field required"),
        ('{"job_id": "7", "process": [1]}', "process: Input should be"),
    ],
)
def test_a_damaged_record_is_told(text, message, job):
    job.folder.record.write_text(text)
    with refuses(
        JobError,
        CoreMessage.RECORD_UNREADABLE,
        path=job.folder.record,
        meaning="the record of a job",
        problem=containing(message),
    ):
        SCHEDULER.state(job.folder)


def test_a_start_note_that_cannot_be_read_is_unknown(job):
    job.folder.started.write_text("job\npid x\n")
    status = job.status
    assert status.state is JobState.UNKNOWN
    assert says(status.reason, JobMessage.START_NOTE_DAMAGED)


def test_job_folders_are_numbered_and_only_submitted_ones_count(tmp_path):
    assert latest_job_folder(tmp_path, "03-smoke-test") is None
    assert next_job_folder(tmp_path, "03-smoke-test").path == tmp_path / "jobs" / "03-smoke-test"
    for name in [
        "03-smoke-test",
        "03-smoke-test-2",
        "03-smoke-test-10",
        "03-smoke-test-x",
        "03-smoke-test-02",
    ]:
        (tmp_path / "jobs" / name).mkdir(parents=True)
        (tmp_path / "jobs" / name / "job.json").write_text("{}")
    (tmp_path / "jobs" / "03-smoke-test-3").mkdir()
    names = [folder.path.name for folder in submitted_job_folders(tmp_path, "03-smoke-test")]
    assert names == ["03-smoke-test", "03-smoke-test-2", "03-smoke-test-10"]
    assert latest_job_folder(tmp_path, "03-smoke-test").path.name == "03-smoke-test-10"
    assert next_job_folder(tmp_path, "03-smoke-test").path.name == "03-smoke-test-3"
    assert latest_job_folder(tmp_path, "03-smoke") is None


def test_a_site_gets_its_scheduler():
    hardware = Hardware(device="cpu", devices_per_node=1)
    local = Site(site="here", title="t", scheduler="local", hardware=hardware)
    kinds = [
        get_scheduler(local.model_copy(update={"scheduler": kind})).kind
        for kind in ("local", "slurm", "pbs")
    ]
    assert kinds == ["local", "slurm", "pbs"]


def test_last_words_are_those_at_the_end(tmp_path):
    log = tmp_path / "err"
    assert job_folder.log_tail(log) == []
    log.write_bytes(b"first\n" + b"x" * 50_000 + b"\n\xff last but one\nlast\n")
    assert job_folder.log_tail(log, 2) == ["\N{REPLACEMENT CHARACTER} last but one", "last"]


def test_identities_survive_json():
    identity = processes.identify(os.getpid())
    assert TypeAdapter(Identity).validate_json(json.dumps(asdict(identity))) == identity
    assert identity.start > 0
    assert identity.boot_id == processes.boot_id()

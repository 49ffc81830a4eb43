"""What is restarted after a job has ended, what is not, and why."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runbook.jobs.job_end import WILL_REPEAT, EndCause, JobEnd
from runbook.jobs.job_folder import JobFolder, JobState, JobStatus
from runbook.next_job.decisions import RECOVERY_SECONDS, Attempt, decide_restart
from runbook.next_job.messages import NextJobMessage
from runbook.phases.job_control.ended_jobs import read_attempt
from runbook.plan_file.job_ends import Action
from runbook.results.failures import kinds
from runbook.results.failures.kinds import KINDS

FAILED = Attempt(
    "04-training",
    JobEnd(JobState.FAILED, exit_code=1, cause=EndCause.OTHER),
    began_at=0,
    reached=8,
    reason="rank 0 failed (exit code 1)",
    failure="RuntimeError: no such thing",
)


def ended_as(state: JobState, exit_code: int | None = 1, cause: EndCause | None = None, **changes):
    failure = str(cause or "")
    return replace(FAILED, end=JobEnd(state, exit_code, cause=cause), failure=failure, **changes)


def failed_by(cause: EndCause, **changes):
    return ended_as(JobState.FAILED, cause=cause, **changes)


def after(*attempts: Attempt, budget: int = 3):
    return decide_restart(attempts, budget)


@pytest.mark.parametrize(
    ("attempt", "action", "why"),
    [
        (ended_as(JobState.DONE, 0), Action.DONE, "finished"),
        (ended_as(JobState.STOPPED, 75), Action.GO_ON, "rank 0 failed"),
        (ended_as(JobState.LOST, None, EndCause.KILLED), Action.GO_ON, "killed from outside"),
        (FAILED, Action.GO_ON, "RuntimeError"),
        (ended_as(JobState.CANCELLED), Action.STOP, "a person must decide"),
        (ended_as(JobState.UNKNOWN), Action.STOP, "a person must decide"),
        (ended_as(JobState.FAILED, 2, EndCause.OTHER), Action.STOP, "refused"),
        (ended_as(JobState.TIMEOUT, 1), Action.STOP, "before it could save"),
        (ended_as(JobState.TIMEOUT, 75), Action.GO_ON, "rank 0 failed"),
        (failed_by(EndCause.DISK_FULL), Action.STOP, "disk full: it would happen again"),
        (failed_by(EndCause.DEVICE_OUT_OF_MEMORY), Action.STOP, "it would happen again"),
        (replace(FAILED, began_at=None, reached=0), Action.STOP, "failed before its first step"),
        (replace(FAILED, began_at=8, reached=8), Action.STOP, "failed before its first step"),
        (
            failed_by(EndCause.KILLED, began_at=None, reached=0),
            Action.GO_ON,
            "killed from outside",
        ),
        (failed_by(EndCause.HUNG, began_at=8, reached=8), Action.GO_ON, "a rank hung"),
        (
            failed_by(EndCause.NODE_UNREACHED, began_at=None, reached=0),
            Action.GO_ON,
            "node out of reach",
        ),
    ],
)
def test_what_follows_one_job(attempt, action, why):
    decision = after(attempt)
    assert decision.action is action
    assert why in decision.why


def test_the_same_failure_twice_at_one_step_stops_with_both_jobs_named():
    again = replace(FAILED, job="04-training-2", began_at=4)
    decision = after(FAILED, again)
    assert decision.action is Action.STOP
    both = NextJobMessage.BOTH_JOBS.fill(
        earlier=FAILED.job, last="04-training-2", failure=FAILED.failure
    )
    assert decision.why == NextJobMessage.SAME_FAILURE_TWICE.fill(failing_step=9, both=both)


@pytest.mark.parametrize("change", [{"reached": 9}, {"failure": "another"}])
def test_another_failure_or_another_step_is_started_again(change):
    assert (
        after(FAILED, replace(FAILED, job="04-training-2", began_at=4, **change)).action
        is Action.GO_ON
    )


def test_kills_at_one_step_are_bounded_by_the_budget_alone():
    kill = failed_by(EndCause.KILLED)
    jobs = [replace(kill, job=f"04-training-{n}", began_at=4) for n in range(2, 9)]
    assert after(kill, jobs[0]).action is Action.GO_ON
    assert after(kill, *jobs[:3]).action is Action.GO_ON
    decision = after(kill, *jobs[:4])
    assert (decision.action, decision.why) == (
        Action.STOP,
        NextJobMessage.NO_NEW_STEP.fill(jobs_without_progress=4, budget=3),
    )


def test_nodes_out_of_reach_are_waited_for_and_bounded_by_the_budget_alone():
    unreached = failed_by(EndCause.NODE_UNREACHED, began_at=8)
    decision = after(unreached, unreached)
    assert (decision.action, decision.wait_seconds) == (Action.GO_ON, RECOVERY_SECONDS)
    assert after(*[unreached] * 5).action is Action.STOP
    assert after(failed_by(EndCause.KILLED)).wait_seconds == 0


def test_a_new_step_gives_the_whole_budget_back():
    kill = failed_by(EndCause.KILLED)
    steps = [8, 8, 8, 9, 9, 9, 9]
    assert after(*[replace(kill, reached=step) for step in steps]).action is Action.GO_ON
    assert after(*[replace(kill, reached=step) for step in [*steps, 9]]).action is Action.STOP


@pytest.fixture
def job(tmp_path):
    folder = JobFolder(tmp_path / "jobs" / "04-training")
    folder.path.mkdir(parents=True)
    return folder


def ended(job, err: str, signal: int | None = None, events=(), rows=(1, 2, 3)):
    job.err.write_text(err)
    lines = [
        {"event": "submitted", "job": "04-training"},
        {"event": "started", "from_iteration": 0, "segment": 0},
    ]
    (job.run_folder / "events").write_text(
        "".join(json.dumps(one) + "\n" for one in [*lines, *events])
    )
    metrics = "".join(json.dumps({"iteration": n, "segment": 0}) + "\n" for n in rows)
    (job.run_folder / "metrics").write_text(metrics)
    reason = "rank 0 failed (exit code 1)"
    status = JobStatus(JobState.FAILED, "local-1", 1, reason, signal=signal)
    return read_attempt(job, status, job.run_folder / "metrics", job.run_folder / "events")


def test_the_cause_is_told_and_not_what_its_end_did_to_the_others(job):
    attempt = ended(
        job,
        "rank 1: another rank is gone: Connection closed by peer\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
    )
    assert attempt.end.cause is EndCause.DEVICE_OUT_OF_MEMORY
    assert attempt.failure == kinds.DEVICE_MEMORY.name
    assert attempt.evidence.startswith("torch.OutOfMemoryError")
    assert "micro_batch" in attempt.remedy
    assert (attempt.began_at, attempt.reached, attempt.failing_step) == (0, 3, 4)


def test_an_unknown_error_is_known_again_whatever_its_numbers(job):
    first = ended(
        job,
        "RuntimeError: block 17 at 0x3 is bad\nrank 1: Connection closed by peer [127.0.0.1]:4711\n",
    )
    again = ended(
        job,
        "RuntimeError: block 18 at 0x4 is bad\nrank 1: Connection closed by peer [127.0.0.1]:4712\n",
    )
    without_numbers = "RuntimeError: block N at NxN is bad"
    assert first.failure == again.failure == without_numbers


def test_a_hang_is_told_with_its_rank(job):
    hang = {
        "event": "hang",
        "rank": 3,
        "host": "n7",
        "where": "data.py:9 read",
        "stacks": "/jobs/ranks/3.stack",
    }
    attempt = ended(job, "", 9, [hang])
    assert attempt.end.cause is EndCause.HUNG
    assert (attempt.failure, attempt.evidence) == (
        kinds.RANK_HUNG.name,
        NextJobMessage.RANK_IN_CODE.fill(rank=3, host="n7", where="data.py:9 read"),
    )
    assert "3.stack" in attempt.remedy


def test_a_kill_is_told_as_such_whatever_the_others_say(job):
    attempt = ended(job, "Connection closed by peer\n", 9)
    assert attempt.end == JobEnd(JobState.FAILED, 1, 9, EndCause.KILLED)


# Slurm 22.05.8: node2 had lost power in the previous job and had just come back. srun ended with
# 233.
LAUNCH_WITHOUT_NODE = """\
srun: error: Task launch for StepId=3.0 failed on node node2: Communication connection failure
srun: error: Application launch failed: Communication connection failure
srun: Job step aborted: Waiting up to 5 seconds for job step to finish.
srun: error: Timed out waiting for job step to complete
runbook: rank 0 was ended without an exit code, the starter's was 233
"""


def test_a_node_that_does_not_answer_the_starter_is_no_failure_of_the_training(job):
    attempt = ended(job, LAUNCH_WITHOUT_NODE, signal=105, rows=())
    assert attempt.end.cause is EndCause.NODE_UNREACHED
    assert attempt.failure == kinds.UNREACHED.name
    assert attempt.evidence == LAUNCH_WITHOUT_NODE.splitlines()[0]
    assert after(attempt).action is Action.GO_ON


def test_a_credential_that_expired_is_no_failure_of_the_training(job):
    attempt = ended(job, "srun: error: Munge decode failed: Expired credential\n", rows=())
    assert attempt.failure == kinds.CREDENTIAL.name
    decision = after(attempt)
    assert (decision.action, decision.wait_seconds > 0) == (Action.GO_ON, True)


def test_words_about_a_signal_are_no_kill(job):
    attempt = ended(job, "RuntimeError: the program said (signal 9)\n")
    assert attempt.end.cause is EndCause.OTHER


def test_each_cause_that_repeats_is_a_known_failure():
    known = {kind.name for kind in KINDS}
    assert {cause.value for cause in WILL_REPEAT} < known
    assert EndCause.NODE_UNREACHED.value in known


def test_a_job_without_a_step_of_its_own_is_where_it_began(job):
    attempt = ended(job, "", rows=())
    assert (attempt.began_at, attempt.reached) == (0, 0)

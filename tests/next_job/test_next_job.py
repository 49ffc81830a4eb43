"""The decision that a job makes about itself, from its logs and the files in the run, with only the
standard library.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from suite.messages import containing, says

from runbook.next_job.__main__ import main
from runbook.next_job.decisions import RECOVERY_SECONDS, Attempt, may_start_again_here
from runbook.next_job.messages import NextJobMessage
from runbook.plan_file.bad_node_lifetimes import LIFETIMES, FoundBy
from runbook.plan_file.job_ends import EndCause, JobEnd, JobState
from runbook.results.failures import kinds
from runbook.runs.bad_nodes import parse_bad_nodes

FAILED = "1"
STOPPED = "75"
ERROR = "RuntimeError: block 17 is bad\n"
XID = "node3: NVRM: Xid (PCI:0000:4e:00): 79, pid=1234, name=python3, GPU has fallen off the bus.\n"


class Run:
    """A run folder with one job. A test describes its attempts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job = folder / "jobs" / "04-training"
        self.job.mkdir(parents=True)
        (self.job / "hostfile").write_text("node1\nnode2\nnode3\n")
        (self.job / "ranks_per_node").write_text("2\n")
        self.attempts = 0

    def event(self, event: str, **facts: object) -> None:
        """Add a line to the events in the run."""
        line = {"event": event, "phase": "04-training", **facts}
        with (self.folder / "events.jsonl").open("a") as stream:
            stream.write(json.dumps(line) + "\n")

    def begin(self, place: str = "slurm-1", saved: int = 0) -> None:
        """Begin an attempt in an allocation from the queue."""
        self.attempts += 1
        self.event("attempt_began", job="04-training", id=place, saved=saved)

    def make_steps(self, first: int, last: int) -> None:
        """Record steps in this attempt, as the trainer reports them."""
        self.event("started", from_iteration=first - 1, segment=self.attempts)
        with (self.folder / "metrics.jsonl").open("a") as stream:
            for iteration in range(first, last + 1):
                row = {"iteration": iteration, "segment": self.attempts}
                stream.write(json.dumps(row) + "\n")

    def write_log(self, text: str) -> None:
        """Write to the job log, after the line that marks the start of the attempt."""
        with (self.job / "err").open("a") as stream:
            stream.write(f"runbook: attempt {self.attempts} of slurm-1 begins\n{text}")

    def end(self, code: str = FAILED, signal: str = "", *options: str) -> list[str]:
        """End the attempt. Return the lines of the decision."""
        fixed = ("--run=r", "--phase=04-training", "--restarts=3", "--reason=rank 0 failed")
        places = [
            f"--job={self.job}",
            f"--events={self.folder / 'events.jsonl'}",
            f"--metrics={self.folder / 'metrics.jsonl'}",
        ]
        assert main([*fixed, *places, "--code", code, "--signal", signal, *options]) == 0
        return (self.job / "decision").read_text().splitlines()


@pytest.fixture
def run(tmp_path) -> Run:
    return Run(tmp_path)


def test_a_finished_and_a_stopped_training_need_no_log(run):
    run.begin()
    assert run.end("0")[:2] == ["done", "elsewhere"]
    run.begin()
    run.make_steps(1, 4)
    assert run.end(STOPPED)[:2] == ["go on", "elsewhere"]


def test_a_failure_that_a_person_has_to_mend_is_never_started_again(run):
    run.begin()
    run.make_steps(1, 4)
    run.write_log("OSError: [Errno 28] No space left on device\n")
    action, here, _, why, _ = run.end()
    assert (action, here) == ("stop", "elsewhere")
    assert why == NextJobMessage.WOULD_HAPPEN_AGAIN.fill(cause="disk full")


def test_the_log_of_an_earlier_attempt_does_not_decide(run):
    run.begin()
    run.write_log("OSError: [Errno 28] No space left on device\n")
    run.begin()
    run.make_steps(1, 4)
    run.write_log(ERROR)
    assert run.end()[0] == "go on"


def test_the_same_failure_twice_at_one_step_ends_the_chain(run):
    for _ in range(2):
        run.begin()
        run.make_steps(1, 4)
        run.write_log(ERROR)
        action, _, _, why, _ = run.end()
    assert action == "stop"
    assert says(why, NextJobMessage.SAME_FAILURE_TWICE, failing_step=5)


def test_a_line_at_the_start_of_each_job_does_not_make_two_failures_the_same(run):
    start = "fatal: not a git repository (or any of the parent directories): .git\n"
    timeout = (
        "[rank5]:[E602 ProcessGroupNCCL.cpp:632] [Rank 5] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)\n"
    )
    ends = (timeout, "srun: error: n07: task 3: Aborted (core dumped)\n")
    names = []
    for end in ends:
        run.begin()
        run.make_steps(1, 4)
        run.write_log(start + end)
        action, *_ = run.end()
        assert action == "go on"
        names.append(read_decision(run)["failure"])
    assert names == [kinds.TIMEOUT.name, kinds.PROGRAM_ENDED.name]


def test_a_script_without_its_program_ends_for_a_missing_file(run):
    run.begin()
    run.write_log("job.sh: line 12: ./train.sh: No such file or directory\n")
    run.end()
    assert read_decision(run)["cause"] == EndCause.FILE_MISSING


def read_decision(run):
    """Return the newest event in the run that names a failure."""
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    return next(event for event in reversed(events) if "failure" in event)


def test_an_attempt_that_died_with_its_script_counts_as_killed(run):
    for place in ("slurm-1", "slurm-2", "slurm-3"):
        run.begin(place)  # and records no event about its end
    run.begin("slurm-4")
    action, _, _, why, _ = run.end(signal="9")
    assert action == "stop"
    assert why == NextJobMessage.NO_NEW_STEP.fill(jobs_without_progress=4, budget=3)


def test_the_node_that_the_classifier_names_is_replaced_and_remembered(run):
    run.begin()
    run.write_log(XID)
    assert run.end()[:3] == ["go on", "here", "node3"]
    (line,) = (run.job / "bad_nodes.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert [bad.node for bad in parse_bad_nodes([entry], now=entry["found"])] == ["node3"]
    assert entry["expires"] - entry["found"] == LIFETIMES[FoundBy.FAILURE]


def test_the_decision_says_how_long_the_next_job_waits_for_a_lost_node(run):
    run.begin()
    run.make_steps(1, 4)
    run.write_log("srun: error: Task launch for 7.0 failed on node node2: Socket timed out\n")
    assert run.end()[4] == f"{RECOVERY_SECONDS:.0f}"
    run.begin()
    run.make_steps(5, 6)
    assert run.end(signal="9")[4] == "0"


def test_the_node_of_a_hang_or_of_a_killed_rank_is_under_suspicion_and_not_remembered(run):
    run.begin()
    run.make_steps(1, 4)
    run.event("hang", rank=1, host="node2.cluster", where="data.py:9 read", stacks="1.stack")
    assert run.end()[2] == "node2"
    run.begin()
    run.make_steps(5, 6)
    (run.job / "rank-signal").write_text("0 9\n")
    assert run.end(signal="9")[2] == "node1"
    assert not (run.job / "bad_nodes.jsonl").exists()


HANG = "rank 1 (process 4711 on node2) hangs at step 9: no sign of life for 7 s (limit 6 s); it is ended.\n"
DISK = "OSError: [Errno 28] No space left on device: '/scratch/x'\n"


def ended_event(run):
    lines = (run.folder / "events.jsonl").read_text().splitlines()
    return json.loads(lines[-1])


def test_a_hang_is_explained_by_the_cause_that_the_log_names_before_it(run):
    run.begin()
    hang(run, 1)
    run.write_log(DISK + HANG)
    assert run.end()[0] == "stop"
    event = ended_event(run)
    assert (event["cause"], event["failure"]) == (EndCause.DISK_FULL, kinds.DISK.name)
    assert says(event["evidence"], NextJobMessage.RANK_IN_CODE, rank=1, host="node1")
    assert says(
        event["evidence"],
        NextJobMessage.CAUSE_NAMED_BEFORE,
        cause_name=kinds.DISK.name,
        evidence=containing(os.strerror(errno.ENOSPC)),
    )


def test_what_a_training_may_have_survived_is_named_and_stops_nothing(run):
    run.begin()
    run.make_steps(1, 9)
    hang(run, 1)
    run.write_log(DISK + HANG)
    assert run.end()[0] == "go on"
    event = ended_event(run)
    assert event["cause"] == EndCause.HUNG
    assert "disk full" in event["evidence"]


def test_what_comes_after_a_hang_does_not_explain_it(run):
    run.begin()
    hang(run, 1)
    run.write_log(HANG + DISK)
    assert run.end()[0] == "go on"
    assert "disk full" not in ended_event(run)["evidence"]


KILLED = "srun: error: node2: task 1: Killed\n"
FOLDER = "mkdir: cannot create directory '/scratch/x': Permission denied\n"
OOM_KILL = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. "
    "Some of the step tasks have been OOM Killed.\n"
)


@pytest.mark.parametrize(
    ("log", "cause", "failure", "evidence"),
    [
        (DISK + KILLED, EndCause.DISK_FULL, kinds.DISK.name, "No space left"),
        (KILLED + OOM_KILL, EndCause.OTHER, kinds.HOST_MEMORY.name, "oom_kill event"),
        (KILLED + DISK, EndCause.KILLED, EndCause.KILLED, ""),
        (FOLDER + KILLED, EndCause.KILLED, EndCause.KILLED, kinds.STORAGE.name),
        (KILLED, EndCause.KILLED, EndCause.KILLED, ""),
    ],
)
def test_a_kill_is_explained_by_the_cause_that_the_log_names(run, log, cause, failure, evidence):
    run.begin()
    run.write_log(log)
    assert run.end(signal="9")[0] == ("go on" if cause is EndCause.KILLED else "stop")
    event = ended_event(run)
    assert (event["cause"], event["failure"]) == (cause, failure)
    assert evidence in event["evidence"]


def test_a_job_that_made_steps_and_was_killed_goes_on_and_names_what_its_log_says(run):
    run.begin()
    run.make_steps(1, 9)
    run.write_log(KILLED + OOM_KILL)
    assert run.end(signal="9")[0] == "go on"
    event = ended_event(run)
    assert event["cause"] == EndCause.KILLED
    assert kinds.HOST_MEMORY.name in event["evidence"]


OWN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/opt/code/train.py", line 12, in main
[rank1]:     step(batch)
[rank1]: RuntimeError: block {} is bad
"""


def test_an_error_that_no_rule_knows_is_known_again_by_its_words(run):
    for first, block in ((1, 17), (3, 18)):
        run.begin()
        run.make_steps(first, first + 1)
        run.write_log(OWN.format(block))
        assert run.end()[0] == "go on"
    run.begin()
    run.make_steps(3, 4)
    run.write_log(OWN.format(19))
    assert run.end()[0] == "stop"
    error = OWN.splitlines()[-1].partition(": ")[2]
    assert error.format("N") in ended_event(run)["failure"]


def test_an_upstream_program_makes_progress_by_what_it_saved(run, tmp_path):
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    for saved in (0, 20, 20, 20):
        run.begin(saved=saved)
        tracker.write_text("20\n")
        decision = run.end(FAILED, "9", "--tracker", str(tracker))
        assert decision[0] == "go on"
    run.begin(saved=20)
    assert run.end(FAILED, "9", "--tracker", str(tracker))[0] == "stop"


MADE_NONE = Attempt("j", JobEnd(JobState.FAILED, 1, cause=EndCause.KILLED), None, 0)
MADE_ONE = replace(MADE_NONE, began_at=0, reached=1)


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([MADE_NONE], True),
        ([MADE_NONE, MADE_NONE], False),
        ([MADE_ONE, MADE_NONE], True),
        ([MADE_NONE, MADE_ONE], True),
        ([replace(MADE_ONE, end=JobEnd(JobState.STOPPED, 75))], False),
    ],
)
def test_two_starts_without_a_step_end_the_allocation(attempts, expected):
    assert may_start_again_here(attempts) is expected


def hang(run, *ranks):
    for rank in ranks:
        run.event("hang", rank=rank, host=f"node{rank // 2 + 1}", where="a collective")


def suspects_of(run, *options):
    return run.end(FAILED, "", *options)[2].split()


def test_ranks_of_one_stage_on_several_nodes_make_its_nodes_suspects(run):
    """Two stages on four nodes have two nodes each, and either node of a stage may be to blame."""
    (run.job / "hostfile").write_text("node1\nnode2\nnode3\nnode4\n")
    two_stages = ("--stages=2", "--spares=2")
    run.begin()
    hang(run, 4, 7)
    assert suspects_of(run, *two_stages) == ["node3", "node4"]
    assert suspects_of(run, "--stages=2", "--spares=1") == ["node3"], "too few spare nodes"
    assert suspects_of(run, "--spares=2") == ["node3"], "no stages"
    run.begin()
    hang(run, 4, 5)
    assert suspects_of(run, *two_stages) == ["node3"], "one node is certain"
    run.begin()
    hang(run, 1, 4, 7)
    assert suspects_of(run, *two_stages) == ["node1"], "several stages"
    run.begin()
    run.write_log(
        "srun: error: node4: tasks 6-7: Killed\nsrun: error: node3: tasks 4-5: Killed\n"
        "srun: error: node1: tasks 0-1: Terminated\n"
    )
    assert suspects_of(run, *two_stages) == ["node3", "node4"]


def test_nodes_that_srun_names_in_one_list_are_told_apart(run):
    (run.job / "hostfile").write_text("rack0n01\nrack0n02\nrack1n01\nrack1n02\n")
    two_stages = ("--stages=2", "--spares=2")
    run.begin()
    run.write_log("srun: error: rack1n[01-02]: tasks 4-7: Killed\n")
    assert suspects_of(run, *two_stages) == ["rack1n01", "rack1n02"]
    (run.job / "unended").touch()
    run.begin()
    run.write_log("srun: error: rack[0-1]n[01-01],rack0n02: tasks 0-5: Exited with exit code 1\n")
    assert suspects_of(run, *two_stages) == ["rack1n02"]


def test_a_node_on_which_a_failed_step_does_not_end_is_replaced_before_all_others(run):
    (run.job / "hostfile").write_text("node1\nnode2\nnode3\nnode4\n")
    run.begin()
    (run.job / "unended").touch()
    killed = "srun: error: node4: tasks 6-7: Killed\nsrun: error: node3: tasks 4-5: Killed\n"
    run.write_log(f"{killed}srun: error: node1: tasks 0-1: Exited with exit code 1\n")
    assert suspects_of(run, "--stages=2", "--spares=2") == ["node2"]


def test_nodes_that_all_end_slowly_are_no_evidence_against_each_other(run):
    """Every node may take minutes to free a lot of memory. The failed node had ended earlier."""
    (run.job / "hostfile").write_text("node1\nnode2\nnode3\nnode4\n")
    run.begin()
    (run.job / "unended").touch()
    run.write_log(XID + "srun: error: node3: tasks 4-5: Exited with exit code 1\n")
    assert suspects_of(run, "--spares=2") == ["node3"]


def test_a_node_that_the_log_names_is_replaced_and_not_its_whole_stage(run):
    (run.job / "hostfile").write_text("node1\nnode2\nnode3\nnode4\n")
    run.begin()
    killed = "srun: error: node4: tasks 6-7: Killed\nsrun: error: node3: tasks 4-5: Killed\n"
    run.write_log(XID.replace("node3", "node2") + killed)
    assert suspects_of(run, "--stages=2", "--spares=2") == ["node2"]
    (line,) = (run.job / "bad_nodes.jsonl").read_text().splitlines()
    assert json.loads(line)["node"] == "node2"

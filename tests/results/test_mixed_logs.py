"""Failures between lines of other programs and ranks: steps, commands, settings and shutdowns."""

from __future__ import annotations

import pytest
from log_lines import parse_lines

from runbook.results.failures import kinds
from runbook.results.failures.finder import FailureFinder, find_failures

TIMER = (
    "[2025-01-02 16:01:37,703] [INFO] [timer.py:264:stop] epoch=0/micro_step={micro}"
    "/global_step={step}, RunningAvgSamplesPerSec=46.50, CurrSamplesPerSec=46.21, "
    "MemAllocated=2.12GB, MaxMemAllocated=9.4GB"
)
TIMED_OUT = (
    "[rank1]:[E ProcessGroupNCCL.cpp:523] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600659 milliseconds"
)
ENDS = (
    "{rank}[W526 18:23:33.339699985 ProcessGroupNCCL.cpp:1566] Warning: WARNING: "
    "destroy_process_group() was not called before program exit, which can leak resources."
)
LOST_STORE = (
    "{rank}[W526 18:23:42.905934821 TCPStore.cpp:125] [c10d] recvValue failed on "
    "SocketImpl(fd=63, addr=[n7]:58276, remote=[n6]:8888): Failed to recv, got 0 bytes."
)
ENDED_WELL = (
    "[2026-03-26 00:35:03,492] [INFO] [launch.py:367:main] Process 1038980 exits successfully."
)


def timer(step):
    return TIMER.format(micro=2 * step, step=step)


def names_of(lines):
    return [failure.name for failure in find_failures(lines)]


def test_a_failure_after_the_last_step_of_deepspeed_is_not_survived():
    log = parse_lines([timer(10), timer(20), TIMED_OUT])
    assert [record.iteration for record in log.records] == [10, 20]
    assert log.cause.name == kinds.TIMEOUT.name
    assert log.cause.line == 3


def test_a_failure_before_the_last_step_of_deepspeed_is_survived():
    log = parse_lines([timer(10), TIMED_OUT, timer(20)])
    assert [record.iteration for record in log.records] == [10, 20]
    assert log.cause is None


def test_a_step_that_a_second_rank_prints_again_is_no_progress():
    finder = FailureFinder()
    finder.note_progress(2)
    finder.look(TIMED_OUT, 3)
    finder.note_progress(1)
    assert finder.cause().name == kinds.TIMEOUT.name
    finder.note_progress(2)
    assert finder.cause() is None


def test_a_rank_that_has_ended_by_itself_may_lose_the_store():
    rank = "[rank1]:"
    assert names_of([ENDS.format(rank=rank), LOST_STORE.format(rank=rank)]) == []


def test_the_end_of_one_rank_does_not_excuse_another_that_lost_the_store():
    lines = [ENDS.format(rank="[rank1]:"), LOST_STORE.format(rank="[rank2]:")]
    assert names_of(lines) == [kinds.PEER_DIED.name]
    assert names_of([LOST_STORE.format(rank="[rank1]:")]) == [kinds.PEER_DIED.name]


def test_the_store_may_be_lost_when_deepspeed_has_ended_well():
    lost = LOST_STORE.format(rank="[rank1]:")
    assert names_of([ENDED_WELL, lost]) == []
    assert names_of([ENDED_WELL, *["a line"] * 10, lost]) == [kinds.PEER_DIED.name]


@pytest.mark.parametrize(
    "line",
    [
        # A command and its options
        "deepspeed train.py --tensor-parallel 2 --checkpoint-num-layers 1 --timeout 9 --fail-fast",
        # What may go wrong, and what to do then
        "If you get `CUDA error: invalid device function`, build the extension again.",
        "A text model instantiated as a bare model is not supported and can yield errors.",
        # A package manager without the rights of root
        "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)",
    ],
)
def test_a_line_that_reports_no_failure_is_not_named(line):
    assert names_of([line]) == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("job.sh: line 9:  4711 Killed  python train.py --a 1 --b 2 --c 3 --d 4", kinds.KILLED),
        (
            "train.py: error: unrecognized arguments: --keep-last 5 --async-save --to x --fp9",
            kinds.CONFIGURATION,
        ),
        (
            "When the worker started: OSError: [Errno 28] No space left on device",
            kinds.DISK,
        ),
    ],
)
def test_a_failure_in_such_a_line_is_named(line, kind):
    assert names_of([line]) == [kind.name]

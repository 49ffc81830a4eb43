"""An error that no rule recognizes is pointed to; what follows from it gets no remedy."""

from __future__ import annotations

import json
import sys

import pytest
from suite.messages import says

from runbook.cli import main
from runbook.results.failures import kinds
from runbook.results.failures.finder import FailureFinder
from runbook.results.failures.first_error import SIGNS
from runbook.tools.logs.messages import SummaryMessage

UNKNOWN = "[rank3]: frobnicator: error: the flux is inverted"
CUDNN = "RuntimeError: fused_attn.cu:227 in function operator(): the plan is of another device"
WARN = "gpu04:889:930 [2] init.cc:510 NCCL WARN the plug-in reports a flux"
HINT = "frobnicate: the flux is invalid"
TIMEOUT = (
    "[rank5]:[E602 ProcessGroupNCCL.cpp:632] [Rank 5] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"
)
CLOSED = "[rank6]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]"
DISK = "OSError: [Errno 28] No space left on device: '/scratch/x'"
SIGNALLED = "srun: error: n07: task 3: Aborted (core dumped)"


def finder_of(*lines):
    finder = FailureFinder()
    for number, line in enumerate(lines, start=1):
        finder.look(line, number)
    return finder


@pytest.mark.parametrize("error", [UNKNOWN, CUDNN, WARN, HINT])
@pytest.mark.parametrize("effect", [TIMEOUT, CLOSED, SIGNALLED])
def test_an_unknown_error_before_its_effects_takes_the_place_of_their_remedies(error, effect):
    finder = finder_of("starting", error, effect)
    first_error = finder.first_error()
    assert first_error.line == 2
    assert len(first_error.followed_by) == 1
    assert (finder.found(), finder.cause()) == ([], None)


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ((TIMEOUT, UNKNOWN), kinds.TIMEOUT.name),
        ((UNKNOWN, DISK, TIMEOUT), kinds.DISK.name),
        (("[rank5]: error: retried", TIMEOUT), kinds.TIMEOUT.name),
        (("[W601 12:00:00] Warning: the flux is invalid", TIMEOUT), kinds.TIMEOUT.name),
        (
            ("NCCL error in: ProcessGroupNCCL.cpp:1269, internal error", CLOSED),
            kinds.PEER_DIED.name,
        ),
    ],
    ids=["later", "with a cause", "same rank went on", "a warning", "about a lost rank"],
)
def test_other_lines_explain_no_effect(lines, name):
    finder = finder_of(*lines)
    assert finder.first_error() is None
    assert finder.cause().name == name


def test_without_a_failure_only_a_certain_error_is_named():
    assert finder_of(CUDNN).first_error().line == 1
    assert finder_of(HINT).first_error() is None


def test_a_step_afterwards_shows_that_the_error_was_survived():
    finder = finder_of(UNKNOWN)
    finder.note_progress(1)
    assert finder.first_error() is None


@pytest.mark.parametrize("line", [UNKNOWN, CUDNN, WARN, HINT])
def test_every_line_that_counts_has_a_sign(line):
    assert any(sign in line.lower() for sign in SIGNS)


def test_the_command_points_to_it(tmp_path, monkeypatch, capsys):
    log = tmp_path / "err"
    log.write_text(f"starting\n{UNKNOWN}\n{TIMEOUT}\n")
    monkeypatch.setattr(sys, "argv", ["runbook", "logs", str(log)])
    with pytest.raises(SystemExit, match="0"):
        main()
    text = capsys.readouterr().out
    assert says(
        text,
        SummaryMessage.FIRST_ERROR,
        line=2,
        place=", rank 3",
        evidence="frobnicator: error: the flux is inverted",
    )
    assert kinds.TIMEOUT.remedy not in text
    monkeypatch.setattr(sys, "argv", ["runbook", "logs", str(log), "--json"])
    with pytest.raises(SystemExit, match="0"):
        main()
    page = json.loads(capsys.readouterr().out)
    assert (page["failures"], page["cause"]) == ([], None)
    assert page["first_error"]["followed_by"] == [kinds.TIMEOUT.name]

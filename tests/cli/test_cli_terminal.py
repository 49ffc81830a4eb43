"""Tables fit the terminal width. A file or another program gets every value on its line."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from runbook.core.column_widths import LINE_LIMIT
from runbook.core.table import Table, width
from runbook.phases.messages import PhaseMessage

ROWS = [
    {"node": "n1", "path": "/a/very/long/path", "count": 2.5, "why": "one two three four five"},
    {"node": "n2", "path": "/b", "count": 10.25, "why": "six"},
]


def text_within(limit: int, rows=ROWS, **parts: object) -> str:
    """Return a table as text with limited line width."""
    token = LINE_LIMIT.set(limit)
    try:
        return Table(rows, **parts).as_text()
    finally:
        LINE_LIMIT.reset(token)


def output_on_terminal(columns: int, *words: str) -> str:
    """Run `runbook WORD...` on a terminal this wide, and return its output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    output = b""
    with subprocess.Popen(
        [sys.executable, "-m", "runbook", *words], stdout=theirs, stderr=theirs, env=environment
    ):
        os.close(theirs)
        # Linux ends a terminal that nobody writes to any longer with an error.
        while chunk := _read(ours):
            output += chunk

    os.close(ours)
    return output.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("words", [("check", "lumi-13b"), ("plan", "lumi-13b", "--search")])
def test_no_line_of_a_table_is_wider_than_the_terminal(columns, words, project: Path):
    # The first line from a search is a sentence, which a terminal may divide, and a command to copy
    # is one line.
    _, *lines = output_on_terminal(columns, *words).splitlines()
    assert len(lines) > 20
    command, _, _ = str(PhaseMessage.USE_BEST_LAYOUT.value).partition("{")
    too_wide = [line for line in lines if width(line) > columns]
    assert [line for line in too_wide if not line.startswith(command)] == []


def test_piped_output_has_whole_lines_whatever_the_terminal(runbook, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = runbook("plan", "lumi-13b", "--search").out.splitlines()
    heads = [line for line in lines if line.startswith("GPUs ")]
    assert [head.split()[-5:] for head in heads] == [["cost", "nodes", "in", "multiples", "of"]] * 2


def test_the_widest_column_is_narrowed_first_and_no_word_is_divided():
    assert text_within(48).splitlines() == [
        "node  path               count  why",
        "----  -----------------  -----  -------------",
        "n1    /a/very/long/path    2.5  one two three",
        "                                four five",
        "n2    /b                 10.25  six",
    ]


def test_columns_that_do_not_fit_follow_in_a_block_that_repeats_the_first_column():
    assert text_within(34, title="A title of more than thirty-four characters").splitlines() == [
        "A title of more than thirty-four",
        "characters",
        "node  path               count",
        "----  -----------------  -----",
        "n1    /a/very/long/path    2.5",
        "n2    /b                 10.25",
        "",
        "node  why",
        "----  -----------------------",
        "n1    one two three four five",
        "n2    six",
    ]


def test_a_word_that_is_wider_than_the_terminal_stays_whole():
    (_, _, *values) = text_within(10, [{"path": "/a/very/long/path"}]).splitlines()
    assert values == ["/a/very/long/path"]


def test_a_saved_notebook_does_not_depend_on_the_terminal():
    token = LINE_LIMIT.set(20)
    try:
        assert Table(ROWS).mime_bundle()["text/plain"] == text_within(0)
    finally:
        LINE_LIMIT.reset(token)

"""Text that other people wrote cannot control the terminal that shows it."""

import io
import sys

import pytest

from runbook.core.visible_text import TerminalStream, find_hidden, for_terminal, visible

STEERING = [
    "\x1b]0;title\x07",  # renames the window
    "\x1b]52;c;b3duZWQ=\x07",  # writes to the clipboard
    "\x1b]8;;http://evil\x1b\\",  # a link
    "\x1b[2J\x1b[H",  # clears the screen
    "\x1b[8mhidden",
    "\x1bP+q\x1b\\",
    "\x9b2J",
    "\x9d0;title\x9c",
    "\u202esafe\u202c",
    "\u2066a\u2069",
    "\u200bzero",
    "\U000e0041",
]


@pytest.mark.parametrize("text", STEERING)
def test_no_sequence_reaches_the_terminal(text):
    for shown in (for_terminal(f"a{text}b"), visible(f"a{text}b")):
        assert not find_hidden(shown)
        assert shown.startswith("a\\") and shown.endswith("b")


def test_colours_and_progress_lines_stay_on_the_terminal_only():
    assert for_terminal("\x1b[1;33mwarn\x1b[0m\r50 %\n\tümläut 语 👩‍💻") == (
        "\x1b[1;33mwarn\x1b[0m\r50 %\n\tümläut 语 👩‍💻"
    )
    assert visible("\x1b[33mwarn\r\n") == r"\u001b[33mwarn\u000d" + "\n"


def test_an_escape_in_json_is_read_back_as_the_character():
    import json

    text = json.dumps({"a": "\u202e"}, ensure_ascii=False)
    assert json.loads(for_terminal(text)) == {"a": "\u202e"}


def test_the_stream_is_otherwise_the_one_below():
    below = io.StringIO()
    stream = TerminalStream(below)
    assert stream.write("a\x07") == 2
    assert (below.getvalue(), stream.isatty()) == ("a\\u0007", False)


def test_the_command_line_shows_a_hostile_name_as_escapes(monkeypatch, capsys):
    from runbook.cli import main

    monkeypatch.setattr(sys, "argv", ["runbook", "check", "x\x1b]0;owned\x07\u202e"])
    with pytest.raises(SystemExit):
        main()
    said = "".join(capsys.readouterr())
    assert "owned" in said and not find_hidden(said)

"""`runbook drill --again`: a second try counts, and says that it is one."""

from __future__ import annotations

import signal

import click.testing
import pytest

from runbook.commands.drill import drill
from runbook.drills import table
from runbook.drills.verdict import Verdict


@pytest.fixture(autouse=True)
def _terminate_as_before():
    """The command answers SIGTERM in a way of its own."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("verdicts", "code"), [(["fail", "pass"], 0), (["fail", "fail"], 1), (["pass"], 0)])
def test_a_failed_drill_is_done_once_more_and_both_are_told(monkeypatch, verdicts, code):
    left, asked = list(verdicts), []

    def do(names, stream):
        asked.append(list(names))
        for name in names:
            yield made(name, left.pop(0))

    monkeypatch.setattr(table, "do", do)
    done = click.testing.CliRunner().invoke(drill, ["--again", "01"], standalone_mode=False)
    assert done.exception is None
    assert done.return_value == code
    assert asked == [["01-kill-rank"]] * len(verdicts)
    assert ("at the second try (the first: fail)" in done.output) == (len(verdicts) == 2)


def test_without_the_word_a_failure_stays_one(monkeypatch):
    monkeypatch.setattr(table, "do", lambda names, stream: iter([made(names[0], "fail")]))
    assert click.testing.CliRunner().invoke(drill, ["01"], standalone_mode=False).return_value == 1


def made(name: str, verdict: str) -> Verdict:
    known = {"name": name, "verdict": verdict, "detail": verdict, "seconds": 1.0}
    return Verdict(**{field: known.get(field) for field in Verdict.__dataclass_fields__})

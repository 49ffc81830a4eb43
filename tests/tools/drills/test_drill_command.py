"""`runbook drill --again`: both attempts are shown. The second decides the exit code."""

from __future__ import annotations

import json
import os
import signal

import click.testing
import pytest

from runbook.cli.drill import drill
from runbook.cli.messages import CliMessage
from runbook.tools.drills import drill_list
from runbook.tools.drills.bench import DrillVerdict
from runbook.tools.drills.messages import DrillMessage


@pytest.mark.parametrize(
    ("verdicts", "code"), [(["fail", "pass"], 0), (["fail", "fail"], 1), (["pass"], 0)]
)
def test_a_failed_drill_is_done_once_more_and_both_are_shown(monkeypatch, tmp_path, verdicts, code):
    left = list(verdicts)
    asked = []

    def do(names, stream):
        asked.append(list(names))
        for name in names:
            yield made(name, left.pop(0))

    monkeypatch.setattr(drill_list, "do_drills", do)
    page = tmp_path / "drills.md"
    done = click.testing.CliRunner().invoke(
        drill, ["--again", "01", "--page", str(page)], standalone_mode=False
    )
    assert done.exception is None
    assert done.return_value == code
    assert asked == [["01-kill-rank"]] * len(verdicts)
    assert ("second attempt: " in done.output) == (len(verdicts) == 2)
    rows = [
        line.split(" | ")[2] for line in page.read_text().splitlines() if line.startswith("| 01-")
    ]
    assert rows == [verdicts[0], *(f"{verdict} (second attempt)" for verdict in verdicts[1:])]
    score = DrillMessage.ENDED_AS_THEY_SHOULD.fill(passed=int("pass" in verdicts), all=1)
    if verdicts == ["fail", "pass"]:
        score += DrillMessage.SECOND_ATTEMPTS.fill(number=1)
    assert f"**{score}**" in page.read_text()
    assert DrillMessage.OF_ALL_DRILLS.fill(score=score, all=20) in done.output.splitlines()


def test_a_machine_reads_both_attempts(monkeypatch):
    left = ["fail", "pass"]
    monkeypatch.setattr(
        drill_list, "do_drills", lambda names, stream: (made(name, left.pop(0)) for name in names)
    )
    done = click.testing.CliRunner().invoke(
        drill, ["--again", "--json", "01"], standalone_mode=False
    )
    assert [(row["verdict"], row["attempt"]) for row in json.loads(done.output)] == [
        ("fail", 1),
        ("pass", 2),
    ]


def test_a_drill_that_is_told_to_stop_says_so_and_cleans_up(monkeypatch):
    has_ended = []

    def do(names, stream):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            yield made(names[0], "pass")
        finally:
            has_ended.append(names[0])

    monkeypatch.setattr(drill_list, "do_drills", do)
    done = click.testing.CliRunner().invoke(drill, ["01"], standalone_mode=False)
    assert done.exit_code == 128 + signal.SIGTERM
    assert done.stderr.splitlines() == [CliMessage.STOPPED_BY_SIGNAL.fill(signal="SIGTERM")]
    assert has_ended == ["01-kill-rank"]


def test_without_the_word_a_failure_stays_one(monkeypatch):
    monkeypatch.setattr(
        drill_list, "do_drills", lambda names, stream: iter([made(names[0], "fail")])
    )
    assert click.testing.CliRunner().invoke(drill, ["01"], standalone_mode=False).return_value == 1


def made(name: str, verdict: str) -> DrillVerdict:
    known = {"name": name, "verdict": verdict, "detail": verdict, "fault": "", "seconds": 1.0}
    known |= {"attempt": 1, "figures": (), "extra": {}}
    return DrillVerdict(**{field: known.get(field) for field in DrillVerdict.__dataclass_fields__})

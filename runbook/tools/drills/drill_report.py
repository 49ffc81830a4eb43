"""Reports on drills: a line for each verdict, the score, and docs/measurements/drills.md."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from runbook.tools.drills.bench import DrillVerdict
from runbook.tools.drills.messages import DrillMessage

PAGE_HEAD = """\
# Deliberate faults, drilled

Each drill breaks a small training run on one machine, on two to four processes without a GPU, and
judges how it ends: the losses are bit-equal to those of a run without faults, nothing is lost, the
fault is named, and no process is left running. `runbook drill` runs them all, `runbook drill NAME`
one, `--json` lists what each drill checked, and `make drills` wrote this page. Job script,
scheduler, restarts, checkpoints and trainer are the same as in every local run. Drill 16 also runs
on a real Slurm of two nodes in the tests. **Nothing here ran on a GPU.** Measured values, with
their usual range on an idle machine, never fail a drill. A retried drill has a row for
each attempt.

Drill 20 compares goodput (productive step time / wall time) with the ideal for the same number of
kills, where detection takes no time:

    ideal = productive / (productive + lost starts + saves
                          + kills in training x (restart + save interval / 2 x step))

`restart` and `save` are means over ten planned stops. A step of this toy takes a few hundredths of
a second, so restarts cost a far larger share of the time than in a real training run.

"""


def page_text(verdicts: Sequence[DrillVerdict], date: str, commit: str) -> str:
    """Return the Markdown page: the table, then the reasons why drills failed."""
    when = f"Last run {date} at {commit or 'an unknown commit'}"
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    lines = [f"{when}, {machine}: **{score(verdicts)}**.\n"]
    lines.append(
        "| drill | fault | verdict | how it ended | measured | detected after s | steps lost | "
        "losses equal | took s |"
    )
    lines.append("| --- | --- | --- | --- | --- | ---: | ---: | --- | ---: |")
    lines += [_table_row(verdict) for verdict in verdicts]
    failed = [verdict for verdict in verdicts if verdict.verdict != "pass"]
    lines += [f"\n**{verdict.name}**: {_cell(verdict.detail)}." for verdict in failed]
    return PAGE_HEAD + "\n".join(lines) + "\n"


def _table_row(verdict: DrillVerdict) -> str:
    """Return the row for an attempt in the table on the page."""
    result = verdict.verdict
    if verdict.attempt > 1:
        result += " (second attempt)"
    cells = (
        verdict.name,
        _cell(verdict.fault),
        result,
        _cell(verdict.action or ""),
        _cell(verdict.measured),
        _value_cell(verdict.detected_after_s),
        _value_cell(verdict.steps_lost),
        _value_cell(verdict.final_loss_equal),
        f"{verdict.seconds:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def verdict_line(verdict: DrillVerdict) -> str:
    """Return an attempt as a line for a terminal."""
    attempt = "second attempt: " if verdict.attempt > 1 else ""
    measured = f"; measured: {verdict.measured}" if verdict.figures else ""
    result = f"{verdict.verdict}  {verdict.seconds:6.1f} s"
    return f"{verdict.name:24} {result}  {attempt}{verdict.detail}{measured}"


def score(verdicts: Sequence[DrillVerdict]) -> str:
    """Return how many drills ended as expected, and how many needed a second attempt."""
    last_verdicts = {verdict.name: verdict for verdict in verdicts}.values()
    passed = [verdict for verdict in last_verdicts if verdict.verdict == "pass"]
    second_attempts = sum(verdict.attempt > 1 for verdict in passed)
    text = DrillMessage.ENDED_AS_THEY_SHOULD.fill(passed=len(passed), all=len(last_verdicts))
    if second_attempts:
        text += DrillMessage.SECOND_ATTEMPTS.fill(number=second_attempts)
    return text


def _cell(text: str) -> str:
    """Return text as a cell in a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")


def _value_cell(value: object) -> str:
    """Return a value as a cell in a Markdown table. None becomes an empty cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)

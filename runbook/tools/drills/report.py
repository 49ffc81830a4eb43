"""The report of drills: a line for each verdict, the score, and the page docs/measurements/drills.md."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from runbook.tools.drills.bench import DrillVerdict

PAGE_HEAD = """\
# Twenty faults, drilled

Each drill breaks a small training on one machine, on two to four processes without a GPU, and judges how it ends.
`runbook drill` runs them all, `runbook drill NAME` runs one, `--json` prints the verdicts as JSON; `make drills` wrote
this page. The ranks are forked from a process that has already imported torch; job script, scheduler adapter, restarts,
checkpoints and trainer are those of every local run. Nothing here ran on a GPU. Losses are compared bit by bit with
those of the same training without faults. Drill 16 also runs on a real Slurm of two nodes (`tests/slurm`): the
processes of a job step are killed on both nodes, then a node of the next job loses power.

"Detected after" is the time from the fault until the runbook knows of it: for a dead process until its job is known to
have ended, and in drill 20 the longest of all kills.

The verdict covers what must be true on any machine: the losses are equal, nothing is lost, the fault is named and no
process is left running. Measured values are listed with their usual range on an idle machine. They never fail a drill,
because other work on the machine changes them. A drill that failed and was retried has one row per attempt.

Goodput is productive step time / wall time. Drill 20 compares it with the ideal for the same number of kills and the
measured cost of a save and a restart. In the ideal, a kill costs one restart and half a save interval of repeated
steps, a kill before a job's first step costs the part of the start already done, a save costs the time it takes, and
detection costs nothing:

    ideal = productive / (productive + kills in training x (restart + save interval / 2 x step) + lost starts + saves)

`restart` and `save` are means over trainings that are stopped on purpose, five times before the kills and five times
after them, because a single restart takes anything from 0.5 to 1.2 s. On a shared machine the run can come out above
its ideal, or far below it. A step of this toy takes a few hundredths of a second, so restarts cost a far larger share
than in a real training.

"""


def page_text(verdicts: Sequence[DrillVerdict], date: str, commit: str) -> str:
    """Return the page in Markdown: the table, then what each drill found."""
    when = f"Last run {date} at {commit or 'an unknown commit'}"
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    lines = [f"{when}, {machine}: **{score(verdicts)}**.\n"]
    lines.append(
        "| drill | fault | verdict | measured | detected after s | steps lost | losses equal | "
        "took s |"
    )
    lines.append("| --- | --- | --- | --- | ---: | ---: | --- | ---: |")
    lines += [_table_row(verdict) for verdict in verdicts]
    lines.append("\n## What each one found\n")
    for verdict in verdicts:
        attempt = ", second attempt" if verdict.attempt > 1 else ""
        action = verdict.action or "no action"
        lines.append(f"**{verdict.name}**{attempt} ({action}): {_cell(verdict.detail)}.\n")
    return PAGE_HEAD + "\n".join(lines)


def _table_row(verdict: DrillVerdict) -> str:
    """Return the row of one attempt in the table of the page."""
    result = verdict.verdict
    if verdict.attempt > 1:
        result += " (second attempt)"
    cells = (
        verdict.name,
        _cell(verdict.fault),
        result,
        _cell(verdict.measured),
        _value_cell(verdict.detected_after_s),
        _value_cell(verdict.steps_lost),
        _value_cell(verdict.final_loss_equal),
        f"{verdict.seconds:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def verdict_line(verdict: DrillVerdict) -> str:
    """Return one attempt as a line for a terminal."""
    attempt = "second attempt: " if verdict.attempt > 1 else ""
    measured = f"; measured: {verdict.measured}" if verdict.figures else ""
    result = f"{verdict.verdict}  {verdict.seconds:6.1f} s"
    return f"{verdict.name:24} {result}  {attempt}{verdict.detail}{measured}"


def score(verdicts: Sequence[DrillVerdict]) -> str:
    """Say how many drills ended as they should, and how many of them at the second attempt only."""
    last_verdicts = {verdict.name: verdict for verdict in verdicts}.values()
    passed = [verdict for verdict in last_verdicts if verdict.verdict == "pass"]
    second_attempts = sum(verdict.attempt > 1 for verdict in passed)
    text = f"{len(passed)} of {len(last_verdicts)} ended as they should"
    if second_attempts:
        text += f", {second_attempts} at the second attempt"
    return text


def _cell(text: str) -> str:
    """Return a text as one cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")


def _value_cell(value: object) -> str:
    """Return a value as one cell of a Markdown table. None is an empty cell."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)

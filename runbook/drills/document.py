"""The results of drills as a page of the documentation."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from runbook.drills.verdict import Verdict

HEAD = """\
# Twenty faults, drilled

Each drill breaks a small training on one machine, on two to four processes without a GPU, and judges how it ends.
`runbook drill` does them all, `runbook drill NAME` one, `--json` tells it to a machine; `make drills` wrote this page.
The ranks are forked from a process that has imported torch already; job script, scheduler adapter, restarts,
checkpoints and trainer are those of every local run. Nothing here ran on a GPU; losses are compared bit by bit with
those of the same training undisturbed. Drill 16 is done on a real Slurm of two nodes too (`tests/slurm`): the
processes of a job's step are killed on both nodes, then a node of the next job loses its power.

"Detected after" is from the fault to its being known: of a dead process to the end of its job, in 20 the longest of
all kills.

Goodput is productive step time / wall time; in 20 it is held against an ideal, for the kills that there were and what
a save and a restart cost: every kill costs one restart and half a save interval of steps done again, a kill before a
job's first step instead the start as far as it had come, every save the time it takes, and noticing costs nothing:

    ideal = productive / (productive + kills in training x (restart + save interval / 2 x step) + starts lost + saves)

`restart` and `save` are measured in trainings that are stopped on purpose, five times before the kills and five
times after them: the mean of all, since one restart takes anything from 0.5 to 1.2 s. On a machine that others use too
the run can come out above its ideal, or far below.

"""


def page(verdicts: Sequence[Verdict], date: str, commit: str) -> str:
    """Markdown: the table, then what each drill found."""
    passed = sum(one.verdict == "pass" for one in verdicts)
    lines = [f"Last done {date} at {commit or 'an unknown commit'}, {platform.machine()}, Python "]
    lines[0] += f"{platform.python_version()}: **{passed} of {len(verdicts)} ended as they should**.\n"
    lines.append("| drill | fault | verdict | detected after s | steps lost | losses equal | took s |")
    lines.append("| --- | --- | --- | ---: | ---: | --- | ---: |")
    lines += [
        f"| {one.name} | {_cell(one.fault)} | {one.verdict} | {_shown(one.detected_after_s)} "
        f"| {_shown(one.steps_lost)} | {_shown(one.final_loss_equal)} | {one.seconds:.0f} |"
        for one in verdicts
    ]
    lines.append("\n## What each one found\n")
    for one in verdicts:
        lines.append(f"**{one.name}** ({one.action or 'no action'}): {_cell(one.detail)}.\n")
    return HEAD + "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)

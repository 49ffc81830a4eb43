"""Lists the drills, selects some of them, and runs them one after another."""

from __future__ import annotations

import contextlib
import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TextIO

from runbook.core.errors import ParamsError, RunbookError
from runbook.tools.drills import damaged_files, process_drills, random_kills
from runbook.tools.drills.bench import Bench, DrillEnding, DrillVerdict, judge_ending
from runbook.tools.drills.messages import DrillMessage

Drill = Callable[[Bench], DrillEnding]

DRILLS: dict[str, Drill] = {
    "01-kill-rank": process_drills.kill_rank,
    "02-kill-launcher": process_drills.kill_launcher,
    "03-kill-in-save": damaged_files.kill_in_save,
    "04-damaged-checkpoint": damaged_files.damaged_checkpoints,
    "05-tracker": damaged_files.lost_tracker,
    "06-disk-full": damaged_files.disk_full,
    "07-preemption": process_drills.preemption,
    "08-hang": process_drills.hang,
    "09-straggler": process_drills.straggler,
    "10-stale-lock": process_drills.stale_lock,
    "11-bad-numbers": damaged_files.bad_numbers,
    "12-bad-data": damaged_files.bad_data,
    "13-other-layout": damaged_files.other_layout,
    "14-rendezvous": process_drills.rendezvous,
    "15-clock-and-limits": process_drills.clocks,
    "16-node-loss": process_drills.node_loss,
    "17-same-failure": process_drills.same_failure,
    "18-vanished-outputs": process_drills.vanished_outputs,
    "19-kernel-restart": process_drills.kernel_restart,
    "20-random-kills": random_kills.random_kills,
}


def chosen_drills(names: Sequence[str]) -> list[str]:
    """Return the named drills, or all drills if none is named.

    A drill may be given by its full name, by its number alone, or by its name without the number.

    >>> chosen_drills(["1", "same-failure"])
    ['01-kill-rank', '17-same-failure']
    """
    return list(dict.fromkeys(map(_drill_named, names))) or list(DRILLS)


def summary(name: str) -> str:
    """Describe a drill in one line."""
    return (DRILLS[name].__doc__ or "").strip().partition("\n")[0]


def _drill_named(word: str) -> str:
    """Return the drill name that a word refers to.

    Raise `ParamsError` with the nearest names if no drill matches.
    """
    for name in DRILLS:
        number, _, label = name.partition("-")
        if word in (name, number, number.lstrip("0"), label):
            return name

    names_by_label = {name.partition("-")[2]: name for name in DRILLS}
    matches = difflib.get_close_matches(word, [*DRILLS, *names_by_label], 2, cutoff=0.55)
    nearest = sorted({names_by_label.get(match, match) for match in matches})
    if nearest:
        hint = f"Did you mean {' or '.join(nearest)}?"
    else:
        hint = f"There are {', '.join(DRILLS)}."

    raise ParamsError(DrillMessage.NO_SUCH_DRILL, word=word, hint=hint)


def do_drills(names: Sequence[str], log: TextIO) -> Iterator[DrillVerdict]:
    """Yield the verdict on each drill as soon as it is available.

    The training runs write their output to `log`.
    """
    with Bench() as bench:
        for name in names:
            with contextlib.redirect_stdout(log):
                verdict = do_drill(bench, name)
            yield verdict


def do_attempts(names: Sequence[str], log: TextIO, *, again: bool) -> Iterator[DrillVerdict]:
    """Yield the verdicts on all drills.

    If `again` is set, repeat each failed drill once, and also yield the verdict on the second
    attempt.
    """
    failed = []
    for verdict in do_drills(names, log):
        yield verdict
        if verdict.verdict != "pass":
            failed.append(verdict.name)

    if again and failed:
        for verdict in do_drills(failed, log):
            yield replace(verdict, attempt=2)


def do_drill(bench: Bench, name: str) -> DrillVerdict:
    """Run one drill on an open bench.

    A drill that raises an error has failed.
    """
    began = time.monotonic()
    try:
        ending = DRILLS[name](bench)
    except (RunbookError, OSError, ValueError, LookupError, AssertionError) as error:
        ending = DrillEnding((DRILLS[name].__doc__ or "").strip())
        ending.rule(False, f"{type(error).__name__}: {error}")

    seconds = time.monotonic() - began
    return judge_ending(name, ending, bench.end_left(), seconds)

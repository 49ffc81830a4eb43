"""The twenty drills by name, in the order of the table, and how they are done one after the other."""

from __future__ import annotations

import contextlib
import difflib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from runbook.drills import checkpoints, data, meeting, random_kills, ranks, records
from runbook.drills.bench import Bench
from runbook.drills.verdict import Ending, Verdict, judge
from runbook.errors import ParamsError, RunbookError

Drill = Callable[[Bench], Ending]

DRILLS: dict[str, Drill] = {
    "01-kill-rank": ranks.kill_rank,
    "02-kill-launcher": ranks.kill_launcher,
    "03-kill-in-save": checkpoints.kill_in_save,
    "04-damaged-checkpoint": checkpoints.damaged,
    "05-tracker": checkpoints.tracker,
    "06-disk-full": checkpoints.disk_full,
    "07-preemption": ranks.preemption,
    "08-hang": ranks.hang,
    "09-straggler": ranks.straggler,
    "10-stale-lock": records.stale_lock,
    "11-bad-numbers": data.bad_numbers,
    "12-bad-data": data.bad_data,
    "13-other-layout": checkpoints.reshape,
    "14-rendezvous": meeting.rendezvous,
    "15-clock-and-limits": records.clocks,
    "16-node-loss": ranks.node_loss,
    "17-same-failure": ranks.same_failure,
    "18-vanished-outputs": records.vanished_outputs,
    "19-kernel-restart": records.kernel_restart,
    "20-random-kills": random_kills.random_kills,
}


def chosen(names: Sequence[str]) -> list[str]:
    """The drills that were named, all where none is; a name may be its number alone, or its words alone.

    >>> chosen(["1", "same-failure"])
    ['01-kill-rank', '17-same-failure']
    """
    return list(dict.fromkeys(_one(name) for name in names)) or list(DRILLS)


def summary(name: str) -> str:
    """What a drill does, in one line."""
    return (DRILLS[name].__doc__ or "").strip().partition("\n")[0]


def _one(word: str) -> str:
    for name in DRILLS:
        number, _, words = name.partition("-")
        if word in (name, number, number.lstrip("0"), words):
            return name
    words_of = {name.partition("-")[2]: name for name in DRILLS}
    near = difflib.get_close_matches(word, [*DRILLS, *words_of], 2, cutoff=0.55)
    nearest = sorted({words_of.get(one, one) for one in near})
    meant = f"Did you mean {' or '.join(nearest)}?" if nearest else f"There are {', '.join(DRILLS)}."
    raise ParamsError(f"There is no drill {word!r}. {meant}")


def do(names: Sequence[str], log: TextIO) -> Iterator[Verdict]:
    """Each drill's verdict as soon as it is there; what the trainings say goes to `log`."""
    with Bench() as bench:
        for name in names:
            with contextlib.redirect_stdout(log):
                verdict = do_one(bench, name)
            yield verdict


def do_one(bench: Bench, name: str) -> Verdict:
    """One drill on a bench that is open; whatever of it cannot go on is a failed drill."""
    began = time.monotonic()
    try:
        ending = DRILLS[name](bench)
    except (RunbookError, OSError, ValueError, LookupError, AssertionError) as error:
        ending = Ending((DRILLS[name].__doc__ or "").strip())
        ending.rule(False, f"{type(error).__name__}: {error}")
    seconds = time.monotonic() - began
    return judge(name, ending, bench.end_left(), seconds)

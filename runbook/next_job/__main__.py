"""Decides what to do after an attempt to run a job. The job runs this program after each attempt.

    python -m runbook.next_job --job jobs/04-training --code 1 ...

It reads job logs and run files. It writes `decision` (see `write_decision`), one event `ended`, and
the nodes that caused the failure. It uses only the standard library and Python 3.10 syntax.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from runbook.next_job.attempts import (
    EndedJob,
    JobEvent,
    json_lines,
    read_attempt,
    read_steps,
    split_by_attempt,
)
from runbook.next_job.decisions import (
    DECIDED_BY_JOB,
    Attempt,
    Decision,
    decide_restart,
    may_start_again_here,
)
from runbook.next_job.job_files import JobFiles, read_or_empty
from runbook.next_job.suspect_nodes import nodes_to_replace
from runbook.plan_file.bad_node_lifetimes import LIFETIMES, FoundBy
from runbook.plan_file.errors import FINISHED, STOPPED
from runbook.plan_file.job_ends import Action, EndCause, JobEnd, JobState
from runbook.plan_file.json_records import append_line


def main(argv: Sequence[str] | None = None) -> int:
    """Decide what to do after the newest attempt of a job, and record the decision."""
    arguments = _parser().parse_args(argv)
    files = JobFiles(arguments.job, arguments.events, arguments.metrics, arguments.tracker)
    end = JobEnd(_state(files.folder, arguments.code), arguments.code, arguments.signal)
    attempts = read_attempts(files, end, arguments.reason)
    decision = decide_restart([attempt for _, attempt in attempts], arguments.restarts)
    allocation, last = attempts[-1]
    goes_on_here = decision.action is Action.GO_ON and may_start_again_here(
        [attempt for place, attempt in attempts if place == allocation]
    )
    suspects = nodes_to_replace(files, last, arguments.stages, arguments.spares)
    write_decision(files.folder, decision, goes_on_here, suspects)
    append_line(files.events, _ended_event(files, last, decision, arguments.phase))
    for node in last.bad_nodes:
        append_line(files.folder / "bad_nodes.jsonl", _bad_node(node, last, arguments.run))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m runbook.next_job", description=__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--phase", required=True)
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--metrics", type=Path, required=True)
    parser.add_argument("--tracker", type=Path)
    parser.add_argument("--restarts", type=int, required=True)
    parser.add_argument("--stages", type=int, default=1, help="pipeline stages of the training")
    parser.add_argument("--spares", type=int, default=0, help="nodes that did not train")
    parser.add_argument("--code", type=int, required=True)
    parser.add_argument("--signal", type=_number)
    parser.add_argument("--reason", required=True)
    return parser


def _number(text: str) -> int | None:
    return int(text) if text else None


def _state(folder: Path, code: int) -> JobState:
    """Return how the attempt ended.

    `job_folder.read_end` applies the same rules to a whole job.
    """
    if code == FINISHED:
        return JobState.DONE
    if (folder / "cancelled").exists():
        return JobState.CANCELLED
    if (folder / "timed_out").exists():
        return JobState.TIMEOUT
    if code == STOPPED:
        return JobState.STOPPED
    return JobState.FAILED


def read_attempts(files: JobFiles, end: JobEnd, reason: str) -> list[tuple[str, Attempt]]:
    """Return all attempts, oldest first, each with the queue id for its allocation.

    `end` says how the newest attempt ended, which is not recorded yet. An earlier attempt without
    an event `ended` was killed together with its script.
    """
    slices = split_by_attempt(list(json_lines(files.events)), files.name)
    attempts = []
    for events in slices[:-1]:
        attempts.append((str(events[0].get("id", "")), _earlier_attempt(files, events)))
    newest = slices[-1] if slices else []
    job = EndedJob(
        files.name,
        end,
        reason,
        files.log_lines(),
        files.nodes(),
    )
    attempt = read_attempt(job, newest, files.metrics)
    if files.tracker is not None:
        attempt = _with_saved_steps(attempt, newest, saved_iteration(files.tracker))
    allocation = str(newest[0].get("id", "")) if newest else ""
    return [*attempts, (allocation, attempt)]


def _earlier_attempt(files: JobFiles, events: Sequence[JobEvent]) -> Attempt:
    """Return an attempt as described by its event `ended`.

    An attempt without this event was killed.
    """
    ended = next((event for event in events if event.get("event") == "ended"), None)
    if ended is None:
        began_at, reached = read_steps(events, files.metrics)
        end = JobEnd(JobState.LOST, cause=EndCause.KILLED)
        return Attempt(
            files.name,
            end,
            began_at,
            reached,
            failure=str(EndCause.KILLED),
        )

    cause = ended.get("cause")
    end = JobEnd(
        JobState(str(ended.get("state"))),
        ended.get("exit_code"),
        ended.get("ended_by_signal"),
        EndCause(str(cause)) if cause else None,
    )
    return Attempt(
        files.name,
        end,
        ended.get("began_at"),
        int(ended.get("reached") or 0),
        failure=str(ended.get("failure") or ""),
    )


def _with_saved_steps(attempt: Attempt, events: Sequence[JobEvent], saved: int) -> Attempt:
    """Return an attempt by an upstream program, for which only saved steps count."""
    began_at = int(events[0].get("saved") or 0) if events else 0
    return Attempt(
        attempt.job,
        attempt.end,
        began_at,
        max(saved, began_at),
        attempt.reason,
        attempt.failure,
        attempt.evidence,
        attempt.remedy,
        attempt.bad_nodes,
    )


def saved_iteration(tracker: Path) -> int:
    """Return the iteration in a tracker file, which may be written as global_step120.

    The result is 0 if nothing was saved.
    """
    match = re.search(r"\d+", read_or_empty(tracker))
    return int(match[0]) if match else 0


def write_decision(
    folder: Path,
    decision: Decision,
    here: bool,
    suspects: Sequence[str],
) -> None:
    """Write `decision`, with one item per line.

    The items are the action, whether it happens in the same allocation, the nodes to replace, the
    reason, and the seconds that the next job must wait.
    """
    lines = [
        str(decision.action),
        "here" if here else "elsewhere",
        " ".join(suspects),
        " ".join(decision.why.split()),
        f"{decision.wait_seconds:.0f}",
    ]
    part = folder / "decision.part"
    part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    part.replace(folder / "decision")


def _ended_event(
    files: JobFiles,
    attempt: Attempt,
    decision: Decision,
    phase: str,
) -> dict[str, object]:
    now = time.time()
    facts = {
        "time": now,
        "event": "ended",
        "phase": phase,
        "job": files.name,
        "state": str(attempt.end.state),
        "exit_code": attempt.end.exit_code,
        "at": now,
        "decision": str(decision.action),
        "why": decision.why,
        "waits": decision.wait_seconds,
        "by": DECIDED_BY_JOB,
        "began_at": attempt.began_at,
        "reached": attempt.reached,
        "ended_by_signal": attempt.end.signal,
        "cause": str(attempt.end.cause) if attempt.end.cause else None,
    }
    for name in ("failure", "evidence", "remedy"):
        value = getattr(attempt, name)
        if value:
            facts[name] = str(value)

    return facts


def _bad_node(node: str, attempt: Attempt, run: str) -> dict[str, object]:
    """Return a line for the file that `runbook nodes` reads."""
    now = time.time()
    return {
        "node": node,
        "found_by": FoundBy.FAILURE,
        "evidence": attempt.evidence[:300],
        "run": run,
        "job": attempt.job,
        "found": now,
        "expires": now + LIFETIMES[FoundBy.FAILURE],
    }


if __name__ == "__main__":
    sys.exit(main())

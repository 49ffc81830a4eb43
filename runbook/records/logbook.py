"""Makes the logbook for a run from events.jsonl: logbook.md, and the entries in the report.

events.jsonl is append-only, and users' notes are events too. The text for each kind of event is in
pages/templates/logbook.j2.
"""

import math
import time
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import UndefinedError
from markupsafe import Markup

from runbook.core.errors import RecordError
from runbook.core.files import read_lines, write_text
from runbook.core.locks import hold_file
from runbook.core.processes import user_name
from runbook.core.units import in_words
from runbook.core.visible_text import visible
from runbook.params.secrets import mask, mask_value
from runbook.plan_file.json_records import append_line
from runbook.records.manifest import begins_as, note_files, read_manifest
from runbook.records.messages import RecordMessage
from runbook.records.pages.page_parts import environment

EVENTS = "events.jsonl"
LOGBOOK = "logbook.md"
ROUTINE = frozenset({"saved", "network", "reloaded"})
"""Routine events, which are left out of the logbook but stay in events.jsonl."""
LAST_MOMENT = 253_402_300_800.0
"""The end of the year 9999, in seconds since 1970."""
LONGEST_NOTE = 10_000


class LogbookEntry(NamedTuple):
    """An event in the run.

    `loss_around` is an iteration around which the event may have affected the loss, or 0.
    """

    moment: str
    text: Markup
    loss_around: int


def make_entry(event: Mapping[str, Any]) -> LogbookEntry:
    """Return an event as readable text, or as keys and values if a different version wrote it.

    Secrets are masked, because messages from other programs may contain some.
    """
    event = mask_value(dict(event))
    module: Any = environment().get_template("logbook.j2").module
    try:
        text = module.words(event)
    # The event has text where a number is expected, because another version wrote it or it was
    # edited.
    except (UndefinedError, TypeError, ValueError, ArithmeticError):
        facts = {}
        for key, value in event.items():
            if key not in ("time", "event", "phase"):
                facts[in_words(key)] = value

        facts = {key: value if _is_plain(value) else str(value) for key, value in facts.items()}
        text = module.facts(in_words(str(event["event"])), facts)

    moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(_time_of(event)))
    since = event.get("since", 0)
    if event.get("metric") == "loss" and type(since) is int:
        around = since
    else:
        around = 0

    return LogbookEntry(
        f"{moment} {event.get('phase', '')}".strip(), Markup(visible(str(text).strip())), around
    )


def _is_plain(value: object) -> bool:
    return isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value))


def _time_of(event: Mapping[str, Any]) -> float:
    """Return the event time in seconds since 1970, or 0 if it is missing or impossible."""
    moment = event.get("time", 0)
    is_number = isinstance(moment, int | float) and not isinstance(moment, bool)
    return moment if is_number and 0 <= moment < LAST_MOMENT else 0


def write_logbook(run_folder: Path) -> list[LogbookEntry]:
    """Rewrite logbook.md if there are new events. Entries of all jobs are in chronological order."""
    events = []
    for event in read_lines(run_folder / EVENTS):
        if isinstance(event.get("event"), str) and event["event"] not in ROUTINE:
            events.append(event)

    entries = [make_entry(event) for event in sorted(events, key=_time_of)]
    if entries:
        lines = [f"\n- **{entry.moment}**: {unescape(entry.text)}\n" for entry in entries]
        write_text(run_folder / LOGBOOK, "".join([f"# Logbook of {run_folder.name}\n", *lines]))
        note_files(run_folder, [run_folder / LOGBOOK])

    return entries


def add_note(run_folder: Path, text: str) -> str:
    """Append a note from the user to the events, and return it with secrets masked.

    More than one process may append at a time. Anything in the note that looks like a secret is
    masked first.
    """
    written = visible(" ".join(text.split()))
    text = mask(written)
    path = run_folder / EVENTS
    if not 0 < len(text) <= LONGEST_NOTE:
        raise RecordError(
            RecordMessage.NOTE_LENGTH, longest_note=LONGEST_NOTE, number_of_text=len(text)
        )

    event = {
        "time": time.time(),
        "event": "note",
        "by": user_name(),
        "text": text,
    }
    with hold_file(run_folder / "note.lock", "a note", wait_seconds=60):
        before = read_manifest(run_folder).get(EVENTS)
        is_whole = before is None or begins_as(path, before)
        append_line(path, event)
        # Without this check, an edit made since the last record would be recorded as correct.
        if is_whole:
            note_files(run_folder, [path])
        write_logbook(run_folder)

    masked = ""
    if text != written:
        masked = " (what looks like a secret was cut out)"
    return RecordMessage.NOTED.fill(text=text, masked=masked)

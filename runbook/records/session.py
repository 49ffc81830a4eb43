"""The record of a notebook, kept from inside its kernel while the notebook runs.

    session = start(settings, phase, run_folder)      opens the record; again in one execution: the same record
    session.check(name, verdict, value, rule)         one row of the checks; the same name again replaces the row
    session.result(key, value)                        one number or text of the results
    session.plan[key] = value                         what was foreseen, beside the result of the same key
    session.finish() -> Twin                          the notebook came to its end

It works alike under papermill (its own engine or ours), nbconvert, `jupyter execute` and JupyterLab, because it needs
nothing of them: a hook after each cell notes how the cell ended and writes the twin. Without a kernel (a test, a
script) the same calls write the same twin, with every cell pending.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any, Protocol

from runbook.errors import RecordError
from runbook.plan.checks import Check
from runbook.records.cells import CellStates, read_master
from runbook.records.files import utc_now
from runbook.records.history import set_aside
from runbook.records.manifest import note_files
from runbook.records.origin import commit_of, versions
from runbook.records.state import State
from runbook.records.twin import RUNNING, Twin, plain, twin_path, verdict_of, write_twin

_log = logging.getLogger(__name__)

MIME = "application/vnd.runbook.v1+json"
"""Type of the output by which an executed notebook names its run, phase and execution."""
VERDICTS = ("pass", "fail", "warn", "unknown")
REASON_LINES = 12
"""Lines of an error's text kept as the reason; the traceback is in the notebook."""


class RecordedSettings(Protocol):
    """What a record needs of `params.Settings`."""

    @property
    def project(self) -> Path:
        """The folder that holds params/ and notebooks/."""

    @property
    def name(self) -> str:
        """Name of the run's folder."""

    def parameters(self) -> dict[str, Any]:
        """Every value and its origin, by dotted key."""


_sessions: dict[tuple[Path, str], Session] = {}


def start(settings: RecordedSettings, phase: str, run_folder: Path) -> Session:
    """Open the record of this execution, or find the one that is open.

    An earlier record of the phase moves to records/history, unless it is this execution's own. A record that was
    finished, or whose notebook stopped at an error, is an earlier one.
    """
    key = (run_folder.absolute(), phase)
    session = _sessions.get(key)
    if session is None or session.is_over:
        if session is not None:
            session.close()
        session = _sessions[key] = Session(settings, phase, run_folder.absolute())
    session.announce()
    return session


class Session:
    """The open record of one execution; `start` makes it."""

    def __init__(self, settings: RecordedSettings, phase: str, run_folder: Path) -> None:
        self.phase = phase
        self.run_folder = run_folder
        self.plan: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self._checks: dict[str, Check] = {}
        self._failures: dict[str, tuple[State, str]] = {}
        self._finished = self._failed = ""
        self._parameters = plain(settings.parameters(), "parameters")
        self._run, self._commit, self._versions = settings.name, commit_of(settings.project), versions()
        self._cells = CellStates(read_master(settings.project / "notebooks" / f"{phase}.ipynb"))
        self.started = utc_now()
        if twin_path(run_folder, phase).exists():
            set_aside(run_folder, phase, keep_newer_notebook=True)
        self._is_open = False
        self._shell = _find_shell()
        if self._shell is not None:
            self._cells.mark_earlier(self._shell.history_manager.input_hist_raw)
            self._shell.events.register("post_run_cell", self._after_cell)
        self._write()

    @property
    def is_over(self) -> bool:
        """Finished, or stopped by an error."""
        return bool(self._finished or self._failures)

    def check(self, name: str, verdict: str, value: object, rule: str) -> Check:
        """Record a check: what was looked at, how it went, the value found, the rule it is held against."""
        if verdict not in VERDICTS:
            raise RecordError(f"check {name!r} has the verdict {verdict!r}; the verdicts are {', '.join(VERDICTS)}.")
        self._checks[name] = Check(name, verdict, str(value), rule)
        return self._checks[name]

    def result(self, key: str, value: object) -> None:
        """Record a result; numbers of numpy become plain ones, NaN becomes the text `nan`."""
        self.results[key] = plain(value, f"result {key}")

    def finish(self) -> Twin:
        """The notebook came to its end: write the twin with its verdict. What cells do afterwards is still noted."""
        self._finished = utc_now()
        return self._write()

    def twin(self) -> Twin:
        """The record as it stands now."""
        state, reason = self._state()
        return Twin(
            run=self._run,
            phase=self.phase,
            state=state,
            verdict=verdict_of(state, self._checks.values()),
            started=self.started,
            ended=self._failed if self._failures else self._finished,
            reason=reason,
            commit=self._commit,
            versions=self._versions,
            parameters=self._parameters,
            plan=plain(self.plan, "plan"),
            results=plain(self.results, "results"),
            checks=tuple(self._checks.values()),
            cells=self._cells.as_cells(),
        )

    def announce(self) -> None:
        """Say in the notebook's output which run this is, so that the executed notebook can be filed with it."""
        if self._shell is None:
            return
        told = {"run_folder": str(self.run_folder), "phase": self.phase, "execution": self.started}
        text = f"Record of this notebook: {self.run_folder.name}/records/{self.phase}.json"
        self._shell.display_pub.publish({MIME: told, "text/plain": text})

    def close(self) -> None:
        """Stop listening; a newer execution has taken over."""
        if self._shell is not None and self._after_cell in self._shell.events.callbacks["post_run_cell"]:
            self._shell.events.unregister("post_run_cell", self._after_cell)

    def _state(self) -> tuple[State, str]:
        if self._failures:
            return next(reversed(self._failures.values()))
        if self._finished:
            return State.DONE, ""
        return State.INTERRUPTED, RUNNING

    def _after_cell(self, result: Any) -> None:
        """IPython calls this after each cell, failed or not."""
        error = result.error_before_exec or result.error_in_exec
        source, cell_id = result.info.raw_cell, getattr(result.info, "cell_id", None) or ""
        name = self._cells.mark(source, "failed" if error else "completed", cell_id)
        self._failures.pop("", None)  # a cell outside the master counts only until the next one runs
        self._failures.pop(name, None)
        if error is not None:
            self._failures[name] = (_state_of(error), _reason_of(error))
            self._failed = utc_now()
        try:
            self._write()
        except RecordError as trouble:  # it is written again after the next cell, and must be by `finish`
            _log.error("The record is not up to date: %s", trouble)

    def _write(self) -> Twin:
        twin = self.twin()
        path = twin_path(self.run_folder, self.phase)
        other = _started_in(path) if self._is_open else ""
        if other and other != self.started:
            raise RecordError(
                f"{path} belongs to another execution of {self.phase}, begun {other}; this one began {self.started} "
                "and writes nothing over it. Go on in that notebook, or begin anew here from the first cell."
            )
        write_twin(twin, path)
        self._is_open = True
        if twin.ended:
            note_files(self.run_folder, [path])
        return twin


def _started_in(path: Path) -> str:
    """Which execution a twin is of; empty where there is none that could be read."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["started"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _find_shell() -> Any:
    """The IPython shell we run in, or None; nothing of IPython is imported to find out."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def _state_of(error: BaseException) -> State:
    return State.INTERRUPTED if isinstance(error, KeyboardInterrupt) else State.FAILED


def _reason_of(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "the cell was interrupted"
    lines = str(error).strip().splitlines()
    more = [f"... {len(lines) - REASON_LINES} more lines in the notebook"] if len(lines) > REASON_LINES else []
    return f"{type(error).__name__}: " + "\n".join(lines[:REASON_LINES] + more)

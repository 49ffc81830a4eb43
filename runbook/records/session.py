"""Writes the record for a notebook from inside its kernel, while the notebook runs.

    session = start(settings, phase, run_folder)   opens the record; a second call in the same
                                                   execution returns the same record
    session.check(check)                           adds a row for a check, or replaces the row with
                                                   the same name
    session.add_results({key: value})              adds numbers or texts to the results
    session.plan[key] = value                      sets the planned value for this result
    session.finish() -> PhaseRecord                completes the notebook; the record is final

The session works the same way under papermill, nbconvert, `jupyter execute` and JupyterLab, because
it depends on none of them: after each cell, a hook notes how the cell ended and writes the record.
Without a kernel (in a test or a script), the same calls write the same record, with every cell
pending.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook.core.checks import Check
from runbook.core.errors import RecordError
from runbook.core.files import utc_now
from runbook.records.engine.execution_end import ExecutionState
from runbook.records.manifest import note_files, set_aside
from runbook.records.messages import RecordMessage
from runbook.records.phase_record import (
    Cell,
    PhaseRecord,
    open_phase_record,
    phase_record_path,
    plain,
    read_phase_record,
    verdict_of,
    write_phase_record,
)

if TYPE_CHECKING:
    from runbook.params import Settings


@dataclass(frozen=True)
class MasterCell:
    """A code cell of the master: its id and its source."""

    id: str
    source: str
    is_parameters: bool = False


def read_master(notebook: Path) -> tuple[MasterCell, ...]:
    """Return the code cells in a notebook in order.

    Return an empty tuple if the notebook does not exist, for example if a phase has no notebook.
    """
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(RecordMessage.NOT_A_NOTEBOOK, notebook=notebook, error=error) from error

    code = [cell for cell in cells if cell["cell_type"] == "code"]
    return tuple(
        MasterCell(
            cell.get("id", f"cell-{index}"),
            source,
            "parameters" in cell["metadata"].get("tags", []),
        )
        for index, cell in enumerate(code)
        if (source := "".join(cell["source"])).strip()
    )


class CellStates:
    """Keeps the state of each code cell in the master notebook.

    Cells that are not in the master notebook, such as injected parameters, are not counted.
    """

    def __init__(self, master: tuple[MasterCell, ...]) -> None:
        self._master = master
        self._states = {cell.id: "pending" for cell in master}

    def mark(
        self,
        source: str,
        state: str,
        cell_id: str = "",
    ) -> str:
        """Record how a cell ended.

        Return the cell id, or an empty string if the master has no such cell. JupyterLab provides
        the id of the cell that it runs. papermill and nbconvert do not, so the cell is identified
        by its source.
        """
        name = cell_id
        if cell_id not in self._states:
            same = []
            for cell in self._master:
                if cell.source.strip() == source.strip():
                    same.append(cell.id)

            name = next(
                (name for name in same if self._states[name] == "pending"), same[-1] if same else ""
            )

        if name:
            self._states[name] = state
        return name

    def mark_earlier(self, history: Sequence[str]) -> None:
        """Record the cells that ran before this record was opened.

        The last entry in the kernel history is the running cell; earlier entries are the cells that
        ran before it. These may include cells further down in the notebook, if the user ran those
        first.
        """
        ran = [source.strip() for source in history]
        sources = [cell.source.strip() for cell in self._master]
        current = sources.index(ran[-1]) if ran and ran[-1] in sources else 0
        for cell, source in zip(self._master[:current], sources, strict=False):
            # Users change the parameters cell before they run it, so its source differs from the
            # master.
            if cell.is_parameters or source in ran:
                self._states[cell.id] = "completed"

    def as_cells(self) -> tuple[Cell, ...]:
        """Return all cells in the order of the master, with their states."""
        return tuple(Cell(name, state) for name, state in self._states.items())


_log = logging.getLogger(__name__)

MIME = "application/vnd.runbook.v1+json"
"""MIME type for the output that tells which run, phase and execution a notebook belongs to."""
# Number of lines to keep from an error text as the reason; the traceback is in the notebook
REASON_LINES = 12


_sessions: dict[tuple[Path, str], Session] = {}


def start(settings: Settings, phase: str, run_folder: Path) -> Session:
    """Open a record for this execution, or return the session that has it open.

    An earlier record of the phase moves to records/history, unless it belongs to this execution. A
    finished record counts as an earlier record, and so does one from a notebook that stopped at an
    error. A kernel keeps one record at a time, and all cells that run after this call belong to it.
    """
    key = (run_folder.absolute(), phase)
    for open_session in _sessions.values():
        open_session.close()
    session = _sessions.get(key)
    if session is None or session.is_over:
        session = _sessions[key] = Session(settings, phase, run_folder.absolute())
    session.attach()
    return session


class Session:
    """An open record for an execution. `start` returns the session."""

    def __init__(
        self,
        settings: Settings,
        phase: str,
        run_folder: Path,
    ) -> None:
        self.phase = phase
        self.run_folder = run_folder
        self.plan: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self._checks: dict[str, Check] = {}
        self._failures: dict[str, tuple[ExecutionState, str]] = {}
        self._finished = self._failed = ""
        self._is_frozen = self._is_open = False
        self._cells = CellStates(read_master(settings.project / "notebooks" / f"{phase}.ipynb"))
        self.started, parameters = utc_now(), plain(settings.parameters(), "parameters")
        self._opened = open_phase_record(
            settings.name,
            phase,
            self.started,
            settings.project,
            parameters=parameters,
        )
        if phase_record_path(run_folder, phase).exists():
            set_aside(run_folder, phase, keep_newer_notebook=True)
        # IPython is not imported merely to determine whether it is running.
        ipython = sys.modules.get("IPython")
        self._shell: Any = ipython.get_ipython() if ipython is not None else None
        if self._shell is not None:
            self._cells.mark_earlier(self._shell.history_manager.input_hist_raw)
        self._write()

    @property
    def is_over(self) -> bool:
        """Whether the notebook has finished or was stopped by an error."""
        return bool(self._finished or self._failures)

    def verdict(self, name: str) -> str:
        """Return the verdict that this execution has recorded for a check.

        Return an empty string if the check was not recorded.
        """
        return self._checks[name].verdict if name in self._checks else ""

    def check(self, check: Check) -> None:
        """Record a check with its subject, verdict, measured value and rule."""
        self._checks[check.name] = check

    def add_results(self, results: Mapping[str, object]) -> None:
        """Record results by name.

        numpy numbers become plain numbers, and NaN becomes the text `nan`.
        """
        self.results |= {key: plain(value, f"result {key}") for key, value in results.items()}

    def finish(self) -> PhaseRecord:
        """Write the record and its verdict when the notebook is complete.

        Once this cell has ended without an error, the record is frozen, so later cells do not
        change it. A second call writes the record again, with the checks and results recorded by
        then.
        """
        self._finished = utc_now()
        self._is_frozen = False
        return self._write()

    def fail(self, error: Exception) -> PhaseRecord:
        """Write the record for a phase that ran outside a notebook and was stopped by an error.

        In a notebook, the hook that runs after each cell records the error instead.
        """
        self._failures[""] = _state_and_reason(error)
        self._failed = utc_now()
        return self._write()

    def _record_so_far(self) -> PhaseRecord:
        state = self._opened.state
        reason = self._opened.reason
        if self._failures:
            state, reason = next(reversed(self._failures.values()))
        elif self._finished:
            state = ExecutionState.DONE
            reason = ""

        return replace(
            self._opened,
            state=state,
            verdict=verdict_of(state, self._checks.values()),
            ended=self._failed if self._failures else self._finished,
            reason=reason,
            plan=plain(self.plan, "plan"),
            results=plain(self.results, "results"),
            checks=tuple(self._checks.values()),
            cells=self._cells.as_cells(),
        )

    def attach(self) -> None:
        """Start recording how each cell ends.

        Also output the run that this record belongs to.
        """
        if self._shell is None:
            return
        self._shell.events.register("post_run_cell", self._after_cell)
        announcement = {
            "run_folder": str(self.run_folder),
            "phase": self.phase,
            "execution": self.started,
        }
        text = f"Record of this notebook: {self.run_folder.name}/records/{self.phase}.json"
        self._shell.display_pub.publish({MIME: announcement, "text/plain": text})

    def close(self) -> None:
        """Stop recording, because the next cells in this kernel belong to a different record."""
        if self._shell is not None:
            with contextlib.suppress(ValueError):  # The hook was no longer registered.
                self._shell.events.unregister("post_run_cell", self._after_cell)

    def _after_cell(self, result: Any) -> None:
        if self._is_frozen:
            return
        error = result.error_before_exec or result.error_in_exec
        source = result.info.raw_cell
        cell_id = getattr(result.info, "cell_id", None) or ""
        name = self._cells.mark(source, _cell_state(error), cell_id)
        # A failed cell that is not in the master determines the state only until the next cell
        # runs.
        self._failures.pop("", None)
        self._failures.pop(name, None)
        if error is not None:
            self._failures[name] = _state_and_reason(error)
            self._failed = utc_now()
            self._finished = ""

        try:
            self._write()
        except RecordError as trouble:
            # Ignore the error, because the record is written again after the next cell, or at the
            # latest by `finish`.
            _log.error(RecordMessage.RECORD_NOT_UP_TO_DATE.fill(error=trouble))

        self._is_frozen = bool(self._finished) and not self._failures

    def _write(self) -> PhaseRecord:
        record = self._record_so_far()
        path = phase_record_path(self.run_folder, self.phase)
        recorded_start = self.started
        with contextlib.suppress(RecordError):  # No readable record exists.
            recorded_start = read_phase_record(path).started
        if self._is_open and recorded_start != self.started:
            raise RecordError(
                RecordMessage.RECORD_OF_ANOTHER_EXECUTION,
                path=path,
                phase=self.phase,
                recorded_start=recorded_start,
                started=self.started,
            )

        write_phase_record(record, path)
        self._is_open = True
        if record.ended:
            note_files(self.run_folder, [path])
        return record


def _cell_state(error: BaseException | None) -> str:
    if error is None:
        return "completed"
    return str(_state_and_reason(error)[0])


def _state_and_reason(error: BaseException) -> tuple[ExecutionState, str]:
    if isinstance(error, KeyboardInterrupt):
        return ExecutionState.INTERRUPTED, RecordMessage.CELL_INTERRUPTED.fill()
    lines = str(error).strip().splitlines()
    num_hidden = len(lines) - REASON_LINES
    if num_hidden > 0:
        more_lines = RecordMessage.MORE_LINES.fill(lines=num_hidden)
        lines = [*lines[:REASON_LINES], more_lines]
    return ExecutionState.FAILED, f"{type(error).__name__}: " + "\n".join(lines)

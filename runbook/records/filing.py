"""Put an executed notebook among the records of its run: notebook, report and twin that say the same.

file_execution(notebook, record, ended_as) -> Twin | None
file_twin_alone(notebook, record, reason)          where the rest could not be written: the twin says so
announced_by(notebook) -> Announcement | None      which run and execution a notebook says it is
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runbook.records import ipynb
from runbook.records.files import utc_now, write_text
from runbook.records.history import set_aside
from runbook.records.html import ERROR_TAG, write_html
from runbook.records.index import write_campaign, write_runs_index
from runbook.records.manifest import note_files, write_manifest
from runbook.records.origin import commit_of, versions
from runbook.records.session import MIME
from runbook.records.state import State
from runbook.records.twin import RUNNING, Cell, Twin, find_twin, twin_path, verdict_of, write_twin
from runbook.records.whole import write_whole

NEVER_FINISHED = "every cell ran, but the notebook did not finish its record: its last cell is missing"


@dataclass(frozen=True)
class Announcement:
    """What an executed notebook says about itself."""

    run_folder: Path
    phase: str
    execution: str


def announced_by(notebook: Any) -> Announcement | None:
    """The run, phase and execution in a notebook's outputs (the last one counts), or None."""
    told = [
        output["data"][MIME]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if MIME in output.get("data", {})
    ]
    if not told:
        return None
    return Announcement(Path(told[-1]["run_folder"]), told[-1]["phase"], told[-1]["execution"])


def file_execution(
    notebook: Any,
    record: tuple[Path, str] | None = None,
    ended_as: tuple[State | None, str] = (None, ""),
    announced: Announcement | None = None,
) -> Twin | None:
    """Write records/<phase>.{ipynb,html,json}, the pages over them and the manifest; None where no run is known.

    `record` names run folder and phase for a notebook that may have failed before it could; `ended_as` is what the
    engine saw, which counts more than what the kernel could still write; `announced` stands for what the notebook says
    about itself.
    """
    announced = announced or announced_by(notebook)
    if announced is None and record is None:
        return None
    run_folder, phase = record or (announced.run_folder, announced.phase)  # type: ignore[union-attr]
    twin = find_twin(run_folder, phase)
    if twin is not None and (announced is None or twin.started != announced.execution):
        set_aside(run_folder, phase, keep_newer_notebook=True)
        twin = None
    if twin is None:
        twin = _twin_of(notebook, run_folder, phase)
    twin = _as_it_ended(twin, notebook, *ended_as)
    told = {"run": twin.run, "phase": phase, "execution": twin.started}
    notebook.metadata["runbook"] = told | {"state": str(twin.state), "verdict": twin.verdict, "reason": twin.reason}
    write_record(notebook, twin, run_folder)
    return twin


def file_twin_alone(notebook: Any, record: tuple[Path, str] | None, reason: str) -> None:
    """Let the twin say that its notebook could not be filed, and why; results that were reached stay in it."""
    announced = announced_by(notebook)
    if announced is None and record is None:
        return
    run_folder, phase = record or (announced.run_folder, announced.phase)  # type: ignore[union-attr]
    twin = find_twin(run_folder, phase)
    if twin is None or announced is None or twin.started != announced.execution:
        twin = _twin_of(notebook, run_folder, phase)
    verdict = verdict_of(State.FAILED, twin.checks)
    write_twin(
        replace(twin, state=State.FAILED, reason=reason, verdict=verdict, ended=twin.ended or utc_now()),
        twin_path(run_folder, phase),
    )
    note_files(run_folder, [twin_path(run_folder, phase)])


def write_record(notebook: Any, twin: Twin, run_folder: Path) -> None:
    """Write the three forms of one record, then what lies over all records of the run."""
    path = run_folder / "records" / f"{twin.phase}.ipynb"
    write_text(path, ipynb.text_of(notebook))
    write_twin(twin, twin_path(run_folder, twin.phase))
    report = write_html(run_folder, twin.phase)
    write_campaign(run_folder)
    write_whole(run_folder)
    write_manifest(run_folder, [path, report, twin_path(run_folder, twin.phase)])
    write_runs_index(run_folder.parent)


def _as_it_ended(twin: Twin, notebook: Any, state: State | None, reason: str) -> Twin:
    if state is None:  # executed by another tool: its word about the cells is not taken (papermill's own may be wrong)
        state, reason = twin.state, twin.reason
        if twin.is_open:
            reason = f"the record was never finished: {RUNNING}"
    elif state is State.DONE:
        state, reason = (State.FAILED, NEVER_FINISHED) if twin.is_open else (twin.state, twin.reason)
    else:
        if state is State.FAILED and twin.state is State.FAILED:
            reason = twin.reason  # of several lines; the kernel's word for an interruption is not: it knows no cause
        twin = replace(twin, cells=_cells_as_recorded(twin.cells, notebook))
    verdict = verdict_of(state, twin.checks)
    return replace(twin, state=state, reason=reason, verdict=verdict, ended=twin.ended or utc_now())


def _cells_as_recorded(cells: tuple[Cell, ...], notebook: Any) -> tuple[Cell, ...]:
    status = {cell.get("id", ""): _status(cell) for cell in notebook.cells}
    return tuple(Cell(cell.id, status.get(cell.id) or cell.state) for cell in cells)


def _status(cell: Mapping[str, Any]) -> str:
    return str(cell["metadata"].get("papermill", {}).get("status", ""))


def _twin_of(notebook: Any, run_folder: Path, phase: str) -> Twin:
    """A twin of a notebook that stopped before it could write one."""
    left_out = {ERROR_TAG, "injected-parameters"}
    cells = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.source.strip() and not left_out & set(cell.metadata.get("tags", []))
    ]
    started = notebook.metadata.get("papermill", {}).get("start_time") or utc_now()
    return Twin(
        run=run_folder.name,
        phase=phase,
        state=State.INTERRUPTED,
        verdict="unknown",
        started=started.replace("+00:00", "Z"),
        ended="",
        reason=RUNNING,
        commit=commit_of(run_folder),
        versions=versions(),
        parameters={},
        plan={},
        results={},
        checks=(),
        cells=tuple(Cell(cell.get("id", ""), _status(cell) or "pending") for cell in cells),
    )

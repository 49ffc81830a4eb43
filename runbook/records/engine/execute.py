"""Executes a notebook as a phase of a run, and writes the record: notebook, report and JSON."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from runbook.core.errors import RecordError, RunbookError
from runbook.core.files import utc_now, write_text
from runbook.params import parameters_cell as notebook_parameters
from runbook.records import notebook_file
from runbook.records.engine.execution_end import (
    ExecutionState,
    NotebookInterrupted,
    NotebookStopped,
)
from runbook.records.manifest import note_files, set_aside, write_manifest
from runbook.records.messages import RecordMessage
from runbook.records.pages.front_page import write_front_page
from runbook.records.pages.notebook_page import ERROR_TAG, write_html
from runbook.records.pages.runs_index import write_runs_index
from runbook.records.phase_record import (
    RUNNING,
    Cell,
    PhaseRecord,
    find_phase_record,
    open_phase_record,
    phase_record_path,
    verdict_of,
    write_phase_record,
)
from runbook.records.session import MIME, read_master


class Announcement(NamedTuple):
    """The run, phase and execution that identify an executed notebook."""

    run_folder: Path
    phase: str
    execution: str


def announced_by(notebook: Any) -> Announcement | None:
    """Return the run, phase and execution named in notebook outputs, or None.

    If more than one output names an execution, the last output is used.
    """
    outputs = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            outputs.append(output.get("data", {}))

    announced = [data[MIME] for data in outputs if MIME in data]
    if announced:
        return Announcement(**announced[-1] | {"run_folder": Path(announced[-1]["run_folder"])})
    return None


def file_execution(
    notebook: Any,
    record: tuple[Path, str] | None = None,
    ended_as: tuple[ExecutionState | None, str] = (None, ""),
    announced: Announcement | None = None,
) -> PhaseRecord | None:
    """Write records/<phase>.{ipynb,html,json}, the overview pages for the run and the manifest.

    Return the record, or None if the notebook belongs to no known run.

    `record` is the run folder and phase, needed if a notebook failed before it could print them.
    `ended_as` is the state and reason observed by the engine; they override what the kernel
    wrote. `announced` replaces the output where the notebook names its run.
    """
    announced = announced or announced_by(notebook)
    record = record or (announced and announced[:2])
    if record is None:
        return None
    run_folder, phase = record
    ended_record = find_phase_record(run_folder, phase)
    if ended_record is not None and (
        announced is None or ended_record.started != announced.execution
    ):
        set_aside(run_folder, phase, keep_newer_notebook=True)
        ended_record = None

    ended_record = _as_it_ended(
        ended_record or _new_record_of(notebook, run_folder, phase), notebook, *ended_as
    )
    identity = {"run": ended_record.run, "phase": phase, "execution": ended_record.started}
    notebook.metadata["runbook"] = identity | {
        "state": str(ended_record.state),
        "verdict": ended_record.verdict,
        "reason": ended_record.reason,
    }
    # If a different tool executed the notebook, add only the record here. The kernel has already
    # added the files that it wrote.
    by_us = ended_as[0] is not None
    try:
        write_record(notebook, ended_record, run_folder, ended_phase=phase if by_us else "")
    except RunbookError as error:
        path = phase_record_path(run_folder, phase)
        # If the disk has too little space for the notebook, it may still have enough for the
        # record.
        with suppress(RunbookError):
            if by_us:
                write_phase_record(
                    _ended(ended_record, ExecutionState.FAILED, f"not filed: {error}"), path
                )
                note_files(run_folder, [path])

        raise

    return ended_record


def write_record(
    notebook: Any,
    record: PhaseRecord,
    run_folder: Path,
    ended_phase: str = "",
) -> None:
    """Write a record as notebook, report and JSON, then the overview pages and the manifest.

    `ended_phase` is the phase whose execution has ended. The manifest records its files in their
    current state.
    """
    path = run_folder / "records" / f"{record.phase}.ipynb"
    write_text(path, notebook_file.notebook_text(notebook))
    write_phase_record(record, phase_record_path(run_folder, record.phase))
    report = write_html(run_folder, record.phase)
    write_front_page(run_folder)
    write_manifest(
        run_folder, ended_phase, [path, report, phase_record_path(run_folder, record.phase)]
    )
    write_runs_index(run_folder.parent)


def _as_it_ended(
    record: PhaseRecord,
    notebook: Any,
    state: ExecutionState | None,
    reason: str,
) -> PhaseRecord:
    if state is None:
        # A different tool executed the notebook. Its cell states are not used, because papermill
        # may have set them wrong.
        state = record.state
        reason = record.reason
        if record.is_open:
            reason = RecordMessage.NEVER_FINISHED.fill(reason=RUNNING)
    elif state is ExecutionState.DONE and record.is_open:
        state = ExecutionState.FAILED
        reason = RecordMessage.LAST_CELL_MISSING.fill()
    elif state is ExecutionState.DONE:
        state = record.state
        reason = record.reason
    else:
        if state is ExecutionState.FAILED and record.state is ExecutionState.FAILED:
            # The reason may have more than one line. The kernel's reason for an interruption is not
            # used, because a kernel does not know the cause.
            reason = record.reason

        status = {cell.get("id", ""): _status(cell) for cell in notebook.cells}
        record = replace(
            record,
            cells=tuple(Cell(cell.id, status.get(cell.id) or cell.state) for cell in record.cells),
        )

    return _ended(record, state, reason)


def _ended(record: PhaseRecord, state: ExecutionState, reason: str) -> PhaseRecord:
    verdict = verdict_of(state, record.checks)
    return replace(
        record, state=state, reason=reason, verdict=verdict, ended=record.ended or utc_now()
    )


def _status(cell: Any) -> str:
    """Return the cell state that we set, or else the state set by papermill."""
    metadata = cell["metadata"]
    ours = metadata.get("runbook", {}).get("state", "")
    return str(ours or metadata.get("papermill", {}).get("status", ""))


def _new_record_of(notebook: Any, run_folder: Path, phase: str) -> PhaseRecord:
    """Return a record for a notebook that stopped before it could write one."""
    left_out = {ERROR_TAG, "injected-parameters"}
    cells = []
    for cell in notebook.cells:
        if (
            cell.cell_type == "code"
            and cell.source.strip()
            and not left_out & set(cell.metadata.get("tags", []))
        ):
            cells.append(cell)

    started = (notebook.metadata.get("papermill", {}).get("start_time") or utc_now()).replace(
        "+00:00", "Z"
    )
    states = tuple(Cell(cell.get("id", ""), _status(cell) or "pending") for cell in cells)
    return open_phase_record(
        run_folder.name,
        phase,
        started,
        run_folder,
        cells=states,
    )


EXIT_CODES = {
    ExecutionState.DONE: 0,
    ExecutionState.KERNEL_DIED: 138,
    ExecutionState.INTERRUPTED: 130,
}
"""Exit codes by state.

These are the same codes that papermill uses. Any other state exits with 1, and a signal with 128
plus its number.
"""


@dataclass(frozen=True)
class Outcome:
    """How a phase ended when it was executed. Only exit code 0 means success."""

    state: str
    exit_code: int
    message: str
    notebook: Path


def execute_phase(
    notebook: Path,
    run_folder: Path,
    phase: str,
    parameters: Mapping[str, object],
) -> Outcome:
    """Execute a notebook with papermill into records/<phase>.ipynb.

    The earlier record moves to records/history.

    Cell output goes to the papermill logger as it appears. If the notebook fails, this becomes part
    of the outcome and of the record. An error is raised only if no record can be written.
    """
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellControlSignal
    from papermill.exceptions import PapermillException

    if not notebook.exists():
        raise RecordError(RecordMessage.NO_NOTEBOOK, notebook=notebook, phase=phase)

    refuse_hand_edits(notebook, parameters)
    run_folder = run_folder.absolute()
    set_aside(run_folder, phase)
    output = run_folder / "records" / f"{phase}.ipynb"
    output.parent.mkdir(parents=True, exist_ok=True)
    # papermill would treat braces in a path as placeholders for parameters.
    paths = []
    for path in (notebook.absolute(), output):
        paths.append(str(path).replace("{", "{{").replace("}", "}}"))

    code = -1
    error = None
    try:
        papermill.execute_notebook(
            *paths,
            parameters=dict(parameters),
            engine_name="runbook",
            progress_bar=False,
            log_output=True,
            record=(run_folder, phase),
        )
    except (NotebookStopped, NotebookInterrupted) as stopped:
        code = 128 + stopped.number
    except (PapermillException, CellControlSignal, RuntimeError, NoSuchKernel) as raised:
        # RuntimeError: the kernel died, and the engine has noted that in the record
        error = raised

    record = find_phase_record(run_folder, phase)
    if record is None:
        raise RecordError(
            RecordMessage.NO_RECORD_LEFT, phase=phase, output_parent=output.parent
        ) from error

    if error is not None and (record.is_open or record.state is ExecutionState.DONE):
        # The record has no failure that explains this error, so the error is a bug in our own code.
        raise error

    return _outcome(record, output, code)


def refuse_hand_edits(notebook: Path, given: Collection[str] = ()) -> None:
    """Raise `ParamsError` if somebody changed the defaults in the parameters cell of a master.

    See `params.notebook`.
    """
    for cell in read_master(notebook):
        if cell.is_parameters:
            name = notebook.relative_to(notebook.parents[1]).as_posix()
            notebook_parameters.refuse_hand_edits(cell.source, name, given)


def file_finished_notebook(notebook: Path, run_folder: Path | None = None) -> Outcome:
    """File a notebook that another tool (stock papermill, nbconvert, JupyterLab) executed.

    The notebook itself stays where it is. A copy is saved as records/<phase>.ipynb, with its report
    and JSON next to it. If `run_folder` is given, a notebook of a different run is refused.
    """
    content = notebook_file.read_notebook(notebook)
    announced = announced_by(content) or _by_its_name(notebook, content, run_folder)
    if announced is None:
        raise RecordError(RecordMessage.NOTEBOOK_OF_NO_RUN, notebook=notebook)

    belongs = f"{notebook} belongs to the run in {announced.run_folder}"
    if run_folder is not None and announced.run_folder != run_folder.absolute():
        raise RecordError(RecordMessage.RUN_IS_ANOTHER, belongs=belongs, run_folder=run_folder)
    if not announced.run_folder.is_dir():
        raise RecordError(RecordMessage.RUN_FOLDER_GONE, belongs=belongs)
    newest = find_phase_record(announced.run_folder, announced.phase)
    if newest is not None and newest.started > announced.execution:
        raise RecordError(
            RecordMessage.RECORD_IS_NEWER,
            notebook=notebook,
            execution=announced.execution,
            phase=announced.phase,
            started=newest.started,
        )

    record = file_execution(content, announced=announced)
    assert record is not None, "an announced execution is always filed"
    return _outcome(record, announced.run_folder / "records" / f"{announced.phase}.ipynb", -1)


def _by_its_name(notebook: Path, content: Any, run_folder: Path | None) -> Announcement | None:
    """Use the file name to identify the execution, for a notebook that no longer names its run.

    The output that names the run is lost if the notebook page was closed during the execution.
    Return the newest execution of the phase given by the file name, in the run named by the user.
    """
    if run_folder is None or not any(cell.get("outputs") for cell in content.cells):
        return None
    record = find_phase_record(run_folder, notebook.stem)
    if record is not None:
        return Announcement(run_folder.absolute(), notebook.stem, record.started)
    return None


def _outcome(record: PhaseRecord, notebook: Path, code: int) -> Outcome:
    return Outcome(
        str(record.state),
        EXIT_CODES.get(record.state, 1) if code < 0 else code,
        record.reason,
        notebook,
    )

"""Run a notebook as a phase of a run and file its record, or file one that another tool executed.

execute_phase(notebook, run_folder, phase, parameters, *, log=True, timeout=None) -> Outcome
adopt_execution(notebook) -> Outcome
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.errors import RecordError
from runbook.records import ipynb
from runbook.records.filing import Announcement, announced_by, file_execution
from runbook.records.history import set_aside
from runbook.records.signals import NotebookInterrupted, NotebookStopped
from runbook.records.state import State
from runbook.records.twin import Twin, find_twin

EXIT_CODES = {State.DONE: 0, State.FAILED: 1, State.TIMEOUT: 1, State.KERNEL_DIED: 138, State.INTERRUPTED: 130}
"""papermill's own where it has one; a signal gives 128 and its number."""


@dataclass(frozen=True)
class Outcome:
    """How the execution of a phase ended; 0 is the only good exit code."""

    state: str
    exit_code: int
    message: str
    notebook: Path | None


def execute_phase(
    notebook: Path,
    run_folder: Path,
    phase: str,
    parameters: Mapping[str, Any],
    *,
    log: bool = True,
    timeout: int | None = None,
) -> Outcome:
    """Execute a notebook by papermill into records/<phase>.ipynb; the earlier record moves to records/history.

    `log` repeats the cells' output on the log as it comes; `timeout` is the longest a cell may take, in seconds.
    Whatever happens to the notebook is in the outcome and the record; only what prevents a record is raised.
    """
    import papermill

    if not notebook.exists():
        raise RecordError(f"{notebook} does not exist: {phase} has no notebook. Restore it from the repository.")
    run_folder = run_folder.absolute()
    set_aside(run_folder, phase)
    output = run_folder / "records" / f"{phase}.ipynb"
    output.parent.mkdir(parents=True, exist_ok=True)
    code = -1
    with _shown_log(log):
        try:
            papermill.execute_notebook(
                _no_fields(notebook.absolute()),
                _no_fields(output),
                parameters=dict(parameters),
                engine_name="runbook",
                progress_bar=False,
                log_output=log,
                execution_timeout=timeout,
                record=(run_folder, phase),
            )
        except (NotebookStopped, NotebookInterrupted) as stopped:
            code = 128 + stopped.number
        except _what_papermill_raises():
            pass  # the engine has recorded it in the twin
    twin = find_twin(run_folder, phase)
    if twin is None:
        raise RecordError(f"{phase} left no record in {output.parent}; the log above says why it could not be written.")
    return _outcome(twin, output, code)


def adopt_execution(notebook: Path, run_folder: Path | None = None) -> Outcome:
    """File a notebook that stock papermill, nbconvert or JupyterLab executed with the run that it names.

    The notebook itself stays where it is; a copy goes to records/<phase>.ipynb with report and twin beside it. Where
    `run_folder` is given, a notebook of another run is refused.
    """
    content = ipynb.read(notebook)
    announced = announced_by(content) or _by_its_name(notebook, content, run_folder)
    if announced is None:
        raise RecordError(
            f"{notebook} does not say which run it belongs to: it was not executed, stopped before its record was "
            "opened, or its outputs were removed. Execute it first; `runbook run` files its notebooks itself."
        )
    if run_folder is not None and announced.run_folder != run_folder.absolute():
        raise RecordError(f"{notebook} belongs to the run in {announced.run_folder}, not to {run_folder}.")
    if not announced.run_folder.is_dir():
        raise RecordError(
            f"{notebook} belongs to the run in {announced.run_folder}, and that folder does not exist here."
        )
    newest = find_twin(announced.run_folder, announced.phase)
    if newest is not None and newest.started > announced.execution:
        raise RecordError(
            f"{notebook} was executed at {announced.execution}, and the record of {announced.phase} is of a later one "
            f"({newest.started}). The twin of the earlier one is in records/history; keep the notebook beside it."
        )
    twin = file_execution(content, announced=announced)
    assert twin is not None, "an announced execution is always filed"
    return _outcome(twin, announced.run_folder / "records" / f"{announced.phase}.ipynb", -1)


def _by_its_name(notebook: Path, content: Any, run_folder: Path | None) -> Announcement | None:
    """A notebook that lost the output by which it named its run, because its page was closed meanwhile.

    It is the newest execution of the phase that its file is named after, in the run a person says it belongs to.
    """
    if run_folder is None or not any(cell.get("outputs") for cell in content.cells):
        return None
    twin = find_twin(run_folder, notebook.stem)
    return Announcement(run_folder.absolute(), notebook.stem, twin.started) if twin is not None else None


def _outcome(twin: Twin, notebook: Path, code: int) -> Outcome:
    if code < 0:
        code = EXIT_CODES[twin.state]
    return Outcome(str(twin.state), code, twin.reason, notebook)


def _no_fields(path: Path) -> str:
    # papermill takes braces in a path for parameters to put in
    return str(path).replace("{", "{{").replace("}", "}}")


def _what_papermill_raises() -> tuple[type[BaseException], ...]:
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellControlSignal
    from papermill.exceptions import PapermillException

    return PapermillException, CellControlSignal, RuntimeError, NoSuchKernel  # RuntimeError: a kernel that died


@contextmanager
def _shown_log(shown: bool) -> Iterator[None]:
    """Papermill logs to its own logger and leaves it to the program to show it."""
    logger = logging.getLogger("papermill")
    if not shown or logger.hasHandlers():
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    level, logger.level = logger.level, logging.INFO
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)

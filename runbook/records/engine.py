"""The papermill engine `runbook`: a notebook that was stopped says so, and is filed with its run.

    papermill NOTEBOOK OUTPUT --engine runbook
    papermill.execute_notebook(..., engine_name="runbook", record=(run_folder, phase))

papermill's own engine marks every cell `completed` when the kernel dies, a cell runs out of time or Ctrl-C is pressed,
and leaves a notebook `running` for ever on SIGTERM. Here each of them leaves the running cell `failed` with the reason,
later cells `pending`, a banner on top, an end time, no kernel, and papermill's own exit code.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

RunbookEngine: Any = None  # papermill imports its engines while it is imported itself, so by us it finds us half done

from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines  # noqa: E402
from papermill.exceptions import PapermillExecutionError  # noqa: E402

from runbook.errors import RunbookError  # noqa: E402
from runbook.records import ipynb  # noqa: E402
from runbook.records.state import State  # noqa: E402

logger = logging.getLogger("papermill")


class Execution(NotebookExecutionManager):  # type: ignore[misc]
    """State of a notebook that is being executed, kept in the notebook itself."""

    def __init__(self, nb: Any, **options: Any) -> None:
        self.state: State | None = None
        self.reason = ""
        self.unsaved: RunbookError | None = None
        """Why the newest save failed; a full disk in the middle of the work ends nothing, only one at the end does."""
        self.before_save: Callable[[], None] = lambda: None
        super().__init__(nb, **options)

    def save(self, **kwargs: Any) -> None:
        """Save the notebook whole or not at all; places papermill alone can write to are left to it.

        What could not be saved is told once and tried again with the next cell.
        """
        self.before_save()
        path = _local_path(self.output_path)
        if path is None:
            super().save(**kwargs)
            return
        from runbook.records.files import write_text

        self.last_save_time = self.now()
        try:
            write_text(path, ipynb.text_of(self.nb))
        except RunbookError as error:
            if self.unsaved is None:
                logger.error("The notebook is not saved, and goes on; it is tried again after each cell. %s", error)
            self.unsaved = error
        else:
            self.unsaved = None

    def notebook_start(self, **kwargs: Any) -> None:
        """Clear what an earlier execution left in the notebook."""
        self.nb.metadata.pop("runbook", None)
        super().notebook_start(**kwargs)

    def cell_exception(self, cell: Any, cell_index: int | None = None, **kwargs: Any) -> None:
        """An error ended the cell: keep its text even where a traceback handler of the user's printed none."""
        super().cell_exception(cell, cell_index=cell_index, **kwargs)
        error = kwargs["exception"]
        self.state, self.reason = State.FAILED, f"{error.ename}: {error.evalue}"
        if not any(output["output_type"] == "error" for output in cell.outputs):
            trace = error.traceback.splitlines()
            cell.outputs.append(ipynb.error_output(error.ename, error.evalue, trace))

    def stop(self, state: State, reason: str) -> None:
        """Something else than an error ended the notebook: mark the running cell, add papermill's banner, save."""
        self.state, self.reason = state, reason
        running = [cell for cell in self.nb.cells if cell.metadata.papermill["status"] == self.RUNNING]
        for cell in running:
            cell.metadata.papermill["exception"] = True
            cell.metadata.papermill["status"] = self.FAILED
            cell.metadata.papermill["end_time"] = self.now().isoformat()
        self.nb.metadata.papermill["exception"] = True
        self._add_banner(running)
        self.save()

    def notebook_complete(self, **kwargs: Any) -> None:
        """Note the end; cells that were not reached stay `pending`."""
        if self.state is None:
            self.state = State.DONE
        self.end_time = self.now()
        head = self.nb.metadata.papermill
        head["end_time"] = self.end_time.isoformat()
        head["duration"] = (self.end_time - self.start_time).total_seconds()
        self.nb.metadata["runbook"] = {"state": str(self.state), "reason": self.reason}
        self.cleanup_pbar()
        self.save()
        if self.unsaved is not None and self.state is State.DONE:
            self.state, self.reason = State.FAILED, str(self.unsaved)

    def error_of_a_cell(self) -> PapermillExecutionError | None:
        """Papermill's own error for a cell that raised, with its banner put into the notebook; None where none did.

        papermill takes `sys.exit(0)` in a cell for success although the rest did not run; here it is a failure.
        """
        from papermill.execute import raise_for_execution_errors

        try:
            raise_for_execution_errors(self.nb, None)
        except PapermillExecutionError as error:
            self.state, self.reason = State.FAILED, self.reason or f"{error.ename}: {error.evalue}"
            return error
        failed = [cell for cell in self.nb.cells if cell.metadata.papermill["status"] == self.FAILED]
        if not failed:
            return None
        cell = failed[0]
        self.reason = f"{self.reason} (the notebook ended itself before its last cell)"
        index = self.nb.cells.index(cell)
        self._add_banner(failed)
        return PapermillExecutionError(index, cell.execution_count, cell.source, "SystemExit", "0", [self.reason])

    def _add_banner(self, failed: list[Any]) -> None:
        from papermill.execute import ERROR_ANCHOR_MSG, ERROR_MARKER_TAG, ERROR_STYLE

        where = "outside the cells"
        if failed:
            index = self.nb.cells.index(failed[0])
            where = f"at '<a href=\"#papermill-error-cell\">In [{failed[0].get('execution_count')}]</a>'"
            self.nb.cells.insert(index, ipynb.markdown_cell(ERROR_ANCHOR_MSG, ERROR_MARKER_TAG))
        text = f"Execution ended {where} ({self.state}): {escape(self.reason)}. Later cells did not run."
        banner = ipynb.markdown_cell(f"<span {ERROR_STYLE}>{text}</span>", ERROR_MARKER_TAG)
        self.nb.cells.insert(0, banner)


class RunbookEngine(NBClientEngine):  # type: ignore[misc,no-redef]  # noqa: F811
    """papermill's nbclient engine, honest about what stopped a notebook."""

    @classmethod
    def execute_notebook(
        cls,
        nb: Any,
        kernel_name: str,
        output_path: str | None = None,
        progress_bar: bool | dict[str, Any] = True,
        log_output: bool = False,
        autosave_cell_every: int = 30,
        record: tuple[Path, str] | None = None,
        **options: Any,
    ) -> Any:
        """Execute the notebook, save it whatever happens, file it with its run, then raise what stopped it."""
        from papermill.execute import remove_error_markers

        from runbook.records.signals import SignalTrap

        execution = Execution(
            nb,
            output_path=output_path,
            progress_bar=progress_bar,
            log_output=log_output,
            autosave_cell_every=autosave_cell_every,
        )
        error: BaseException | None = None
        with SignalTrap() as trap:
            execution.notebook_start()
            try:
                cls.execute_managed_notebook(execution, kernel_name, log_output=log_output, trap=trap, **options)
                error = execution.error_of_a_cell()
            finally:
                execution.notebook_complete()
                unfiled = _file(execution, record)
        if trap.received:  # it came after the last cell: the record is whole, but nothing more is started
            raise trap.error()
        if unfiled is not None and error is None:
            raise unfiled
        if error is not None and output_path:
            raise error
        remove_error_markers(nb)  # papermill itself saves at the end, and puts its banner in then
        return nb

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: Execution,
        kernel_name: str,
        log_output: bool = False,
        start_timeout: int = 60,
        execution_timeout: int | None = None,
        **options: Any,
    ) -> None:
        """Run the cells by our own client, with papermill's options under nbclient's names."""
        from runbook.records.client import NotebookRunner

        trap = options.pop("trap")
        options = {name: value for name, value in options.items() if name != "input_path"}
        options.setdefault("timeout", execution_timeout)
        runner = NotebookRunner(
            nb_man,
            trap,
            kernel_name=kernel_name,
            startup_timeout=start_timeout,
            log=logger,
            log_output=log_output,
            **options,
        )
        runner.execute()


papermill_engines.register("runbook", RunbookEngine)  # again, where papermill has registered the None above


def _local_path(output_path: str | None) -> Path | None:
    """The file papermill would write, or None for a bucket, a pipe or nothing."""
    from papermill.iorw import LocalHandler, papermill_io

    handler = papermill_io.get_handler(output_path)
    if not output_path or not isinstance(handler, LocalHandler):
        return None
    # papermill may stand in --cwd; its handler remembers where relative paths begin
    path = Path(getattr(handler, "_cwd", None) or ".") / output_path
    path = path.resolve()
    return None if path.exists() and not path.is_file() else path


def _file(execution: Execution, record: tuple[Path, str] | None) -> RunbookError | None:
    """Put the notebook among the records of the run it names; what prevents it is logged and returned.

    Where there is no room for the notebook there may still be some for its twin, which then says why.
    """
    from runbook.records.filing import file_execution, file_twin_alone

    ended_as = (execution.state, execution.reason)
    try:
        if file_execution(execution.nb, record=record, ended_as=ended_as) is not None:
            execution.save()
    except RunbookError as error:
        logger.error("The notebook could not be filed with its run: %s", error)
        with contextlib.suppress(RunbookError):
            file_twin_alone(execution.nb, record, f"not filed: {error}")
        return error
    return execution.unsaved

"""The papermill engine `runbook`: marks stopped notebooks, and files notebooks with their runs.

    papermill NOTEBOOK OUTPUT --engine runbook
    papermill.execute_notebook(..., engine_name="runbook", record=(run_folder, phase))

When the kernel dies, a cell times out or Ctrl-C is pressed, the default papermill engine marks
every cell `completed`; after SIGTERM it leaves a notebook `running` forever. This engine marks the
cell that was running `failed`, records the reason, and leaves later cells `pending`. The notebook
gets a banner and an end time, the kernel is shut down, and the exit code is the one that papermill
would use.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

# papermill imports its engines while it is itself being imported, so this module may be only half
# loaded.
RunbookEngine: Any = None

from papermill.engines import Engine, papermill_engines  # noqa: E402

from runbook.core.errors import RunbookError  # noqa: E402

if TYPE_CHECKING:
    from runbook.records.engine.client import Execution

logger = logging.getLogger("papermill")


class RunbookEngine(Engine):  # type: ignore[misc,no-redef]  # noqa: F811
    """The nbclient engine from papermill, extended to record what stopped a notebook."""

    @classmethod
    def execute_notebook(
        cls,
        nb: Any,
        kernel_name: str,
        output_path: str | None = None,
        progress_bar: bool | dict[str, object] = True,
        log_output: bool = False,
        autosave_cell_every: int = 30,
        record: tuple[Path, str] | None = None,
        start_timeout: int = 60,
        execution_timeout: int | None = None,
        **options: Any,
    ) -> Any:
        """Execute the notebook, always save it, file it with its run, and raise what stopped it.

        A parameters cell changed by hand is rejected first.
        """
        from papermill.execute import remove_error_markers

        # Import this here, because it imports pydantic.
        from runbook.params.parameters_cell import assignments, refuse_hand_edits
        from runbook.records.engine.client import Execution, NotebookRunner
        from runbook.records.engine.execution_end import SignalTrap

        sources = {}
        for cell in nb.cells:
            for tag in cell.metadata.get("tags", []):
                sources[tag] = cell.source

        # Parameters given to papermill override the parameters cell, so it is not checked there.
        injected = assignments(sources.get("injected-parameters", ""))
        refuse_hand_edits(
            sources.get("parameters", ""),
            str(options.pop("input_path", None) or "the notebook"),
            injected,
        )
        saving = {
            "output_path": output_path,
            "progress_bar": progress_bar,
            "autosave_cell_every": autosave_cell_every,
        }
        execution = Execution(nb, log_output=log_output, **saving)
        # nbclient has different names for these papermill options.
        traits = {
            "timeout": execution_timeout,
            **options,
            "kernel_name": kernel_name,
            "startup_timeout": start_timeout,
        }
        error: BaseException | None = None
        with SignalTrap() as trap:
            execution.notebook_start()
            try:
                NotebookRunner(
                    execution, trap, log=logger, log_output=log_output, **traits
                ).execute()
                error = execution.error_of_a_cell()
            finally:
                execution.notebook_complete()
                unfiled = _file(execution, record)

        # The signal arrived after the last cell. The record is complete, but nothing more may be
        # started.
        if trap.received:
            raise trap.error()
        if unfiled is not None and error is None:
            raise unfiled
        if error is not None and output_path:
            raise error
        # papermill itself saves at the end, and then adds its banner.
        remove_error_markers(nb)
        return nb


# Register the engine again, because papermill has registered the None from above.
papermill_engines.register("runbook", RunbookEngine)


def _file(execution: Execution, record: tuple[Path, str] | None) -> RunbookError | None:
    """File the notebook with the run that it names.

    If an error prevents this, log and return the error.
    """
    from runbook.records.engine.execute import file_execution

    ended_as = (execution.state, execution.reason)
    try:
        if file_execution(execution.nb, record=record, ended_as=ended_as) is not None:
            execution.save()
    except RunbookError as error:
        logger.error("The notebook could not be filed with its run: %s", error)
        return error

    return execution.unsaved

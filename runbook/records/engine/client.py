"""Client for the papermill engine: runs a kernel and its cells, and merges their output.

NotebookRunner(execution, trap, **traits).execute() raises what stopped the notebook, once that is
recorded

The loop in nbclient can end in many ways: a dead kernel, a timeout, a signal between two callbacks.
Here they all go through `_run`, which first records what happened, then saves, then ends the
kernel.

nbclient can merge streams only after a cell has ended. A killed cell would then leave its output in
thousands of pieces, and merging across other outputs would move outputs that display handles
update. `Streams` merges text as it arrives, and never across an output of a different type.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from queue import Empty
from types import SimpleNamespace
from typing import Any

import nbformat.v4
from jupyter_core.utils import ensure_async, run_sync
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NotebookExecutionManager
from papermill.exceptions import PapermillExecutionError
from papermill.execute import (
    ERROR_ANCHOR_MSG,
    ERROR_MARKER_TAG,
    ERROR_STYLE,
    raise_for_execution_errors,
)
from papermill.iorw import LocalHandler, papermill_io

from runbook.core.errors import RunbookError
from runbook.core.files import write_text
from runbook.core.shell import how_it_ended
from runbook.core.units import DAY_SECONDS
from runbook.records import notebook_file
from runbook.records.engine.execution_end import ExecutionState, SignalTrap
from runbook.records.messages import RecordMessage

logger = logging.getLogger("papermill")

LONGEST_SOCKET = 100
"""The path to a Unix socket is limited to 107 characters on Linux and 103 on macOS.

On clusters, the path to TMPDIR or the home folder can be longer.
"""


def private_folder() -> Path | None:
    """Create a folder that only we can enter (mode 700), with a path short enough for a socket."""
    for name in (
        os.environ.get("XDG_RUNTIME_DIR", ""),
        tempfile.gettempdir(),
        "/tmp",
        "/var/tmp",
        "/dev/shm",
    ):
        if name and len(os.fsencode(name)) + len("/rb-12345678/k-5") <= LONGEST_SOCKET:
            with contextlib.suppress(OSError):  # The folder is missing, full or read-only.
                return Path(tempfile.mkdtemp(prefix="rb-", dir=name))

    return None


_OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\n\r])")
_BEFORE_NEWLINE = re.compile(r"\r+\n")
_DELETED = re.compile(r"[^\n\x08]\x08")


def as_terminal(text: str) -> str:
    r"""Return the text that a terminal shows at the end of this output.

    Text that a carriage return or backspace overwrote is removed.

    >>> as_terminal("10 %\r50 %\r100 %\ndone\r\n"), as_terminal("ab\b\bc")
    ('100 %\ndone\n', 'c')
    """
    while "\x08" in text and (shorter := _DELETED.sub("", text)) != text:
        text = shorter
    if "\r" in text:
        return _OVERWRITTEN.sub("", _BEFORE_NEWLINE.sub("\n", text))
    return text


class Streams:
    """Collects chunks of text until they are written into their outputs."""

    def __init__(self) -> None:
        self._pieces: list[tuple[Any, list[str]]] = []

    def watch(self, output: Any) -> None:
        """Register a stream output of a cell, so that later text can be appended to it."""
        self._pieces.append((output, [output["text"]]))

    def add(
        self,
        outputs: list[Any],
        name: str,
        text: str,
    ) -> bool:
        """Append text to the last output from its stream, unless another type of output follows."""
        streams = itertools.takewhile(
            lambda output: output["output_type"] == "stream", reversed(outputs)
        )
        last = next((output for output in streams if output["name"] == name), None)
        pieces = next((pieces for output, pieces in self._pieces if output is last), None)
        if pieces is not None:
            pieces.append(text)
        return pieces is not None

    def flush(self) -> None:
        """Write the collected text into the outputs. More text may be added to them later."""
        for output, pieces in self._pieces:
            if len(pieces) > 1 or "\r" in pieces[0] or "\x08" in pieces[0]:
                pieces[:] = [as_terminal("".join(pieces))]
                output["text"] = pieces[0]

    def end_cell(self) -> None:
        """After a cell has ended, write the collected text into its outputs, and forget them."""
        self.flush()
        self._pieces.clear()


new_cell: Any = nbformat.v4.new_markdown_cell
new_output: Any = nbformat.v4.new_output
# Interval between log lines for a display or a line updated in place
SECONDS_BETWEEN_LOGGED_UPDATES = 5.0
# Seconds to wait for more output from a cell after the kernel has replied
MOST_SECONDS_OF_SILENCE = 30
SECONDS_TO_LEAVE_A_CELL = 1.5
"""Seconds that an interrupted cell has to clean up.

After this time the kernel is shut down, by force if necessary.
"""
LOSE_NO_OUTPUT = (
    "__import__('runbook.display.jupyter.kernel', fromlist=['kernel']).lose_no_output()"
)
"""Code that runs in the kernel before the cells.

If this package is not installed in the kernel, the code raises an error, which is ignored.
"""
ENGINE_VARIABLE = "RUNBOOK_ENGINE"
"""Environment variable set in the kernel.

The variable tells the kernel that displays updated in place are logged, so progress need not be
printed too.
"""


class Execution(NotebookExecutionManager):  # type: ignore[misc]
    """State of a notebook while it runs, stored in the notebook itself."""

    def __init__(self, nb: Any, **options: Any) -> None:
        self.state: ExecutionState | None = None
        self.reason = ""
        self.unsaved: RunbookError | None = None
        """The error in the most recent save, or None if that save succeeded.

        After a failed save, for example on a full disk, the notebook fails only if its last save
        fails too.
        """
        self.before_save: Callable[[], None] = lambda: None
        super().__init__(nb, **options)
        # Remove metadata from an earlier execution.
        self.nb.metadata.pop("runbook", None)

    def save(self, **kwargs: Any) -> None:
        """Save the notebook atomically.

        If the destination is not a local file, papermill saves the notebook.

        A failed save is reported once and tried again after the next cell.
        """
        self.before_save()
        path = _local_path(self.output_path)
        if path is None:
            super().save(**kwargs)
            return

        self.last_save_time = self.now()
        try:
            write_text(path, notebook_file.notebook_text(self.nb))
        except RunbookError as error:
            if self.unsaved is None:
                logger.error(RecordMessage.NOT_SAVED_AND_GOES_ON.fill(error=error))

            self.unsaved = error
        else:
            self.unsaved = None

    def cell_exception(
        self,
        cell: Any,
        cell_index: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Record that an error ended the cell.

        The error text is added to the outputs if a traceback handler set by the user printed
        nothing.
        """
        super().cell_exception(cell, cell_index=cell_index, **kwargs)
        error = kwargs["exception"]
        self.state, self.reason = ExecutionState.FAILED, f"{error.ename}: {error.evalue}"
        if not any(output["output_type"] == "error" for output in cell.outputs):
            fields = {
                "ename": error.ename,
                "evalue": error.evalue,
                "traceback": error.traceback.splitlines(),
            }
            cell.outputs.append(new_output("error", **fields))

    def stop(self, state: ExecutionState, reason: str) -> None:
        """End the notebook for a reason other than an error.

        Mark the running cell, add the papermill banner, and save.
        """
        self.state = state
        self.reason = reason
        running = []
        for cell in self.nb.cells:
            if cell.metadata.papermill["status"] == self.RUNNING:
                running.append(cell)

        for cell in running:
            end_time = self.now().isoformat()
            cell.metadata.papermill.update(
                exception=True,
                status=self.FAILED,
                end_time=end_time,
            )

        if state is ExecutionState.INTERRUPTED:
            # papermill has no state for a stopped cell. The cell may already have ended in the
            # kernel with a KeyboardInterrupt.
            for cell in self.nb.cells:
                if cell.metadata.papermill["status"] == self.FAILED:
                    cell.metadata["runbook"] = {"state": str(state)}

        self.nb.metadata.papermill["exception"] = True
        self._add_banner(running)
        self.save()

    def notebook_complete(self, **kwargs: Any) -> None:
        """Record that the execution has ended. Cells that were not reached stay `pending`."""
        self.state = self.state or ExecutionState.DONE
        self.end_time = self.now()
        duration = (self.end_time - self.start_time).total_seconds()
        self.nb.metadata.papermill.update(end_time=self.end_time.isoformat(), duration=duration)
        self.nb.metadata["runbook"] = {"state": str(self.state), "reason": self.reason}
        self.cleanup_pbar()
        self.save()
        if self.unsaved is not None and self.state is ExecutionState.DONE:
            self.state, self.reason = ExecutionState.FAILED, str(self.unsaved)

    def error_of_a_cell(self) -> PapermillExecutionError | None:
        """Return the papermill error for the cell that failed, or None if no cell failed.

        Add the papermill banner to the notebook. papermill treats `sys.exit(0)` in a cell as
        success, although the remaining cells did not run. Here it counts as a failure.
        """
        try:
            raise_for_execution_errors(self.nb, None)
        except PapermillExecutionError as error:
            self.state, self.reason = (
                ExecutionState.FAILED,
                self.reason or f"{error.ename}: {error.evalue}",
            )
            return error

        failed = [
            cell for cell in self.nb.cells if cell.metadata.papermill["status"] == self.FAILED
        ]
        if not failed:
            return None
        self.reason = f"{self.reason} (the notebook ended itself before its last cell)"
        index = self.nb.cells.index(failed[0])
        cell = failed[0]
        self._add_banner(failed)
        return PapermillExecutionError(
            index,
            cell.execution_count,
            cell.source,
            "SystemExit",
            "0",
            [self.reason],
        )

    def _add_banner(self, failed: list[Any]) -> None:
        where = "outside the cells"
        tagged = {"tags": [ERROR_MARKER_TAG]}
        if failed:
            anchor = new_cell(ERROR_ANCHOR_MSG, metadata=tagged)
            self.nb.cells.insert(self.nb.cells.index(failed[0]), anchor)
            where = (
                'at \'<a href="#papermill-error-cell">In '
                f"[{failed[0].get('execution_count')}]</a>'"
            )

        text = (
            f"Execution ended {where} ({self.state}): {escape(self.reason)}. Later cells did not "
            "run."
        )
        self.nb.cells.insert(0, new_cell(f"<span {ERROR_STYLE}>{text}</span>", metadata=tagged))


class NotebookRunner(PapermillNotebookClient):  # type: ignore[misc]
    """Runs notebook cells in a separate kernel."""

    def __init__(
        self,
        execution: Execution,
        trap: SignalTrap,
        **traits: Any,
    ) -> None:
        # papermill fails a notebook whose output arrives more than 4 s after the end of a cell.
        # Here `_rest_of` decides how long to wait.
        super().__init__(execution, **{"iopub_timeout": int(DAY_SECONDS), **traits})
        self._messages = 0
        self._execution, self._trap, self._streams = execution, trap, Streams()
        self._sockets: Path | None = None
        self._group = 0
        self._kernel_answers = False
        self._logged: dict[str, tuple[float, str]] = {}
        self._waiting: dict[str, str] = {}
        execution.before_save = self._streams.flush

    def execute(self) -> None:
        """Run all cells. Record whatever stops them in the notebook, then raise it."""
        self.reset_execution_trackers()
        run_sync(self._run)()

    async def _run(self) -> None:
        before = asyncio.all_tasks()
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        assert task is not None
        self._trap.on_signal = lambda: loop.call_soon_threadsafe(task.cancel)
        beat = asyncio.ensure_future(self._save_now_and_then())
        stopped = True
        try:
            if self._trap.received:
                raise asyncio.CancelledError
            await self._start_kernel()
            await self._run_cells()
            stopped = False
        except (
            BaseException
        ) as error:  # Whatever the error, record it in the notebook before raising it again.
            stop = await self._why(error)
            self._streams.end_cell()
            self._execution.stop(*stop)
            # A signal cancels this task, and may have ended the kernel too. The caller must then
            # get the signal, not the error from the kernel.
            if self._trap.received and isinstance(
                error, asyncio.CancelledError | CellTimeoutError | RuntimeError
            ):
                raise self._trap.error() from error

            raise
        finally:
            self._trap.on_signal = lambda: None
            beat.cancel()
            await self._end_kernel(stopped)
            unfinished_tasks = asyncio.all_tasks() - before - {task}
            for unfinished in unfinished_tasks:
                unfinished.cancel()
            # Nothing uses the replies to these requests.
            await asyncio.gather(*unfinished_tasks, return_exceptions=True)

    async def _run_cells(self) -> None:
        # Send this request before the cells. A kernel shut down right after a reply may be
        # interrupted before it is idle, and would report this as an error.
        await self.async_wait_for_reply(
            await ensure_async(self.kc.execute(LOSE_NO_OUTPUT, silent=True))
        )
        message = await self.async_wait_for_reply(await ensure_async(self.kc.kernel_info()))
        self.nb.metadata["language_info"] = message["content"]["language_info"]
        for index, cell in enumerate(self.nb.cells):
            self._execution.cell_start(cell, index)
            error = None
            try:
                await self.async_execute_cell(cell, index)
            except CellExecutionError as raised:
                error = raised

            self._log_waiting(*self._waiting)
            self._streams.end_cell()
            if error is not None:
                self._execution.cell_exception(cell, cell_index=index, exception=error)
            self._execution.cell_complete(cell, cell_index=index)
            if error is not None:
                break

        self.set_widgets_metadata()

    async def _async_poll_for_reply(
        self,
        msg_id: str,
        cell: NotebookNode,
        timeout: int | None,
        outputs: Any,
        alive: Any,
    ) -> Any:
        # This task starts once the cell has ended, and waits for further output from the cell.
        late_output = self._rest_of(outputs, cell)
        try:
            reply = await super()._async_poll_for_reply(msg_id, cell, timeout, late_output, alive)
        finally:
            late_output.close()

        return reply

    async def _rest_of(self, outputs: Any, cell: NotebookNode) -> None:
        """Wait for further output from a cell that has ended.

        If a cell prints thousands of lines on a busy login node, the last lines can arrive minutes
        after its end.
        """
        before = -1
        while not outputs.done():
            if before == self._messages:
                message = RecordMessage.END_OF_CELL_MISSING.fill()
                raise CellTimeoutError.error_from_timeout_and_cell(
                    message, MOST_SECONDS_OF_SILENCE, cell
                )

            before = self._messages
            await asyncio.wait([outputs], timeout=MOST_SECONDS_OF_SILENCE)

        await outputs

    async def _start_kernel(self) -> None:
        self.km = self.create_kernel_manager()
        self._sockets = private_folder()
        if self._sockets is not None:
            self.km.transport = "ipc"
            self.km.connection_file = str(self._sockets / "kernel.json")
            self.km.ip = str(self._sockets / "k")

        await self.async_start_new_kernel(env={**os.environ, ENGINE_VARIABLE: "1"})
        self._group = getattr(self.km.provisioner, "pgid", None) or 0
        await self.async_start_new_kernel_client()
        self._kernel_answers = True
        self.log.info(f"Executing notebook with kernel: {self.kernel_name}")

    async def _end_kernel(self, stopped: bool) -> None:
        if self.km is not None:
            if not self._kernel_answers and await self.km.is_alive():
                # A kernel still importing its modules would not read a request to end, and would
                # print a traceback at the interrupt that jupyter_client always sends first.
                await self.km.signal_kernel(signal.SIGKILL)
                self.shutdown_kernel = "immediate"
            elif stopped and self.kc is not None and await self.km.is_alive():
                # A kernel shut down in the middle of a cell closes its sockets and then
                # fails when it uses them.
                await self.km.interrupt_kernel()
                with contextlib.suppress(Empty):
                    await self.kc.shell_channel.get_msg(timeout=SECONDS_TO_LEAVE_A_CELL)

            await self._async_cleanup_kernel()

        if stopped and self._group:
            # Child processes of a cell must not outlive the kernel, unless the cell detached them.
            # They are in the same process group as the kernel.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)

        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)

    async def _save_now_and_then(self) -> None:
        """Save during silent cells as well, because papermill saves only when a message arrives."""
        while self._execution.autosave_cell_every:
            await asyncio.sleep(self._execution.autosave_cell_every)
            self._execution.autosave_cell()

    async def _why(self, error: BaseException) -> tuple[ExecutionState, str]:
        if self._trap.received:
            return ExecutionState.INTERRUPTED, self._trap.reason()
        if isinstance(error, CellTimeoutError):
            return ExecutionState.TIMEOUT, str(error).partition("\n")[0].rstrip(".")
        if isinstance(error, DeadKernelError):
            if self.km is not None and self.km.provisioner:
                code = await self.km.provisioner.poll()
            else:
                code = None

            hint = ""
            if code in (-9, 137):
                hint = "; a machine that runs out of memory does this"
            how = "" if code is None else f": {how_it_ended(code)}{hint}"
            return ExecutionState.KERNEL_DIED, RecordMessage.KERNEL_DIED.fill(how=how)

        description = f"{type(error).__name__}: {error}".rstrip(": ")
        if self.kc is None:
            return ExecutionState.KERNEL_DIED, f"the kernel did not start: {description}"
        return ExecutionState.FAILED, description

    def output(
        self,
        outs: list[NotebookNode],
        msg: dict[str, Any],
        display_id: str | None,
        cell_index: int,
    ) -> Any:
        """Append an output to the cell.

        Stream text is appended to the output that the stream already has.
        """
        if msg["msg_type"] != "stream":
            return super().output(outs, msg, display_id, cell_index)
        content = msg["content"]
        redirected = (
            self.output_hook_stack[msg["parent_header"].get("msg_id")]
            or self.clear_before_next_output
        )
        if not redirected and self._streams.add(outs, content["name"], content["text"]):
            # This output appears only in the log.
            return SimpleNamespace(output_type="stream", **content)
        appended = super().output(outs, msg, display_id, cell_index)
        if appended is not None:
            self._streams.watch(appended)
        return appended

    def process_message(
        self,
        msg: dict[str, Any],
        cell: NotebookNode,
        cell_index: int,
    ) -> Any:
        """Handle a message from the kernel.

        Displays updated in place are also logged from time to time.
        """
        self._messages += 1
        if self.log_output and msg["msg_type"] == "update_display_data":
            content = msg["content"]
            name = (content.get("transient") or {}).get("display_id", "")
            self._log_update(name, content.get("data", {}).get("text/plain", ""))

        return super().process_message(msg, cell, cell_index)

    def log_output_message(self, output: Any) -> None:
        """Log an output.

        A line that a program redraws with carriage returns is logged only from time to time.
        """
        if output.output_type == "stream" and "\r" in output.text:
            text = as_terminal(output.text)
        else:
            text = ""

        if not self.log_output or not text or "\n" in text:
            super().log_output_message(output)
            return

        if output.name == "stdout":
            file = self.stdout_file
        else:
            file = self.stderr_file

        if file:
            file.write(output.text)
            file.flush()

        self._log_update(output.name, text)

    def _log_update(self, name: str, text: str) -> None:
        logged_at, before = self._logged.get(name, (0.0, ""))
        if text and text != before:
            self._waiting[name] = text
            if time.monotonic() - logged_at >= SECONDS_BETWEEN_LOGGED_UPDATES:
                self._log_waiting(name)

    def _log_waiting(self, *names: str) -> None:
        for name in names:
            text = self._waiting.pop(name)
            self._logged[name] = (time.monotonic(), text)
            self.log.info(text)


def _local_path(output_path: str | None) -> Path | None:
    """Return the file that papermill would write, or None for a bucket, a pipe or no output."""
    handler = papermill_io.get_handler(output_path)
    if not output_path or not isinstance(handler, LocalHandler):
        return None
    # papermill may have changed the working folder to --cwd. Its handler remembers the folder that
    # relative paths refer to.
    path = (Path(getattr(handler, "_cwd", None) or ".") / output_path).resolve()
    return None if path.exists() and not path.is_file() else path

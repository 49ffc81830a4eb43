"""The part of the papermill engine that talks to the kernel: starts it, runs the cells, and always ends it.

    NotebookRunner(execution, trap, **traits).execute()      raises what stopped the notebook, after it was recorded

nbclient's own loop leaves by many doors (a dead kernel, a timeout, a signal between two callbacks); here all of them
lead through `_run`, which first records what happened, saves, and then ends the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from queue import Empty
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from jupyter_core.utils import ensure_async, run_sync
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from papermill.clientwrap import PapermillNotebookClient

from runbook.records.signals import SignalTrap
from runbook.records.state import State
from runbook.records.streams import Streams, as_terminal
from runbook.records.transport import private_folder
from runbook.shell import how_it_ended

if TYPE_CHECKING:
    from runbook.records.engine import Execution

SECONDS_BETWEEN_LOGGED_UPDATES = 5.0
"""How often a display or line that is updated in place is repeated in the log."""
SECONDS_TO_LEAVE_A_CELL = 1.5
"""What an interrupted cell gets for its own clean-up; then the kernel is ended, if need be by force."""
ENGINE_VARIABLE = "RUNBOOK_ENGINE"
"""Set in the kernel: displays updated in place reach the log, so progress need not be printed as well."""


class NotebookRunner(PapermillNotebookClient):  # type: ignore[misc]
    """Runs a notebook's cells in a kernel of its own."""

    def __init__(self, execution: Execution, trap: SignalTrap, **traits: Any) -> None:
        # papermill lets a notebook fail when output lags 4 s behind a cell's end; a busy login node can be slower.
        super().__init__(execution, **{"iopub_timeout": 30, **traits})
        self._execution = execution
        self._trap = trap
        self._streams = Streams()
        self._sockets: Path | None = None
        self._group = 0
        self._logged: dict[str, tuple[float, str]] = {}
        self._waiting: dict[str, str] = {}
        execution.before_save = self._streams.flush

    def execute(self, **kwargs: Any) -> Any:
        """Run all cells; whatever stops them is recorded in the notebook before it is raised."""
        self.reset_execution_trackers()
        run_sync(self._run)(**kwargs)
        return self.nb

    async def _run(self, **kwargs: Any) -> None:
        before = asyncio.all_tasks()
        task = asyncio.current_task()
        assert task is not None
        self._trap.on_signal = _cancel_from_anywhere(asyncio.get_running_loop(), task)
        beat = asyncio.ensure_future(self._save_now_and_then())
        stopped = True
        try:
            if self._trap.received:
                raise asyncio.CancelledError
            await self._start_kernel(**kwargs)
            await self._run_cells()
            stopped = False
        except BaseException as error:
            stop = await self._why(error)
            self._streams.end_cell()
            self._execution.stop(*stop)
            if self._trap.received:
                raise self._trap.error() from None
            raise
        finally:
            self._trap.on_signal = lambda: None
            beat.cancel()
            await self._end_kernel(stopped)
            await _cancel_all(asyncio.all_tasks() - before - {task})

    async def _run_cells(self) -> None:
        # Asked before the cells: a kernel that has just answered is now and then interrupted on its way to idle when it
        # is ended next, and says so.
        message = await self.async_wait_for_reply(await ensure_async(self.kc.kernel_info()))
        self.nb.metadata["language_info"] = message["content"]["language_info"]
        for index, cell in enumerate(self.nb.cells):
            self._execution.cell_start(cell, index)
            error = None
            try:
                await self.async_execute_cell(cell, index)
            except CellExecutionError as raised:
                error = raised
            self._log_waiting_updates()
            self._streams.end_cell()
            if error is not None:
                self._execution.cell_exception(cell, cell_index=index, exception=error)
            self._execution.cell_complete(cell, cell_index=index)
            if error is not None:
                break
        self.set_widgets_metadata()

    async def _start_kernel(self, **kwargs: Any) -> None:
        self.km = self.create_kernel_manager()
        self._sockets = private_folder()
        if self._sockets is not None:
            self.km.transport = "ipc"
            self.km.connection_file = str(self._sockets / "kernel.json")
            self.km.ip = str(self._sockets / "k")
        kwargs.setdefault("env", {**os.environ, ENGINE_VARIABLE: "1"})
        await self.async_start_new_kernel(**kwargs)
        self._group = getattr(self.km.provisioner, "pgid", None) or 0
        await self.async_start_new_kernel_client()
        self.log.info(f"Executing notebook with kernel: {self.kernel_name}")

    async def _end_kernel(self, stopped: bool) -> None:
        if self.km is not None:
            if stopped and self.kc is not None and await self.km.is_alive():
                # A kernel told to end in the middle of a cell closes its sockets first and then trips over them.
                await self.km.interrupt_kernel()
                with contextlib.suppress(Empty):
                    await self.kc.shell_channel.get_msg(timeout=SECONDS_TO_LEAVE_A_CELL)
            await self._async_cleanup_kernel()
        if stopped and self._group:
            # What a cell started and did not detach must not outlive it: a kernel's processes share its group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)

    async def _save_now_and_then(self) -> None:
        """Save while a cell is silent as well; papermill saves only when a message comes."""
        while self._execution.autosave_cell_every:
            await asyncio.sleep(self._execution.autosave_cell_every)
            self._execution.autosave_cell()

    async def _why(self, error: BaseException) -> tuple[State, str]:
        if self._trap.received:
            return State.INTERRUPTED, self._trap.reason()
        if isinstance(error, CellTimeoutError):
            return State.TIMEOUT, str(error).partition("\n")[0].rstrip(".")
        if isinstance(error, DeadKernelError):
            return State.KERNEL_DIED, "the kernel died" + await self._kernel_exit()
        words = f"{type(error).__name__}: {error}".rstrip(": ")
        return (State.KERNEL_DIED, f"the kernel did not start: {words}") if self.kc is None else (State.FAILED, words)

    async def _kernel_exit(self) -> str:
        code = await self.km.provisioner.poll() if self.km is not None and self.km.provisioner else None
        if code is None:
            return ""
        hint = "; a machine that runs out of memory kills so" if code in (-9, 137) else ""
        return f": {how_it_ended(code)}{hint}"

    def output(self, outs: list[NotebookNode], msg: dict[str, Any], display_id: str | None, cell_index: int) -> Any:
        """Append an output to the cell; text of a stream joins the text that is there already."""
        if msg["msg_type"] != "stream":
            return super().output(outs, msg, display_id, cell_index)
        content = msg["content"]
        redirected = self.output_hook_stack[msg["parent_header"].get("msg_id")] or self.clear_before_next_output
        if not redirected and self._streams.add(outs, content["name"], content["text"]):
            return SimpleNamespace(output_type="stream", **content)  # for the log only
        appended = super().output(outs, msg, display_id, cell_index)
        if appended is not None:
            self._streams.watch(appended)
        return appended

    def process_message(self, msg: dict[str, Any], cell: NotebookNode, cell_index: int) -> Any:
        """Take a message from the kernel; a display updated in place is logged too, now and then."""
        if self.log_output and msg["msg_type"] == "update_display_data":
            content = msg["content"]
            name = (content.get("transient") or {}).get("display_id", "")
            self._log_update(name, content.get("data", {}).get("text/plain", ""))
        return super().process_message(msg, cell, cell_index)

    def log_output_message(self, output: Any) -> None:
        """Log an output; a line that a program redraws by carriage returns is logged now and then."""
        text = as_terminal(output.text) if output.output_type == "stream" and "\r" in output.text else ""
        if not self.log_output or not text or "\n" in text:
            super().log_output_message(output)
            return
        file = self.stdout_file if output.name == "stdout" else self.stderr_file
        if file:
            file.write(output.text)
            file.flush()
        self._log_update(output.name, text)

    def _log_update(self, name: str, text: str) -> None:
        then, before = self._logged.get(name, (0.0, ""))
        if text and text != before:
            if time.monotonic() - then >= SECONDS_BETWEEN_LOGGED_UPDATES:
                self._log_now(name, text)
            else:
                self._waiting[name] = text

    def _log_waiting_updates(self) -> None:
        for name, text in list(self._waiting.items()):
            self._log_now(name, text)

    def _log_now(self, name: str, text: str) -> None:
        self._logged[name] = (time.monotonic(), text)
        self._waiting.pop(name, None)
        self.log.info(text)


def _cancel_from_anywhere(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> Any:
    return lambda: loop.call_soon_threadsafe(task.cancel)


async def _cancel_all(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""Shows cell output again, whether the cell runs or has ended, when a page is reopened.

    forget = show_to_new_pages(display_id, bundle, joined=None)
    bundle() -> the current output of the cell

JupyterLab forgets the output of a running cell when its page is closed, and a cell that is run
again waits for the first run to end. After the first call, two requests from a page are therefore
answered while a cell runs:
- cell output, requested by lab/static/watching.js when a notebook is opened: the page
  then follows the running cell as if it had started it, without running anything;
- the running cell, run again by a user whose JupyterLab lacks that file: the answer has the same
  displays, and JupyterLab sends every later update of them to that page too. The request itself
  still waits its turn.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from runbook.display.jupyter.kernel import (
    CellRequest,
    KernelMessage,
    PageKernel,
    listen,
    page_kernel,
)

QUESTION = "runbook.viewer"
"""Target in the `comm_info_request` that a page sends.

A kernel without our code answers this request with an empty list.
"""
ANSWER = "application/vnd.runbook.viewer.v1+json"
Bundle = Callable[[], Mapping[str, object]]


@dataclass
class CellDisplays:
    """Output from executing a cell once."""

    request: CellRequest
    bundles: dict[str, tuple[Bundle, Bundle]] = field(default_factory=dict)
    """By display id, the output for a page that runs the cell again, and for a page that follows
    it.
    """
    running: bool = True

    def as_json(self) -> dict[str, object]:
        """Return the content for a page that follows the cell with our script."""
        return {
            "cell": self.request.cell,
            "request": self.request.header["msg_id"],
            "number": self.request.number,
            "running": self.running,
            "shown": [{"id": name, "data": bundle()} for name, (_, bundle) in self.bundles.items()],
        }


_cells: dict[str, CellDisplays] = {}
"""For each cell that showed something, the output from its newest execution, by cell id."""

_lock = Lock()
"""This lock is held while a page gets its answer, so that later output of a running cell comes
after the answer.
"""


def show_to_new_pages(
    display_id: str, bundle: Bundle, joined: Bundle | None = None
) -> Callable[[], None]:
    """Show an output to every page that is opened or runs the cell again.

    Calling the returned function stops this. `joined` is for pages with our script: a button with
    the attribute data-runbook-click sends its click there.
    """
    kernel = page_kernel()
    request = kernel.running_cell() if kernel is not None else None
    if kernel is None or request is None:
        return lambda: None
    if not _cells:
        listen(lambda message: _answer(kernel, message))
        kernel.after_each_cell(_note_end)

    with _lock:
        displays = _cells.get(request.cell)
        if displays is None or displays.request.header != request.header:
            displays = _cells[request.cell] = CellDisplays(request)
        displays.bundles[display_id] = bundle, joined or bundle

    return lambda: _forget(displays, display_id)


def _forget(displays: CellDisplays, display_id: str) -> None:
    with _lock:
        displays.bundles.pop(display_id, None)


def _note_end(result: Any) -> None:
    """Record that a cell has ended. IPython calls this after each cell."""
    error = result.error_before_exec or result.error_in_exec
    text = {"text/plain": f"{type(error).__name__}: {error}"}
    with _lock:
        for displays in _cells.values():
            if displays.running and error is not None:
                displays.bundles["error"] = lambda: text, lambda: text
            displays.running = False


def _answer(kernel: PageKernel, message: KernelMessage) -> bool:
    """Answer a page. Return whether the kernel can skip the message.

    A busy kernel would answer the first request from the page late, and it is the only request that
    the kernel can skip.
    """
    with _lock:
        running = [displays for displays in _cells.values() if displays.running]
        if message.kind == "kernel_info_request" and running:
            _greet(kernel, message, running[0])
            return True

        if message.kind == "comm_info_request" and message.content.get("target_name") == QUESTION:
            _send_cells(kernel, message)
        if message.kind == "execute_request":
            _repeat_displays(kernel, message, running)

    return False


def _greet(kernel: PageKernel, message: KernelMessage, running: CellDisplays) -> None:
    """Send the messages that a kernel sends to a new page.

    The page (JupyterLab) sends no other request until it has received these messages, and waits up
    to 3 s for them.
    """
    kernel.greet(message)
    kernel.publish(message.header, "status", execution_state="idle")
    kernel.publish(running.request.header, "status", execution_state="busy")


def _send_cells(kernel: PageKernel, message: KernelMessage) -> None:
    running_last = sorted(_cells.values(), key=lambda displays: displays.running)
    cells = [displays.as_json() for displays in running_last]
    _send(kernel, message, {ANSWER: {"cells": cells}}, "")


def _repeat_displays(
    kernel: PageKernel, message: KernelMessage, running: list[CellDisplays]
) -> None:
    """Show what a running cell has output so far to a page that runs it again."""
    for displays in running:
        if message.content.get("code") == displays.request.code:
            for name, (bundle, _) in displays.bundles.items():
                _send(kernel, message, bundle(), name)


def _send(
    kernel: PageKernel,
    message: KernelMessage,
    data: Mapping[str, object],
    display_id: str,
) -> None:
    transient = {"display_id": display_id} if display_id else {}
    kernel.publish(
        message.header,
        "display_data",
        data=data,
        metadata={},
        transient=transient,
    )

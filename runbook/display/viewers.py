"""A page that is opened again finds what a cell shows that still runs, or what it showed at its end.

    forget = welcome(display_id, bundle, joined=None)      bundle() -> what stands there now

JupyterLab forgets a running cell's output when its page is closed, and a cell that is run again waits for the first
run to end. So from the first call on, two questions of a page are answered while a cell runs:
- what the cells show, asked by lab/static/watching.js when a notebook is opened: the page follows the running
  cell from then on as if it had started it, without running anything;
- the running cell once more, run by a person whose JupyterLab lacks that file: it is answered with the same displays,
  and JupyterLab sends every later update of them to that page too. The request itself still waits its turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from runbook.display.ear import Message, kernel_with_thread, listen
from runbook.display.place import current_shell

ASK = "runbook.viewer"
"""Target of the `comm_info_request` by which a page asks; any other kernel answers it with an empty list."""
ANSWER = "application/vnd.runbook.viewer.v1+json"
Bundle = Callable[[], dict[str, Any]]


@dataclass
class Shown:
    """What one run of a cell shows."""

    cell: str
    code: str
    request: dict[str, Any]
    """The header of the message that runs it."""
    number: int
    """What stands in the brackets before the cell."""
    bundles: dict[str, tuple[Bundle, Bundle]] = field(default_factory=dict)
    """By display id, in the order in which they were put there: for a page that runs the cell again, for one that
    joined."""
    running: bool = True


_cells: dict[str, Shown] = {}
"""The newest run of each cell that showed something, by the cell's id."""
_lock = Lock()
"""Held while a page is told: what a running cell says afterwards comes after the answer."""


def welcome(display_id: str, bundle: Bundle, joined: Bundle | None = None) -> Callable[[], None]:
    """Show this to whoever opens the page or runs the cell again; the returned function ends it.

    `joined` is for pages with our script: a button with the attribute data-runbook-click sends its click there.
    """
    kernel = kernel_with_thread()
    request = kernel.get_parent("shell") if kernel is not None else {}
    code, cell = request.get("content", {}).get("code"), request.get("metadata", {}).get("cellId")
    if not code or not cell:
        return lambda: None
    if not _cells:
        listen(lambda message: _hear(kernel, message))
        current_shell().events.register("post_run_cell", _ended)
    header = {name: request["header"][name] for name in ("msg_id", "msg_type", "session", "username")}
    with _lock:
        shown = _cells.get(cell)
        if shown is None or shown.request != header:
            # The shell's own counter may be that of the next cell already.
            number = len(current_shell().history_manager.input_hist_parsed) - 1
            shown = _cells[cell] = Shown(cell, code, header, number)
        shown.bundles[display_id] = bundle, joined or bundle
    return lambda: _forget(shown, display_id)


def _forget(shown: Shown, display_id: str) -> None:
    with _lock:
        shown.bundles.pop(display_id, None)


def _ended(result: Any) -> None:
    """IPython calls this after each cell."""
    error = result.error_before_exec or result.error_in_exec
    words = {"text/plain": f"{type(error).__name__}: {error}"}
    with _lock:
        for shown in _cells.values():
            if shown.running and error is not None:
                shown.bundles["error"] = lambda: words, lambda: words
            shown.running = False


def _hear(kernel: Any, message: Message) -> bool:
    """Answer a page; but for the first greeting, which a working kernel would let wait, the kernel gets it too."""
    with _lock:
        running = [shown for shown in _cells.values() if shown.running]
        if message.kind == "kernel_info_request" and running:
            _greet(kernel, message, running[0])
            return True
        if message.kind == "comm_info_request" and message.content.get("target_name") == ASK:
            _send(kernel, message, {ANSWER: answer(list(_cells.values()))}, "")
        if message.kind == "execute_request":
            for shown in running:
                if message.content.get("code") == shown.code:
                    for name, (bundle, _) in shown.bundles.items():
                        _send(kernel, message, bundle(), name)
    return False


def _greet(kernel: Any, message: Message, running: Shown) -> None:
    """Say what a kernel says to a new page, which sends nothing else before that (JupyterLab: for three seconds)."""
    parent, about = {"header": message.header}, {"status": "ok", **kernel.kernel_info}
    kernel.session.send(kernel.shell_stream, "kernel_info_reply", about, parent=parent, ident=message.addresses)
    for state, cause in (("idle", message.header), ("busy", running.request)):
        kernel.session.send(kernel.iopub_socket, "status", {"execution_state": state}, parent={"header": cause})


def answer(cells: list[Shown]) -> dict[str, Any]:
    """What a page is told, the running cell last.

    >>> ended = Shown("a", "", {"msg_id": "1"}, 6, {"x": (dict, lambda: {"text/plain": "hi"})}, running=False)
    >>> told = answer([Shown("b", "", {"msg_id": "2"}, 7), ended])["cells"]
    >>> [(one["cell"], one["request"]) for one in told], told[0]["shown"]
    ([('a', '1'), ('b', '2')], [{'id': 'x', 'data': {'text/plain': 'hi'}}])
    """
    return {
        "cells": [
            {
                "cell": one.cell,
                "request": one.request["msg_id"],
                "number": one.number,
                "running": one.running,
                "shown": [{"id": name, "data": bundle()} for name, (_, bundle) in one.bundles.items()],
            }
            for one in sorted(cells, key=lambda one: one.running)
        ]
    }


def _send(kernel: Any, message: Message, data: dict[str, Any], display_id: str) -> None:
    transient = {"display_id": display_id} if display_id else {}
    told = {"data": data, "metadata": {}, "transient": transient}
    kernel.session.send(kernel.iopub_socket, "display_data", told, parent={"header": message.header})

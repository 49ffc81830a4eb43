"""A page that is opened again finds the picture of a cell that still runs.

    close = welcome(display_id, bundle)      bundle() -> what to show; close() ends it

JupyterLab forgets a running cell's output when its page is closed, and a cell that is run again waits for the first
run to end. So while a cell shows progress, a second request to run the same cell is answered at once with the same
display: JupyterLab then sends every later update of it to the new page too. The request itself still waits its turn.
Kernels without a shell thread of their own (ipykernel before 7) cannot look at what waits; there nothing changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from runbook.display.place import current_shell

DELIMITER = b"<IDS|MSG>"
"""Between addresses and the signed parts of a message: signature, header, parent, metadata, content."""


def welcome(display_id: str, bundle: Callable[[], dict[str, str]]) -> Callable[[], None]:
    """Answer whoever runs this cell again while it runs."""
    shell = current_shell()
    kernel = getattr(shell, "kernel", None)
    if kernel is None or getattr(kernel, "shell_channel_thread", None) is None:
        return lambda: None
    stream = kernel.shell_stream
    cell = _content_of(kernel.get_parent("shell")).get("code", "")
    usual = kernel.shell_channel_thread_main

    def look(message: Sequence[Any]) -> Any:
        header = asked_again(message, cell)
        if header is not None:
            content = {"data": bundle(), "metadata": {}, "transient": {"display_id": display_id}}
            kernel.session.send(kernel.iopub_socket, "display_data", content, parent={"header": header})
        return usual(message)

    stream.io_loop.add_callback(stream.on_recv, look, copy=False)
    return lambda: stream.io_loop.add_callback(stream.on_recv, usual, copy=False)


def asked_again(message: Sequence[Any], cell: str) -> dict[str, Any] | None:
    """The header of a message that asks to run this very cell, or None."""
    parts = [bytes(part) for part in message]
    if DELIMITER not in parts:
        return None
    signed = parts[parts.index(DELIMITER) + 1 :]
    try:
        header, content = json.loads(signed[1]), json.loads(signed[4])
    except (IndexError, ValueError):
        return None
    same = header.get("msg_type") == "execute_request" and content.get("code") == cell
    return header if same and cell else None


def _content_of(parent: Any) -> dict[str, Any]:
    content = parent.get("content", {}) if isinstance(parent, dict) else {}
    return content if isinstance(content, dict) else {}

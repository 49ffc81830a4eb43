"""A page that is opened again finds the picture of a cell that still runs.

    close = welcome(display_id, bundle)      bundle() -> what to show; close() ends it

JupyterLab forgets a running cell's output when its page is closed, and a cell that is run again waits for the first
run to end. So while a cell shows progress, a second request to run the same cell is answered at once with the same
display: JupyterLab then sends every later update of it to the new page too. The request itself still waits its turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runbook.display.ear import kernel_with_thread, listen


def welcome(display_id: str, bundle: Callable[[], dict[str, str]]) -> Callable[[], None]:
    """Answer whoever runs this cell again while it runs."""
    kernel = kernel_with_thread()
    if kernel is None:
        return lambda: None
    cell = kernel.get_parent("shell").get("content", {}).get("code", "")

    def hear(header: dict[str, Any], content: dict[str, Any]) -> bool:
        if header.get("msg_type") == "execute_request" and cell and content.get("code") == cell:
            told = {"data": bundle(), "metadata": {}, "transient": {"display_id": display_id}}
            kernel.session.send(kernel.iopub_socket, "display_data", told, parent={"header": header})
        return False

    return listen(hear)

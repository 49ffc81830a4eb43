"""A note is typed while its cell runs, in a real kernel, with the messages that JupyterLab sends."""

from __future__ import annotations

import ast
import time

import pytest
from jupyter_client.manager import start_new_kernel

from runbook.display.jupyter.widgets import WIDGET
from runbook.display.output_place import SERVER_VARIABLE

CODE = """
import time
from runbook.display.jupyter import widgets
from runbook.display.jupyter.widgets import controls
plain_buttons = widgets.plain_buttons
# A busy machine: the page sends its first note while the kernel still prepares the rest.
widgets.plain_buttons = lambda *words: time.sleep(1) or plain_buttons(*words)
noted, end = [], time.monotonic() + 300
with controls({"Note": (lambda text: noted.append(text) or f"Noted: {text}", 'runbook note x "..."')}):
    while len(noted) < 2 and time.monotonic() < end:
        time.sleep(0.05)
print(noted)
"""


@pytest.mark.notebooks
def test_two_notes_are_taken_while_the_cell_runs_and_the_page_may_type_on(monkeypatch):
    monkeypatch.setenv(SERVER_VARIABLE, "a.ipynb")
    manager, client = start_new_kernel()

    def send(kind, content):
        message = client.session.msg(kind, content, metadata={"cellId": "a"})
        client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def press_after_typing(text):
        """Send the messages that JupyterLab sends when a user types and then clicks the button."""
        typed = send("comm_msg", {"comm_id": by_model["TextModel"], "data": typing(text)})
        send(
            "comm_msg",
            {"comm_id": by_model["ButtonModel"], "data": {"method": "custom", "content": CLICK}},
        )
        return typed

    try:
        cell = send(
            "execute_request",
            {"code": CODE, "silent": False, "store_history": True, "stop_on_error": True},
        )
        by_model = {}
        typed = []
        idle = set()
        said = []
        end = time.monotonic() + 400
        while cell not in idle and time.monotonic() < end:
            message = client.get_iopub_msg(timeout=400)
            kind = message["msg_type"]
            content = message["content"]
            if kind == "comm_open":
                by_model[content["data"]["state"].get("_model_name")] = content["comm_id"]
            elif kind == "status" and content["execution_state"] == "idle":
                idle.add(message["parent_header"]["msg_id"])
            elif kind == "stream":
                said.append(content["text"])
            is_drawn = kind == "display_data" and WIDGET in content["data"]
            if is_drawn or (
                len(typed) == 1 and typed[0] in idle
            ):  # until then, JupyterLab does not send the next text
                typed.append(press_after_typing(f"note {len(typed) + 1}"))
        assert ast.literal_eval("".join(said)) == ["note 1", "note 2"]
        assert cell in idle and len(typed) == 2 and set(typed) <= idle
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


CLICK = {"event": "click"}


def typing(text):
    return {"method": "update", "state": {"value": text}, "buffer_paths": []}

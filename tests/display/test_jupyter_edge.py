"""The interface to ipykernel and JupyterLab: every name that we use exists, and a page gets the
answers it expects."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from runbook.core import shell
from runbook.display.jupyter import kernel, open_pages
from runbook.display.jupyter.kernel import CellRequest, KernelMessage, PageKernel
from runbook.display.jupyter.open_pages import ANSWER, QUESTION, CellDisplays

PACKAGE = Path(kernel.__file__).parents[2]
SCRIPT = (PACKAGE / "display" / "jupyter" / "lab" / "static" / "watching.js").read_text()
EDGE = (PACKAGE / "display" / "jupyter" / "kernel.py").read_text()
USED_OF_IPYKERNEL = {
    name
    for pair in re.findall(r"_kernel\.(\w+)|\(kernel, \"(\w+)\"", EDGE)
    for name in pair
    if name
}
"""Kernel attributes that we use, and io_thread from its iopub_socket."""
USED_OF_IPYTHON = ("display_pub", "events", "history_manager", "kernel")
"""Shell attributes used in `records.session`, `display.output_place` and `display.jupyter.kernel`.
"""
USED_OF_JUPYTERLAB = (
    *(
        "addWidgetExtension",
        "docRegistry",
        "sessionContext",
        "iopubMessage",
        "kernelChanged",
        "requestCommInfo",
    ),
    *(
        "createComm",
        "clearExecution",
        "executionCount",
        "executionState",
        "outputArea",
        "scrollToItem",
    ),
    *("isDisposed", "onIOPub", "onReply", "onStdin"),
)
"""Members that watching.js uses in JupyterLab 4 objects."""


def test_ipykernel_7_has_every_attribute_we_use():
    from ipykernel.ipkernel import IPythonKernel

    assert version("ipykernel").partition(".")[0] == "7", (
        "read display/jupyter/kernel.py against the new version"
    )
    assert len(USED_OF_IPYKERNEL) >= 7, "the edge says by which names it knows the kernel"
    assert [name for name in USED_OF_IPYKERNEL if not hasattr(IPythonKernel, name)] == []


def test_ipython_has_every_attribute_we_use():
    code = (  # in a separate process, because a shell changes the process that creates it
        "from ipykernel.zmqshell import ZMQInteractiveShell; shell = ZMQInteractiveShell()\n"
        f"assert [name for name in {USED_OF_IPYTHON} if not hasattr(shell, name)] == []\n"
        "shell.history_manager.input_hist_parsed, shell.history_manager.input_hist_raw\n"
        "assert 'post_run_cell' in shell.events.callbacks"
    )
    assert shell.run([sys.executable, "-c", code], check=False).err == ""


def test_jupyterlab_4_has_every_member_that_our_script_uses():
    assert version("jupyterlab").partition(".")[0] == "4", (
        "read lab/static/watching.js against the new version"
    )
    bundle = Path(sys.prefix, "share", "jupyter", "lab", "static")
    text = "".join(path.read_text(encoding="utf-8") for path in bundle.glob("*.js"))
    assert [name for name in USED_OF_JUPYTERLAB if not re.search(rf"\b{name}\b", text)] == []
    assert [name for name in USED_OF_JUPYTERLAB if not re.search(rf"\b{name}\b", SCRIPT)] == []


def test_nothing_else_names_the_inside_of_ipykernel():
    # The other names also have other meanings; for example, a client requests kernel_info from a
    # kernel.
    inside = USED_OF_IPYKERNEL - {"session", "kernel_info", "get_parent"}
    for path in PACKAGE.rglob("*.py"):
        names = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
        }
        assert path.name == "kernel.py" or not names & inside, path


class Stream:
    """The calls that the request socket in ipykernel makes to a ZMQStream."""

    def __init__(self) -> None:
        self.io_loop = SimpleNamespace(
            add_callback=lambda call, *words, **options: call(*words, **options)
        )
        self.receiver = None

    def on_recv(self, receiver, copy):
        assert copy is False
        self.receiver = receiver


@pytest.fixture
def around(monkeypatch):
    """A kernel with only the attributes that we use. It keeps what it sends."""
    sent = []
    request = {
        "header": {
            "msg_id": "7",
            "msg_type": "execute_request",
            "session": "s",
            "username": "u",
            "date": "today",
        },
        "content": {"code": "watch()"},
        "metadata": {"cellId": "a"},
    }
    ipykernel = SimpleNamespace(
        get_parent=lambda channel: request,
        iopub_socket="iopub",
        kernel_info={"implementation": "ipython"},
        session=SimpleNamespace(send=lambda *words, **options: sent.append((*words, options))),
        shell_channel_thread=object(),
        shell_channel_thread_main=lambda message: sent.append(("kernel", message)),
        shell_stream=Stream(),
    )
    assert set(vars(ipykernel)) == USED_OF_IPYKERNEL
    ended = []
    shell = SimpleNamespace(
        kernel=ipykernel,
        events=SimpleNamespace(register=lambda name, callback: ended.append(callback)),
        history_manager=SimpleNamespace(input_hist_parsed=["", "1 + 1", "watch()"]),
    )
    monkeypatch.setattr(kernel, "current_shell", lambda: shell)
    monkeypatch.setattr(kernel, "_listeners", [])
    monkeypatch.setattr(open_pages, "_cells", {})
    return SimpleNamespace(kernel=ipykernel, sent=sent, ended=ended)


def test_a_listener_is_asked_first_and_the_kernel_gets_its_receiver_back(around):
    close = kernel.listen(lambda message: True)
    parts = [
        b"address",
        kernel.DELIMITER,
        b"sign",
        b'{"msg_type": "comm_msg"}',
        b"{}",
        b"{}",
        b"{}",
    ]
    around.kernel.shell_stream.receiver(parts)
    assert around.sent == []
    close()
    around.kernel.shell_stream.receiver(parts)
    assert around.sent == [("kernel", parts)]


def question(kind: str, **content: object) -> KernelMessage:
    return KernelMessage([b"page"], {"msg_id": "q", "msg_type": kind}, dict(content))


def test_a_page_that_asks_is_sent_what_the_running_cell_shows(around):
    forget = open_pages.show_to_new_pages(
        "x", lambda: {"text/plain": "10 %"}, lambda: {"text/html": "<b>10 %</b>"}
    )
    page = PageKernel(around.kernel)
    assert not open_pages._answer(page, question("comm_info_request", target_name="another"))
    assert around.sent == []
    assert not open_pages._answer(page, question("comm_info_request", target_name=QUESTION))
    ((socket, kind, content, options),) = around.sent
    assert (socket, kind, options["parent"]["header"]["msg_id"]) == ("iopub", "display_data", "q")
    (cell,) = content["data"][ANSWER]["cells"]
    assert cell == {
        "cell": "a",
        "request": "7",
        "number": 2,
        "running": True,
        "shown": [{"id": "x", "data": {"text/html": "<b>10 %</b>"}}],
    }
    forget()
    assert open_pages._cells["a"].bundles == {}


def test_the_same_cell_run_again_shows_what_runs_and_still_waits_its_turn(around):
    open_pages.show_to_new_pages("x", lambda: {"text/plain": "10 %"})
    assert not open_pages._answer(
        PageKernel(around.kernel), question("execute_request", code="something else")
    )
    assert not open_pages._answer(
        PageKernel(around.kernel), question("execute_request", code="watch()")
    )
    ((_, _, content, _),) = around.sent
    assert (content["data"], content["transient"]) == ({"text/plain": "10 %"}, {"display_id": "x"})


def test_a_new_page_is_greeted_for_a_working_kernel(around):
    open_pages.show_to_new_pages("x", lambda: {"text/plain": "10 %"})
    assert open_pages._answer(PageKernel(around.kernel), question("kernel_info_request"))
    (stream, kind, about, options), idle, busy = around.sent
    assert (stream, kind, options["ident"]) == (
        around.kernel.shell_stream,
        "kernel_info_reply",
        [b"page"],
    )
    assert about == {"status": "ok", "implementation": "ipython"}
    assert [sent[2]["execution_state"] for sent in (idle, busy)] == ["idle", "busy"]
    around.ended[0](SimpleNamespace(error_before_exec=None, error_in_exec=ValueError("no")))
    assert not open_pages._answer(PageKernel(around.kernel), question("kernel_info_request")), (
        "nothing runs"
    )
    (cell,) = [displays.as_json() for displays in open_pages._cells.values()]
    assert (cell["running"], cell["shown"][-1]["data"]["text/plain"]) == (False, "ValueError: no")


def test_the_running_cell_comes_last(around, monkeypatch):
    header = {"msg_id": "1"}
    ended = CellDisplays(
        CellRequest("a", "", header, 6), {"x": (dict, lambda: {"text/plain": "hi"})}, running=False
    )
    running = CellDisplays(CellRequest("b", "", {"msg_id": "2"}, 7))
    monkeypatch.setattr(open_pages, "_cells", {"b": running, "a": ended})
    open_pages._answer(
        PageKernel(around.kernel), question("comm_info_request", target_name=QUESTION)
    )
    cells = around.sent[0][2]["data"][ANSWER]["cells"]
    assert [(cell["cell"], cell["request"]) for cell in cells] == [("a", "1"), ("b", "2")]
    assert cells[0]["shown"] == [{"id": "x", "data": {"text/plain": "hi"}}]

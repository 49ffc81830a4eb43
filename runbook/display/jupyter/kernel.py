"""The only module that names internals of ipykernel and IPython.

    close = listen(listener)                the listener returns whether it handled a message
    page_kernel() -> PageKernel | None      its kernel, if it reads messages during a cell
    lose_no_output()                        nothing that a cell prints is dropped

A kernel answers requests one after another, so a click, or a second run of a cell, waits until the
running cell ends. ipykernel 7 receives messages in a separate thread, where we can read them as
they arrive. Older versions have no such thread. With these versions, clicks are noticed late, and
nothing else changes. The kernel checks the signature on every message passed on to it.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Event, current_thread
from typing import Any

from runbook.display.output_place import current_shell

DELIMITER = b"<IDS|MSG>"
"""Separates the addresses in a message from the signed parts: signature, header, parent, etc."""
REDIRECT_SECONDS = 10.0
"""How long to wait for the kernel thread. If that thread has ended, nothing arrives anyway."""


@dataclass(frozen=True)
class KernelMessage:
    """A message from a page."""

    addresses: list[bytes]  # the address for the answer
    header: dict[str, Any]
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        """`execute_request`, `comm_msg`, ..."""
        return str(self.header.get("msg_type"))


@dataclass(frozen=True)
class CellRequest:
    """The message that runs the current cell."""

    # The cell id in its notebook
    cell: str
    code: str
    header: dict[str, Any]
    # The execution number, shown in brackets before the cell
    number: int


Listener = Callable[[KernelMessage], bool]
_listeners: list[Listener] = []


class PageKernel:
    """The kernel that runs in this process."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def redirect(
        self, receive: Callable[[Sequence[Any], Callable[[Sequence[Any]], Any]], Any] | None
    ) -> None:
        """Pass each message to `receive` before the kernel gets it.

        `receive` is called with the message and the original receiver. If `receive` is None, the
        original receiver is restored. The kernel thread makes the change, and this function waits
        for it, so that no message after this call is missed.
        """
        stream = self._kernel.shell_stream
        usual = self._kernel.shell_channel_thread_main
        changed = Event()

        def pass_on(message: Sequence[Any]) -> Any:
            if receive is None:
                return usual(message)
            return receive(message, usual)

        def change() -> None:
            # Without `receive`, restore exactly the function that the stream had before.
            stream.on_recv(usual if receive is None else pass_on, copy=False)
            changed.set()

        stream.io_loop.add_callback(change)
        if current_thread() is not self._kernel.shell_channel_thread:
            changed.wait(REDIRECT_SECONDS)

    def running_cell(self) -> CellRequest | None:
        """Return the running cell if the page that started it sends a cell id, or else None."""
        request = self._kernel.get_parent("shell")
        code = request.get("content", {}).get("code")
        cell = request.get("metadata", {}).get("cellId")
        if not code or not cell:
            return None
        header = {}
        for name in ("msg_id", "msg_type", "session", "username"):
            header[name] = request["header"][name]

        # The counter in the shell may already have advanced to the next cell.
        return CellRequest(
            cell, code, header, len(current_shell().history_manager.input_hist_parsed) - 1
        )

    def after_each_cell(self, callback: Callable[[Any], None]) -> None:
        """Call `callback` after each cell, with the result from IPython."""
        current_shell().events.register("post_run_cell", callback)

    def publish(
        self,
        cause: dict[str, object],
        kind: str,
        **content: Any,
    ) -> None:
        """Send a message to every page, as if the request with the header `cause` had caused it."""
        self._kernel.session.send(
            self._kernel.iopub_socket, kind, content, parent={"header": cause}
        )

    def greet(self, message: KernelMessage) -> None:
        """Answer the first request from a page, which asks for the kernel type."""
        about = {"status": "ok", **self._kernel.kernel_info}
        parent = {"header": message.header}
        stream = self._kernel.shell_stream
        self._kernel.session.send(
            stream,
            "kernel_info_reply",
            about,
            parent=parent,
            ident=message.addresses,
        )


def lose_no_output() -> None:
    """Let cell output wait until it is read.

    Beyond 1,000 messages, ZeroMQ would silently drop the next one.
    """
    import zmq

    publisher = current_shell().kernel.iopub_socket.io_thread
    publisher.schedule(lambda: publisher.socket.setsockopt(zmq.SNDHWM, 0))


def page_kernel() -> PageKernel | None:
    """Return the kernel in this process, or None if it has no thread for messages."""
    kernel = getattr(current_shell(), "kernel", None)
    if getattr(kernel, "shell_channel_thread", None) is None:
        return None
    return PageKernel(kernel)


def listen(listener: Listener) -> Callable[[], None]:
    """Pass every request to the listener until the returned function is called.

    There may be more than one listener.
    """
    kernel = page_kernel()
    if kernel is None:
        return lambda: None
    _listeners.append(listener)
    if len(_listeners) == 1:
        kernel.redirect(pass_on)

    def close() -> None:
        if listener in _listeners:
            _listeners.remove(listener)
        if not _listeners:
            kernel.redirect(None)

    return close


def read(message: Sequence[Any]) -> KernelMessage | None:
    """Parse a message from the wire; return None if it cannot be read."""
    parts = [bytes(part) for part in message]
    try:
        at = parts.index(DELIMITER)
        header = json.loads(parts[at + 2])
        content = json.loads(parts[at + 5])
    except (IndexError, ValueError):
        return None

    is_message = isinstance(header, dict) and isinstance(content, dict)
    return KernelMessage(parts[:at], header, content) if is_message else None


def pass_on(message: Sequence[Any], usual: Callable[[Sequence[Any]], Any]) -> Any:
    """Pass a message to the listeners, and to the kernel unless one of them handled it."""
    request = read(message)
    if request is not None and any(listener(request) for listener in list(_listeners)):
        return None
    return usual(message)

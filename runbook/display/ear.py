"""Hears what a page asks of the kernel while a cell still runs.

    close = listen(hear)      hear(Message) -> bool: whether it was dealt with and the kernel need not see it

A kernel answers one request after the other, so a click or a second run of a cell waits for the cell's end. ipykernel 7
receives messages in a thread of its own; there they can be looked at as they come. An older one has no such thread:
then nothing is heard, and nothing else changes. The kernel checks the signature of whatever is passed on to it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from runbook.display.place import current_shell

DELIMITER = b"<IDS|MSG>"
"""Between addresses and the signed parts of a message: signature, header, parent, metadata, content."""


@dataclass(frozen=True)
class Message:
    """What a page sent."""

    addresses: list[bytes]
    """Where an answer goes."""
    header: dict[str, Any]
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        """`execute_request`, `comm_msg`, ..."""
        return str(self.header.get("msg_type"))


Hear = Callable[[Message], bool]
_ears: list[Hear] = []


def listen(hear: Hear) -> Callable[[], None]:
    """Hear every request from now on until the returned function is called; several may listen."""
    kernel = kernel_with_thread()
    if kernel is None:
        return lambda: None
    stream, usual = kernel.shell_stream, kernel.shell_channel_thread_main
    _ears.append(hear)
    if len(_ears) == 1:
        stream.io_loop.add_callback(stream.on_recv, lambda message: _pass_on(message, usual), copy=False)

    def close() -> None:
        if hear in _ears:
            _ears.remove(hear)
        if not _ears:
            stream.io_loop.add_callback(stream.on_recv, usual, copy=False)

    return close


def kernel_with_thread() -> Any:
    """The kernel around us, if it receives messages in a thread of its own; else None."""
    kernel = getattr(current_shell(), "kernel", None)
    return kernel if getattr(kernel, "shell_channel_thread", None) is not None else None


def read(message: Sequence[Any]) -> Message | None:
    """A message as it came over the wire; None where it cannot be read."""
    parts = [bytes(part) for part in message]
    if DELIMITER not in parts:
        return None
    signed = parts[parts.index(DELIMITER) + 1 :]
    addresses = parts[: parts.index(DELIMITER)]
    try:
        header, content = json.loads(signed[1]), json.loads(signed[4])
    except (IndexError, ValueError):
        return None
    known = isinstance(header, dict) and isinstance(content, dict)
    return Message(addresses, header, content) if known else None


def _pass_on(message: Sequence[Any], usual: Callable[[Sequence[Any]], Any]) -> Any:
    asked = read(message)
    if asked is not None and any(hear(asked) for hear in list(_ears)):
        return None
    return usual(message)

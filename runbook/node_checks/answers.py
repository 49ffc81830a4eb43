"""Writes and reads the answers from a node, line by line.

Each part is written as soon as the result is known. The lines go to the job output, because the
shared folder itself is being checked.
"""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

HOSTS = "hosts"
"""Preflight rung used to check each node separately."""
TORCH = "torch"
"""Preflight rung used to import torch in a separate process."""
PEERS = "peers"
"""Preflight rung used to check the links between nodes."""
MARK = "@preflight "
"""Prefix for a line with an answer in the job output."""
PIECE_MARK = "@preflight-piece "
"""Prefix used instead if an answer needs more than one line."""
PIECE_LETTERS = 700
"""Longest line, in bytes.

The Slurm step daemon forwards at most 1,024 bytes at once (MAX_MSG_LEN for stdio), so longer lines
from several nodes get mixed up. On Slurm 22.05 under load, a healthy node's answer was lost in this
way.
"""
NODES_VARIABLE = "RUNBOOK_NODES"
"""Variable with the names of all nodes in the job, separated by spaces, in scheduler order."""
ADDRESS_VARIABLE = "MASTER_ADDR"
PORT_VARIABLE = "MASTER_PORT"
OWN_PACKAGE = "gpt3-runbook"
"""The package for which every node has the source files."""

Facts = dict[str, object]
"""Findings for a part, as plain JSON values."""


class PartState(Enum):
    """How the check for a part ended."""

    BEGUN = "begun"
    """The part started but wrote no result, because the program hung or was ended."""
    DONE = "done"
    FAILED = "failed"
    HUNG = "hung"


class ProgramEnd(Enum):
    """How a program on PATH responds when asked for its prefix and version."""

    WELL = "well"
    FAILED = "failed"
    """The program does not start, or is not Python."""
    HUNG = "hung"
    """The program did not answer in the remaining time. A cold file server can cause this."""


@dataclass(frozen=True)
class PartAnswer:
    """What a node found for a part, or why there is nothing."""

    rung: str
    node: str
    part: str
    state: PartState
    time: float
    """Seconds since 1970, according to the clock on the node."""
    facts: Mapping[str, object]
    error: str = ""
    """The error message from the operating system or Python, if the state is FAILED."""


def node_names() -> list[str]:
    """Return the names of all nodes in the job, or only this host if the job lists no nodes."""
    return os.environ.get(NODES_VARIABLE, "").split() or [socket.gethostname()]


def own_name() -> str:
    """Return the name the scheduler uses for this node, or else the host name.

    Slurm provides the name in the list, because the host name may differ: it may be `localhost`.
    """
    slurm_name = os.environ.get("SLURMD_NODENAME", "")
    if slurm_name in node_names():
        return slurm_name
    host = socket.gethostname()
    for name in node_names():
        if name.partition(".")[0] == host.partition(".")[0]:
            return name

    return host


class Rung:
    """The checks for a rung on this node.

    Each check either gives an answer or is abandoned after a time limit.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.node = own_name()
        self._num_lines = 0

    def ask(
        self,
        part: str,
        action: Callable[[], Facts],
        seconds: float,
    ) -> Facts | None:
        """Write what `action` has found, or why it failed.

        Return None if the action failed or took too long. A check on a dead file server never
        returns, and no signal can end it. In that case, the thread is abandoned, and the next part
        begins.
        """
        self.write(part, PartState.BEGUN)
        results: list[Facts] = []
        errors: list[str] = []

        def look() -> None:
            try:
                results.append(action())
            except (OSError, ValueError, ImportError, RuntimeError) as error:
                errors.append(f"{type(error).__name__}: {error}"[:400])

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(seconds)
        if results:
            self.write(part, PartState.DONE, results[0])
            return results[0]

        if errors:
            self.write(part, PartState.FAILED, error=errors[0])
        else:
            self.write(part, PartState.HUNG, {"seconds": seconds})

        return None

    def write(
        self,
        part: str,
        state: PartState,
        facts: Facts | None = None,
        error: str = "",
    ) -> None:
        """Write an answer, with a single call for each line.

        So lines from different nodes never mix.
        """
        line = {
            "rung": self.name,
            "node": self.node,
            "part": part,
            "state": state.value,
            "time": time.time(),
            "facts": facts or {},
            "error": error,
        }
        self._num_lines += 1
        key = f"{self.node}:{os.getpid()}:{self._num_lines}"
        for text in output_lines(json.dumps(line), key):
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()


def output_lines(content: str, key: str) -> list[str]:
    """Return the lines to write for an answer.

    If an answer is long, all pieces share a key.

    >>> output_lines("{}", "n1:7:1")
    ['@preflight {}']
    """
    if len(content) <= PIECE_LETTERS:
        return [MARK + content]
    pieces = []
    for start in range(0, len(content), PIECE_LETTERS):
        pieces.append(content[start : start + PIECE_LETTERS])

    lines: list[str] = []
    for number, piece in enumerate(pieces):
        lines.append(f"{PIECE_MARK}{key} {number} {len(pieces)} {piece}")

    return lines


def read_answers(text: str) -> Iterator[PartAnswer]:
    """Yield the answers in the output from a job. Incomplete lines are left out.

    A launcher may put the task number in front of a line.
    """
    for content in _answer_texts(text):
        try:
            values = json.loads(content)
            yield PartAnswer(**{**values, "state": PartState(values["state"])})
        except (ValueError, TypeError, KeyError):
            continue


def _answer_texts(text: str) -> Iterator[str]:
    """Yield the text of each answer. A long answer is joined when the last piece has arrived."""
    pieces_of: dict[str, dict[int, str]] = {}
    for line in text.splitlines():
        _, mark, content = line.partition(MARK)
        if mark:
            yield content
        _, mark, content = line.partition(PIECE_MARK)
        header = content.split(" ", 3)
        if not mark or len(header) < 4 or not (header[1] + header[2]).isdigit():
            continue
        pieces = pieces_of.setdefault(header[0], {})
        pieces[int(header[1])] = header[3]
        if len(pieces) == int(header[2]):
            yield "".join(pieces[number] for number in sorted(pieces))

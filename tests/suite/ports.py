"""Ports at which the ranks of a test meet."""

from __future__ import annotations

import socket
from collections import deque

from runbook.core.ports import port_of, reserve_port

MOST_RESERVED = 64
"""Number of reservations to keep: more than the ranks that tests in one process run at a time."""
_reservations: deque[socket.socket] = deque()


def free_port() -> int:
    """Return a port that no other program gets while the test runs, not even another test."""
    if len(_reservations) == MOST_RESERVED:
        _reservations.popleft().close()

    _reservations.append(reserve_port())
    return port_of(_reservations[-1])

"""A reserved port is free for rank 0 and for nobody else."""

from __future__ import annotations

import errno
import socket

import pytest
from suite.ports import MOST_RESERVED, free_port

from runbook.core.ports import LOOPBACK, port_of, reserve_port


def test_only_a_socket_that_reuses_addresses_can_listen_at_a_reserved_port() -> None:
    """The store in torch sets this option; a port that the kernel chooses does not have it."""
    with reserve_port() as reservation:
        address = (LOOPBACK, port_of(reservation))
        with socket.socket() as stranger, pytest.raises(OSError) as caught:
            stranger.bind(address)
        assert caught.value.errno == errno.EADDRINUSE
        with socket.socket() as first_rank:
            first_rank.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            first_rank.bind(address)
            first_rank.listen()
            with socket.create_connection(address):
                pass


def test_a_port_is_free_again_after_its_reservation() -> None:
    with reserve_port() as reservation:
        address = (LOOPBACK, port_of(reservation))
    with socket.socket() as stranger:
        stranger.bind(address)


def test_tests_at_the_same_time_have_different_ports() -> None:
    ports = [free_port() for _ in range(MOST_RESERVED)]
    assert len(set(ports)) == MOST_RESERVED

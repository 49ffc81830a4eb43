"""The bandwidth that a node reports for a connection."""

from __future__ import annotations

import socket
import threading

import pytest
from suite.clock import HandClock

from runbook.node_checks import peers


def bandwidth(monkeypatch: pytest.MonkeyPatch, slow_chunks: int) -> float:
    """Return the bytes per second to a peer that acknowledges its first megabytes late."""
    clock = HandClock()
    monkeypatch.setattr(peers, "time", clock)
    near, far = socket.socketpair()

    def serve() -> None:
        peers._receive(far, peers._LENGTH.size)
        acknowledged = 0
        while num_bytes := peers._LENGTH.unpack(peers._receive(far, peers._LENGTH.size))[0]:
            peers._receive(far, num_bytes)
            acknowledged += 1
            clock.sleep(1.25 if acknowledged <= slow_chunks else 0.01)
            far.sendall(b"k")

    with near, far:
        server = threading.Thread(target=serve)
        server.start()
        facts = peers._measure_large(near)
        near.sendall(peers._LENGTH.pack(0))
        server.join()
    return float(str(facts["bytes_per_second"]))


def test_a_link_that_is_slow_for_a_moment_is_measured_again(monkeypatch):
    assert bandwidth(monkeypatch, slow_chunks=1) > peers.SUSPECT_BYTES_PER_SECOND


def test_a_link_that_stays_slow_is_reported_as_slow(monkeypatch):
    assert bandwidth(monkeypatch, slow_chunks=99) < peers.SUSPECT_BYTES_PER_SECOND


def test_a_peer_that_accepts_few_connections_at_a_time_is_reported_with_their_number(monkeypatch):
    monkeypatch.setattr(peers, "ALL_OPEN_SECONDS", 0.2)
    accepted: list[socket.socket] = []

    def answer(server: socket.socket, most: int) -> None:
        for _ in range(most):
            connection, _ = server.accept()
            connection.sendall(b"nonce")
            accepted.append(connection)

    for most, fault in ((peers.CONNECTIONS, ""), (3, f"3 of {peers.CONNECTIONS} were opened")):
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=answer, args=(server, most))
            thread.start()
            error = ""
            try:
                peers._open_many(server.getsockname())
            except ConnectionError as raised:
                error = str(raised)
            thread.join()
        assert error.startswith(fault), error
        assert bool(error) == bool(fault)
    for connection in accepted:
        connection.close()


def test_a_peer_serves_until_all_connections_of_its_caller_were_opened(monkeypatch):
    monkeypatch.setattr(peers, "chosen_address", lambda: "127.0.0.1")
    monkeypatch.setattr(peers, "LARGE_SECONDS", 0.0)
    listener = peers.Listener(0)
    port = listener._door.getsockname()[1]
    num_served = []
    open_many = peers._open_many

    def open_and_look(address: tuple[str, int]) -> None:
        open_many(address)
        num_served.append(listener.num_served)

    monkeypatch.setattr(peers, "_open_many", open_and_look)
    facts = peers._try_peer("127.0.0.1", port, own_nonce="0" * len(listener.nonce))
    assert (facts["stage"], facts["error"]) == ("done", "")
    assert num_served == [0]

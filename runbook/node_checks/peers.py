"""Tests connections between nodes: TCP, latency, bandwidth, lost packets, and clock offsets.

Each node listens on the port where ranks would meet in training. A peer that connects there learns
a second port and the address of the interface the environment names. The kernel chooses the second
port, as it does for gloo and NCCL. In this way, each node tries what ranks on it will do later.
"""

import json
import os
import secrets
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from runbook.node_checks.answers import (
    ADDRESS_VARIABLE,
    PORT_VARIABLE,
    Facts,
    PartState,
    Rung,
    node_names,
)
from runbook.node_checks.networks import chosen_address

CONNECT_SECONDS = 10.0
"""Time limit for a connection.

A SYN a firewall drops is repeated after 1, 3 and 7 s; a fourth attempt would not help.
"""
LISTEN_SECONDS = 25.0
"""Longest time between starting the containers on different nodes."""
LATE_SECONDS = 15.0
"""After calling its peers, a node waits this many seconds for nodes that still have to call it."""
SMALL_BYTES = 64
SMALL_ROUNDS = 200
SMALL_SECONDS = 2.0
"""Time limit for all round trips. A slow network completes fewer."""
CHUNK_BYTES = 1 << 20
LARGE_SECONDS = 1.0
LARGE_BYTES = 256 << 20
LARGE_ROUNDS = 3
SUSPECT_BYTES_PER_SECOND = 25e6
"""A slower measurement is repeated, because busy cores also slow it down, but only briefly."""
CONNECTIONS = 32
"""Connections that are open to a peer at the same time.

gloo opens one for each pair of ranks in each process group, and the trainer makes 28 groups.
"""
ALL_OPEN_SECONDS = 8.0
"""Time limit for opening all of them: a SYN that a firewall drops is repeated after 1, 3 and 7 s."""
ANSWER_SECONDS = 15.0
"""Time limit for an echo or an acknowledgement. This is enough for a megabyte even at 1 Mbit/s."""
_NUMBER = struct.Struct("!d")
_LENGTH = struct.Struct("!q")
# struct tcp_info in linux/tcp.h, which only grows at its end
_TCP_INFO_BYTES = 192
_TOTAL_RETRANS = 100
_SEGS_OUT = 136


def peers_of(index: int, num_nodes: int) -> list[int]:
    """Return the peers a node calls: those at distance 1, 2, 4, ... in a ring.

    In this way, a few pairs cover many nodes. If there are two nodes, each calls the other, so both
    directions are tested.

    >>> peers_of(0, 2), peers_of(1, 8), peers_of(0, 1)
    ([1], [2, 3, 5], [])
    """
    peers = []
    distance = 1
    while distance < num_nodes:
        peers.append((index + distance) % num_nodes)
        distance *= 2

    return peers


class Listener:
    """Servers that other nodes connect to.

    The servers listen on the meeting port, and on a second port at the chosen interface.
    """

    def __init__(self, port: int) -> None:
        self.nonce = secrets.token_hex(8)
        self.address = chosen_address()
        self.num_served = 0
        """Number of data connections served completely."""
        self._door = _listen("", port)
        self._data = _listen(self.address, 0)
        for server, serve in ((self._door, self._greet), (self._data, self._exchange)):
            threading.Thread(target=self._accept, args=(server, serve), daemon=True).start()

    def _accept(self, server: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        """Send the name of this node, and the address and port for the data connection."""
        host = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        port = self._data.getsockname()[1]
        offer = {
            "nonce": self.nonce,
            "host": host,
            "address": self.address,
            "port": port,
        }
        with connection, suppress(OSError):
            connection.sendall(json.dumps(offer).encode() + b"\n")

    def _exchange(self, connection: socket.socket) -> None:
        """Answer small messages with the time on this node, and acknowledge large messages."""
        with connection, suppress(OSError, EOFError):
            connection.settimeout(ANSWER_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(self.nonce.encode())
            while _LENGTH.unpack(_receive(connection, _LENGTH.size))[0] == SMALL_BYTES:
                _receive(connection, SMALL_BYTES - _LENGTH.size)
                connection.sendall(_NUMBER.pack(time.time()))

            while True:
                num_bytes = _LENGTH.unpack(_receive(connection, _LENGTH.size))[0]
                if num_bytes == 0:
                    self.num_served += 1
                    return

                _receive(connection, num_bytes)
                connection.sendall(b"k")


def _listen(address: str, port: int) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, port))
    # Several peers may open all their connections at the same time.
    server.listen(socket.SOMAXCONN)
    return server


def _receive(connection: socket.socket, num_bytes: int) -> bytes:
    """Read exactly this many bytes, and keep only the first 64.

    Raise `EOFError` if the peer closes the connection.
    """
    head = b""
    missing = num_bytes
    while missing:
        content = connection.recv(min(missing, CHUNK_BYTES))
        if not content:
            raise EOFError("the other side closed the connection")
        head += content[: SMALL_BYTES - len(head)]
        missing -= len(content)

    return head


def ask_peers(rung: Rung) -> None:
    """Call the peers of this node one after another, and write an answer for each.

    Then wait for the nodes that still have to call this node. Each node is called as many times as
    it calls others.
    """
    names = node_names()
    port = int(os.environ[PORT_VARIABLE])
    try:
        listener = Listener(port)
    except OSError as error:
        text = (
            f"{os.environ[ADDRESS_VARIABLE]}:{port}, interface address "
            f"{chosen_address()!r}: {error}"
        )
        rung.write("listen", PartState.FAILED, {"port": port}, text)
        return

    rung.write("listen", PartState.DONE, {"port": port, "address": listener.address})
    index = names.index(rung.node) if rung.node in names else 0
    peers = peers_of(index, len(names))
    for peer in peers:
        name = names[peer]
        seconds = LISTEN_SECONDS + 2 * CONNECT_SECONDS + 2 * ANSWER_SECONDS
        seconds += LARGE_ROUNDS * LARGE_SECONDS + ALL_OPEN_SECONDS
        rung.ask(f"to {name}", lambda name=name: _try_peer(name, port, listener.nonce), seconds)  # type: ignore[misc]

    deadline = time.monotonic() + LATE_SECONDS
    while listener.num_served < len(peers) and time.monotonic() < deadline:
        time.sleep(0.05)


def _try_peer(name: str, port: int, own_nonce: str) -> Facts:
    """Connect to a node, and measure the connection.

    `stage` is the last stage reached, and `error` is the reason why it was the last.
    """
    facts: Facts = {
        "peer": name,
        "port": port,
        "stage": "meeting port",
        "error": "",
    }
    try:
        offer = _ask_offer(name, port)
        facts |= {"address": offer["address"], "data_port": offer["port"], "stage": "data port"}
        with socket.create_connection(
            (str(offer["address"]), int(str(offer["port"]))), CONNECT_SECONDS
        ) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nonce = _receive(connection, len(own_nonce)).decode()
            if nonce != offer["nonce"]:
                if nonce == own_nonce:
                    reached = "this node itself"
                else:
                    reached = "another node"

                raise ConnectionError(f"{offer['address']} leads to {reached}")

            facts["stage"] = "small messages"
            facts |= _measure_small(connection)
            facts["stage"] = "large messages"
            facts |= _measure_large(connection)
            facts["stage"] = "many connections"
            try:
                _open_many((str(offer["address"]), int(str(offer["port"]))))
            finally:
                # The peer may end its program now.
                connection.sendall(_LENGTH.pack(0))
            facts["stage"] = "done"
    except (OSError, EOFError, ValueError) as error:
        facts["error"] = f"{type(error).__name__}: {error}"

    return facts


def _open_many(address: tuple[str, int]) -> None:
    """Keep many connections to a peer open at the same time.

    Raise `ConnectionError` with the number of those that were opened if the peer does not answer on
    all of them: a firewall may limit how many a node holds, or how fast it opens them.
    """
    deadline = time.monotonic() + ALL_OPEN_SECONDS
    num_answered = 0
    errors: list[str] = []
    with ExitStack() as stack:
        connections = []
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            # All begin at once, so that a link that loses a few packets delays them only once.
            connection.setblocking(False)
            connection.connect_ex(address)
            connections.append(connection)

        for connection in connections:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                _receive(connection, 1)
                num_answered += 1
            except (OSError, EOFError) as error:
                errors.append(f"{type(error).__name__}: {error}")

    if errors:
        raise ConnectionError(f"{num_answered} of {CONNECTIONS} were opened: {errors[0]}")


def _ask_offer(name: str, port: int) -> Facts:
    """Return the answer a node sends on the meeting port.

    Retry while the node is not yet listening on that port.
    """
    deadline = time.monotonic() + LISTEN_SECONDS
    while True:
        try:
            with socket.create_connection((name, port), CONNECT_SECONDS) as connection:
                connection.settimeout(CONNECT_SECONDS)
                with connection.makefile("rb") as stream:
                    offer: Facts = json.loads(stream.readline() or b"{}")

            if "nonce" not in offer:
                raise ConnectionError(f"something else listens at {name}:{port}")
            return offer
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _measure_small(connection: socket.socket) -> Facts:
    """Return the median round-trip time, and the clock offset measured by the quickest round trip."""
    trips: list[tuple[float, float]] = []
    deadline = time.monotonic() + SMALL_SECONDS
    while len(trips) < SMALL_ROUNDS and (not trips or time.monotonic() < deadline):
        sent = time.monotonic()
        sent_clock = time.time()
        connection.sendall(_LENGTH.pack(SMALL_BYTES).ljust(SMALL_BYTES, b"s"))
        other_clock = _NUMBER.unpack(_receive(connection, _NUMBER.size))[0]
        seconds = time.monotonic() - sent
        trips.append((seconds, other_clock - sent_clock - seconds / 2))

    quickest, offset = min(trips)
    sent_again, num_segments = count_segments(connection)
    return {
        "small_sent_again": sent_again,
        "small_segments": num_segments,
        "round_trip": statistics.median(trip for trip, _ in trips),
        "quickest_trip": quickest,
        "clock_offset": offset,
    }


def _measure_large(connection: socket.socket) -> Facts:
    """Send megabytes for about a second and return the bytes per second, in the best round."""
    connection.sendall(_LENGTH.pack(CHUNK_BYTES))  # No more small messages follow.
    best = 0.0
    sent = 0
    for _ in range(LARGE_ROUNDS):
        round_bytes, seconds = _send_large(connection)
        sent += round_bytes
        best = max(best, round_bytes / seconds)
        if best >= SUSPECT_BYTES_PER_SECOND:
            break

    sent_again, num_segments = count_segments(connection)
    return {
        "large_bytes": sent,
        "bytes_per_second": best,
        "sent_again": sent_again,
        "segments": num_segments,
    }


def _send_large(connection: socket.socket) -> tuple[int, float]:
    """Send megabytes for about a second. Return how many bytes were sent, and the seconds.

    Each megabyte is acknowledged before the next one is sent.
    """
    content = os.urandom(CHUNK_BYTES)
    start = time.monotonic()
    sent = 0
    while sent < LARGE_BYTES and time.monotonic() - start < LARGE_SECONDS:
        connection.sendall(_LENGTH.pack(len(content)) + content)
        _receive(connection, 1)
        sent += len(content)

    return sent, time.monotonic() - start


def count_segments(connection: socket.socket) -> tuple[int, int]:
    """Return how many segments were retransmitted and sent in total on a connection.

    The result is (0, 0) if these counts are unknown.
    """
    try:
        content = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        sent_again = struct.unpack_from("=I", content, _TOTAL_RETRANS)[0]
        num_segments = struct.unpack_from("=I", content, _SEGS_OUT)[0]
    except (OSError, AttributeError, struct.error):
        return 0, 0

    return sent_again, num_segments

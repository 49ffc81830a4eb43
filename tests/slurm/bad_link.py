"""A bad cable for a node: frames on eth0 go through this program, which drops, delays or counts
them.

Run inside the node network and process namespaces. It renames eth0 to wire0 and puts a TAP device
with the old name and addresses in front of it. It ends with the node.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import queue
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

TUNSETIFF = 0x400454CA  # linux/if_tun.h
IFF_TAP = 0x2
IFF_NO_PI = 0x1000
IFF_VNET_HDR = 0x4000
SOL_PACKET = 263
PACKET_VNET_HDR = 15  # linux/if_packet.h
PACKET_IGNORE_OUTGOING = 23
ALL_PROTOCOLS = 0x0003
VNET_BYTES = 10
"""Size of struct virtio_net_hdr, which describes the offloads for a frame. Both devices understand
it.
"""
IPV4 = b"\x08\x00"
TCP = 6
TCP_FIN = 0x01
TCP_SYN = 0x02
TCP_RST = 0x04
TCP_ACK = 0x10
QUEUE_FRAMES = 1000
SLURM_PORTS = {16817, 17000, *range(60001, 63001)}
"""Ports from cluster.sh: slurmctld, slurmd, and those that srun listens on."""


@dataclass(frozen=True)
class Frame:
    """A frame with its offload header."""

    content: bytes

    @property
    def num_bytes(self) -> int:
        """Return the number of bytes on the wire."""
        return len(self.content) - VNET_BYTES

    @property
    def is_tcp(self) -> bool:
        """Whether the frame carries TCP over IPv4."""
        ethernet = self.content[VNET_BYTES:]
        return ethernet[12:14] == IPV4 and ethernet[23] == TCP

    @property
    def ports(self) -> tuple[int, int]:
        """TCP source and destination port, valid only if `is_tcp`."""
        ethernet = self.content[VNET_BYTES:]
        start = 14 + 4 * (ethernet[14] & 0xF)
        source = int.from_bytes(ethernet[start : start + 2], "big")
        target = int.from_bytes(ethernet[start + 2 : start + 4], "big")
        return source, target

    @property
    def flags(self) -> int:
        """TCP flags, valid only if `is_tcp`."""
        ethernet = self.content[VNET_BYTES:]
        return ethernet[14 + 4 * (ethernet[14] & 0xF) + 13]

    @property
    def opens_connection(self) -> bool:
        """Whether the TCP flags are SYN without ACK, valid only if `is_tcp`."""
        return self.flags & (TCP_SYN | TCP_ACK) == TCP_SYN

    @property
    def closes_connection(self) -> bool:
        """Whether the TCP flags contain FIN or RST, valid only if `is_tcp`."""
        return bool(self.flags & (TCP_FIN | TCP_RST))

    @property
    def is_slurm(self) -> bool:
        """Whether the frame belongs to Slurm, whose network is often separate from the trainer's."""
        return self.is_tcp and any(port in SLURM_PORTS for port in self.ports)


@dataclass(frozen=True)
class Cable:
    """A cable and its faults."""

    loss: float
    delay: float
    """Seconds."""
    rate: float
    """Bytes per second. If 0, the rate is unlimited."""
    largest: int
    """The largest frame that passes, in bytes. If 0, all frames pass."""
    first_port: int
    last_port: int
    """TCP to these ports is dropped, except for Slurm and the meeting port. If 0, nothing is
    dropped.
    """
    drops_connections: bool
    """New TCP connections are dropped, except those for Slurm."""
    flap: float
    """The link is dead for this many seconds, and then works for as long. If 0, it is never dead.
    """
    connections: int
    """How many TCP connections may be open at a time, besides those for Slurm. If 0, there is no
    limit.
    """
    open: set[tuple[int, int]] = field(default_factory=set)
    """The ports used by the connections that are open now."""

    def loses(self, frame: Frame) -> bool:
        """Return whether the frame is lost."""
        if self.loss and random.random() < self.loss:
            return True
        if frame.is_slurm:
            return False
        if self.largest and frame.num_bytes > self.largest:
            return True
        if self.flap and int(time.monotonic() / self.flap) % 2:
            return True
        if self.drops_connections and frame.is_tcp and frame.opens_connection:
            return True
        if self.connections and frame.is_tcp and self._refuses(frame):
            return True
        return frame.is_tcp and self.first_port <= frame.ports[1] <= self.last_port

    def _refuses(self, frame: Frame) -> bool:
        """Keep track of open connections. Return whether the frame would open one too many."""
        if frame.closes_connection:
            self.open.discard(frame.ports)
        if not frame.opens_connection or frame.ports in self.open:
            return False
        if len(self.open) >= self.connections:
            return True
        self.open.add(frame.ports)
        return False


SOUND_CABLE = Cable(
    loss=0.0,
    delay=0.0,
    rate=0.0,
    largest=0,
    first_port=0,
    last_port=-1,
    drops_connections=False,
    flap=0.0,
    connections=0,
)


def open_tap(name: str) -> int:
    """Create the TAP device, and return its descriptor."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    return descriptor


def open_wire(name: str) -> socket.socket:
    """Open a raw socket on the real device."""
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    wire.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    wire.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    wire.bind((name, 0))
    return wire


def carry(cable: Cable, source: int, target: int) -> None:
    """Forward frames in one direction, forever."""
    on_the_way: queue.Queue[tuple[float, bytes]] = queue.Queue(QUEUE_FRAMES)
    threading.Thread(target=deliver, args=(on_the_way, target), daemon=True).start()
    free_at = 0.0
    while True:
        frame = Frame(os.read(source, 1 << 17))
        if cable.loses(frame):
            continue
        now = time.monotonic()
        if cable.rate:
            free_at = max(free_at, now) + frame.num_bytes / cable.rate
        # A full queue loses the frame, as a switch does.
        if not on_the_way.full():
            on_the_way.put((max(free_at, now) + cable.delay, frame.content))


def deliver(on_the_way: queue.Queue[tuple[float, bytes]], target: int) -> None:
    """Send each frame when it is due."""
    while True:
        due, content = on_the_way.get()
        wait = due - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        try:
            os.write(target, content)
        except OSError:
            continue


def replace_device() -> tuple[int, socket.socket]:
    """Put the TAP device in place of eth0, and return both ends."""
    address = command("ip", "-4", "-o", "addr", "show", "dev", "eth0").split()[3]
    mac = command("ip", "-o", "link", "show", "dev", "eth0").partition("link/ether ")[2].split()[0]
    command("ip", "link", "set", "eth0", "down")
    command("ip", "addr", "flush", "dev", "eth0")
    command("ip", "link", "set", "eth0", "name", "wire0")
    command("ip", "link", "set", "wire0", "address", "02:00:00:00:ff:ff")
    tap = open_tap("eth0")
    command("ip", "link", "set", "eth0", "address", mac)
    command("ip", "link", "set", "wire0", "promisc", "on", "up")
    command("ip", "link", "set", "eth0", "up")
    command("ip", "addr", "add", address, "dev", "eth0")
    return tap, open_wire("wire0")


def command(*words: str) -> str:
    """Run a command and return its output."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Forward frames in both directions until the node ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--largest", type=int, default=0)
    parser.add_argument("--first-port", type=int, default=0)
    parser.add_argument("--last-port", type=int, default=-1)
    parser.add_argument("--flap", type=float, default=0.0)
    parser.add_argument("--connections", type=int, default=0)
    parser.add_argument("--outwards", action="store_true", help="bad in this direction only")
    parser.add_argument("--drops-connections", action="store_true")
    parser.add_argument("--inwards", action="store_true", help="bad towards the node only")
    options = vars(parser.parse_args())
    is_outwards_only = options.pop("outwards")
    is_inwards_only = options.pop("inwards")
    cable = Cable(**options)
    cable_out = SOUND_CABLE if is_inwards_only else cable
    cable_back = SOUND_CABLE if is_outwards_only else cable
    tap, wire = replace_device()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    back = threading.Thread(target=carry, args=(cable_back, wire.fileno(), tap), daemon=True)
    back.start()
    carry(cable_out, tap, wire.fileno())


if __name__ == "__main__":
    main()

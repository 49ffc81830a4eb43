"""Reports the network interfaces on a node, and how names of other nodes are resolved."""

import contextlib
import fcntl
import os
import re
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from runbook.node_checks.answers import Facts, node_names, own_name

GLOO_VARIABLE = "GLOO_SOCKET_IFNAME"
INTERFACE_VARIABLES = ("NCCL_SOCKET_IFNAME", GLOO_VARIABLE)
VIRTUAL = re.compile(r"(veth|docker|br-|virbr|cni|flannel|cali|tun|tap|vnet)")
"""Interfaces for containers and virtual machines, which come and go."""
# SIOCGIFADDR in linux/sockios.h
_GET_ADDRESS = 0x8915
_GET_FLAGS = 0x8913  # SIOCGIFFLAGS
_GET_HARDWARE = 0x8927  # SIOCGIFHWADDR
_GET_MTU = 0x8921  # SIOCGIFMTU
_IS_UP = 0x1
_IS_RUNNING = 0x40
ROUTES = Path("/proc/self/net/route")
LOOPBACK = "127.0.0.1"
LOOPBACK_SECONDS = 4.0
"""Time limit for a connection within the node. The kernel repeats a lost packet after 1 and 3 s."""
NAME_ATTEMPTS = 2
SUSPECT_NAME_SECONDS = 0.5
"""A name look-up is repeated if it takes longer than this many seconds."""
NAMES_SECONDS = 14.0
"""Seconds after which no look-up starts.

One that takes 5 s at each attempt still ends within the time limit for the check.
"""


def look_at_interfaces() -> Facts:
    """Return each interface with its address, whether it is up, and its MTU.

    InfiniBand devices are listed last. The interface names are taken from a system call, because
    /sys may show those in a different network namespace.
    """
    names = sorted(name for _, name in socket.if_nameindex())
    return {
        "interfaces": {name: describe_interface(name) for name in names},
        "loopback_error": loopback_error(),
        "addresses": local_addresses(),
        "infiniband": _infiniband(),
        "chosen": {name: os.environ.get(name, "") for name in INTERFACE_VARIABLES},
    }


def describe_interface(name: str) -> Facts:
    """Return the IPv4 address of an interface, whether the link is up, and the MTU.

    The address is empty if the interface has no address.
    """
    flags = _ask_interface(name, _GET_FLAGS, "H")
    is_up = flags is not None and bool(flags & _IS_UP) and bool(flags & _IS_RUNNING)
    return {
        "hardware": hardware_address(name),
        "address": interface_address(name),
        "is_up": is_up,
        "mtu": _ask_interface(name, _GET_MTU, "i"),
    }


def interface_address(name: str) -> str:
    """Return the IPv4 address of an interface.

    The text is empty if the interface has no address or does not exist.
    """
    reply = _ask_about_interface(name, _GET_ADDRESS)
    return socket.inet_ntoa(reply[20:24]) if reply else ""


def hardware_address(name: str) -> str:
    """Return the hardware address of an interface, or an empty string."""
    reply = _ask_about_interface(name, _GET_HARDWARE)
    if not reply:
        return ""
    return reply[18:24].hex(":")


def _ask_about_interface(name: str, request: int) -> bytes:
    """Return the answer of the kernel about an interface; empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        try:
            return fcntl.ioctl(probe_socket.fileno(), request, struct.pack("256s", name.encode()))
        except OSError:
            return b""


def loopback_error() -> str:
    """Return why a connection within this node fails, or an empty string.

    The interface `lo` may be up while a firewall drops its packets.
    """
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=LOOPBACK_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _ask_interface(name: str, request: int, form: str) -> int | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        try:
            reply = fcntl.ioctl(probe_socket.fileno(), request, struct.pack("256s", name.encode()))
        except OSError:
            return None

    return int(struct.unpack_from(form, reply, 16)[0])


def interfaces_to(text: str, address: str) -> list[str]:
    r"""Return the interfaces with a network that contains an address, from /proc/net/route.

    The kernel uses the first one: it has the smallest network, and the lowest metric among networks
    of this size. Routes with a gateway are left out.

    >>> header = "Iface Destination Gateway Flags RefCnt Use Metric Mask\n"
    >>> lines = "eth0 0042000A 00000000 1 0 0 0 00FFFFFF\ndocker0 0042000A 00000000 1 0 0 0 FCFFFFFF\n"
    >>> interfaces_to(header + lines, "10.0.66.1"), interfaces_to(header + lines, "10.0.66.9")
    (['docker0', 'eth0'], ['eth0'])
    """
    number = int.from_bytes(socket.inet_aton(address), "little")
    matching = []
    for line in text.splitlines()[1:]:
        columns = line.split()
        if len(columns) < 8 or int(columns[2], 16) != 0:
            continue
        mask = int(columns[7], 16)
        if mask and number & mask == int(columns[1], 16):
            metric = int(columns[6])
            matching.append((-mask.bit_count(), metric, columns[0]))

    # Of equal routes, the kernel lists the one it uses first.
    matching.sort(key=lambda route: route[:2])
    return list(dict.fromkeys(name for _, _, name in matching))


def local_addresses() -> list[str]:
    """Return every address of this node, including additional addresses on an interface.

    The result is empty if the addresses are unknown.
    """
    addresses = set()
    with contextlib.suppress(OSError):
        addresses |= parse_local_routes(Path("/proc/self/net/fib_trie").read_text())
    if not addresses:
        return []
    with contextlib.suppress(OSError):
        addresses |= parse_local_addresses(Path("/proc/self/net/if_inet6").read_text())
    return sorted(addresses)


def parse_local_routes(text: str) -> set[str]:
    r"""Parse the IPv4 addresses of this host from the text of /proc/net/fib_trie.

    >>> sorted(parse_local_routes("|-- 10.0.0.0\n /24 link UNICAST\n |-- 10.0.0.7\n /32 host LOCAL\n"))
    ['10.0.0.7']
    """
    addresses = set()
    address = ""
    for line in text.splitlines():
        if "|-- " in line:
            address = line.partition("|-- ")[2].strip()
        elif "host LOCAL" in line:
            addresses.add(address)

    return addresses


def parse_local_addresses(text: str) -> set[str]:
    """Parse the IPv6 addresses from the text of /proc/net/if_inet6.

    >>> parse_local_addresses("00000000000000000000000000000001 01 80 10 80 lo")
    {'::1'}
    """
    addresses = [line.split()[0] for line in text.splitlines() if line.strip()]
    return {socket.inet_ntop(socket.AF_INET6, bytes.fromhex(word)) for word in addresses}


def _infiniband() -> Facts:
    """Return each port on an InfiniBand device with its state, such as `4: ACTIVE`."""
    ports: Facts = {}
    for port in sorted(Path("/sys/class/infiniband").glob("*/ports/*")):
        name = f"{port.parent.parent.name}:{port.name}"
        try:
            ports[name] = (port / "state").read_text().strip()
        except OSError as error:
            ports[name] = error.strerror

    return ports


def chosen_address() -> str:
    """Return the address that gloo or NCCL would listen on here.

    It is the address of the interface the environment selects, or else of the host name. The text
    is empty if neither has an address. NCCL treats a name as a prefix. gloo takes it literally,
    including a leading `=` or `^`.
    """
    for variable in INTERFACE_VARIABLES:
        value = os.environ.get(variable, "")
        names = [name for name in value.split(",") if name]
        if names and variable == GLOO_VARIABLE:
            return interface_address(names[0])
        if names and not value.startswith("^"):
            return _address_by_prefix([name.lstrip("=") for name in names])

    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def _address_by_prefix(prefixes: Sequence[str]) -> str:
    """Return the address of the first interface with one of these name prefixes."""
    for prefix in prefixes:
        for _, name in socket.if_nameindex():
            if name.startswith(prefix) and interface_address(name):
                return interface_address(name)

    return ""


def look_at_names() -> Facts:
    """Return the addresses each node name resolves to here, or the error from the resolver.

    Also return how many seconds each name took, and the interfaces with a network that contains the
    address. After NAMES_SECONDS, no further name is resolved.
    """
    addresses: Facts = {}
    errors: Facts = {}
    seconds: Facts = {}
    interfaces: Facts = {}
    deadline = time.monotonic() + NAMES_SECONDS
    for name in node_names():
        try:
            resolved = _resolve(name)
            addresses[name] = resolved
            seconds[name] = _resolving_seconds(name)
            interfaces[name] = _interfaces_to_any(resolved)
        except OSError as error:
            errors[name] = error.strerror or str(error)

        if time.monotonic() > deadline:
            break

    return {
        "own": own_name(),
        "host": socket.gethostname(),
        "addresses": addresses,
        "errors": errors,
        "seconds": seconds,
        "interfaces": interfaces,
    }


def _interfaces_to_any(addresses: Sequence[str]) -> list[str]:
    """Return the interfaces with a network that contains the first IPv4 address."""
    with contextlib.suppress(OSError, ValueError):
        text = ROUTES.read_text()
        for address in addresses:
            if "." in address:
                return interfaces_to(text, address)

    return []


def _resolve(name: str) -> list[str]:
    """Return the addresses for a name. Raise `OSError` if the name cannot be resolved."""
    entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in entries})


def _resolving_seconds(name: str) -> float:
    """Return the seconds it takes to resolve a name again.

    The first look-up may take longer, because the server at the site may have to ask another one. A
    slow attempt is repeated, because a single lost packet costs 5 s.
    """
    best = float("inf")
    for _ in range(NAME_ATTEMPTS):
        start = time.monotonic()
        _resolve(name)
        best = min(best, time.monotonic() - start)
        if best < SUSPECT_NAME_SECONDS:
            break
    return best

"""Facts about the interfaces, routes and resolver on a node."""

import re
import shutil
import socket
import subprocess
from pathlib import Path

from runbook.node_checks.answers import Facts, node_names, own_name
from runbook.node_checks.networks import VIRTUAL, describe_interface
from runbook.node_checks.program_output import run_program

COMMAND_SECONDS = 5


def look_at_network() -> Facts:
    """Return MTU and state for each interface, the routes, and the resolver settings."""
    facts: Facts = {}
    for _, name in sorted(socket.if_nameindex()):
        if VIRTUAL.match(name):
            continue
        interface = describe_interface(name)
        facts[f"interface {name}"] = "up" if interface["is_up"] else "down"
        facts[f"MTU of {name}"] = str(interface["mtu"])

    facts["routes"] = routes(_text("/proc/self/net/route"))
    facts["metrics of routes"] = route_metrics(_output("ip", "route", "show"))
    facts["routing rules"] = _output("ip", "rule", "show")
    facts["firewall"] = str(len(_output("nft", "list", "ruleset").splitlines()))
    facts["resolv.conf"] = _settings_of("/etc/resolv.conf")
    facts["nsswitch.conf, hosts"] = _line_of("/etc/nsswitch.conf", "hosts:")
    for name in ("localhost", *node_names()):
        if name != own_name():
            facts[f"address of {name}"] = _addresses(name)
    return facts


def routes(text: str) -> str:
    r"""Return the interface and mask in each line of /proc/net/route, in order.

    Nodes in different racks have different networks, but the same number of networks with the same
    sizes.

    >>> routes("Iface Destination ...\neth0 0042000A 0 1 0 0 0 00FFFFFF")
    'eth0 00FFFFFF'
    """
    interfaces_and_masks = []
    for line in text.splitlines()[1:]:
        columns = line.split()
        if len(columns) > 7 and not VIRTUAL.match(columns[0]):
            interfaces_and_masks.append(f"{columns[0]} {columns[7]}")
    return ", ".join(sorted(interfaces_and_masks))


def route_metrics(text: str) -> str:
    """Return the connection settings in the routes printed by `ip route show`.

    >>> route_metrics("10.0.0.0/24 dev eth0 src 10.0.0.2 advmss 88; default via 10.0.0.1")
    'advmss 88'
    """
    found = re.findall(
        r"\b(?:mtu|advmss|window|rto_min|initcwnd|initrwnd|quickack) (?:lock )?\w+", text
    )
    return ", ".join(sorted(set(found)))


def _addresses(name: str) -> str:
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"({error.strerror or error})"
    return ", ".join(sorted({str(entry[4][0]) for entry in entries}))


def _output(*words: str) -> str:
    """Return the output from a program on one line, or '' if the program is missing or fails."""
    program = shutil.which(words[0], path="/usr/sbin:/sbin:/usr/bin:/bin")
    if program is None:
        return ""
    try:
        ended = run_program([program, *words[1:]], COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    return "; ".join(lines)


def _settings_of(path: str) -> str:
    lines = [" ".join(line.split()) for line in _text(path).splitlines()]
    return "; ".join(line for line in lines if line and not line.startswith(("#", ";")))


def _line_of(path: str, start: str) -> str:
    lines = [" ".join(line.split()) for line in _text(path).splitlines()]
    return next((line for line in lines if line.startswith(start)), "")


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError as error:
        return f"({error.strerror})"

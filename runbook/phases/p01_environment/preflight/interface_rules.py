"""Rules for the first stage: interfaces, addresses and names of the nodes."""

from collections import Counter
from collections.abc import Mapping, Sequence

from runbook.core.checks import counted
from runbook.core.units import show_duration
from runbook.node_checks.answers import HOSTS
from runbook.node_checks.networks import GLOO_VARIABLE, VIRTUAL, interfaces_to
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight import thresholds
from runbook.phases.p01_environment.preflight.expectations import Expectations
from runbook.phases.p01_environment.preflight.job_answers import JobAnswers, NodeFacts
from runbook.phases.p01_environment.preflight.node_rules import by_node
from runbook.phases.p01_environment.preflight.placed_check import (
    PlacedCheck,
    PlacedRule,
    PreflightCheck,
)

PERMANENT_NEIGHBOUR = 0x4
"""ATF_PERM in linux/if_arp.h."""
INNER_ADDRESSES = ("127.", "::1", "fe80:")
"""Prefixes of loopback and link-local addresses, which every node has."""


def names_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the names of other nodes that resolve slowly, to this node itself, or not at all."""
    faults = [f"{name}: {error}" for name, error in facts["errors"].items()]
    for name, addresses in facts["addresses"].items():
        leads_here = all(address.startswith("127.") or address == "::1" for address in addresses)
        if leads_here and name != facts["own"]:
            faults.append(f"{name} is {', '.join(addresses)}, which is this node itself")

    for name, seconds in facts.get("seconds", {}).items():
        if seconds > thresholds.NAME_SECONDS.value:
            faults.append(PhaseMessage.NAME_SLOW.fill(name=name, time=show_duration(seconds)))

    return "; ".join(faults)


def routes_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the nodes whose addresses belong to a container bridge network on this node.

    Packets for such a node go into the bridge, which leads to containers only.
    """
    faults = []
    for name, interfaces in facts.get("interfaces", {}).items():
        if name != facts["own"] and _go_into_a_bridge(interfaces):
            faults.append(route_text(name, interfaces))

    return "; ".join(faults)


def overlap_text(routes: str, interfaces_of: Mapping[str, NodeFacts]) -> str:
    """Describe the first node for which these routes send packets into a container bridge.

    The text is empty if there is none. `routes` is the content of /proc/net/route, and
    `interfaces_of` has the answers of other nodes about their interfaces.
    """
    for name, facts in interfaces_of.items():
        for address in facts["addresses"]:
            if "." not in address or address.startswith(INNER_ADDRESSES):
                continue
            interfaces = interfaces_to(routes, address)
            if _go_into_a_bridge(interfaces):
                return route_text(f"{name} ({address})", interfaces)

    return ""


def neighbour_text(neighbours: str, interfaces_of: Mapping[str, NodeFacts]) -> str:
    """Describe the first node for which a fixed entry names a network card that it does not have.

    The text is empty if there is none. `neighbours` is the content of /proc/net/arp. An entry that
    the kernel has learned itself may name a router, so it is not judged.
    """
    fixed = {}
    for line in neighbours.splitlines():
        columns = line.split()
        is_entry = len(columns) >= 4 and columns[2].startswith("0x")
        if is_entry and int(columns[2], 16) & PERMANENT_NEIGHBOUR:
            fixed[columns[0]] = columns[3].lower()

    for name, facts in interfaces_of.items():
        cards = {each.get("hardware", "") for each in facts["interfaces"].values()}
        for address in facts["addresses"]:
            if address in fixed and fixed[address] not in cards:
                return PhaseMessage.FIXED_NEIGHBOUR.fill(
                    name=name, address=address, card=fixed[address]
                )

    return ""


def _go_into_a_bridge(interfaces: Sequence[str]) -> bool:
    """Return whether a bridge takes the packets for an address that another interface could reach.

    Two adapters in the same network are no fault: both lead to the other nodes.
    """
    return len(interfaces) > 1 and VIRTUAL.match(interfaces[0]) is not None


def route_text(name: str, interfaces: Sequence[str]) -> str:
    """Return through which interface packets for a node go, and which one is not used."""
    return PhaseMessage.OVERLAPPING_NETWORKS.fill(
        name=name, interface=interfaces[0], other=interfaces[1]
    )


def interfaces_check(answers: JobAnswers, expected: Expectations) -> PlacedCheck:
    """Check the interfaces that environment variables name.

    Each interface must exist, be up and have an address on every node.
    """
    rule = PlacedRule(
        PreflightCheck.NETWORK_INTERFACE,
        "each interface that the environment names exists, is up and has an address",
    )
    silent = answers.missing(HOSTS, "interfaces")
    if silent:
        return rule.broken(by_node(silent), list(silent))
    faults = {}
    offered = {}
    for node, facts in answers.facts(HOSTS, "interfaces").items():
        fault = interface_fault(facts, expected)
        if fault:
            faults[node] = fault
        if fault and fault != loopback_fault(facts):
            offered[node] = _usable_interfaces(facts)

    if faults:
        remedy = PhaseMessage.REPAIR_LOOPBACK.fill()
        if offered:
            remedy = PhaseMessage.NAME_OFFERED_INTERFACES.fill(offered=by_node(offered))
        return rule.broken(by_node(faults), list(faults), remedy=remedy)

    return rule.passed("as named", ", ".join(answers.nodes))


def interface_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return why a named interface, loopback or InfiniBand is unusable, or an empty string."""
    for variable, value in facts["chosen"].items():
        if variable == GLOO_VARIABLE:
            problem = _exact_interfaces_problem(value, facts["interfaces"], expected)
        else:
            problem = _named_interface_problem(value, facts["interfaces"], expected)
        if problem:
            return f"{variable}={value}: {problem}"

    if loopback_fault(facts):
        return loopback_fault(facts)
    inactive = []
    for port, state in facts["infiniband"].items():
        if "ACTIVE" not in state:
            inactive.append(port)

    if expected.fabric == "verbs" and inactive and len(inactive) == len(facts["infiniband"]):
        return f"no InfiniBand port is active: {', '.join(inactive)}"
    return ""


def loopback_fault(facts: NodeFacts) -> str:
    """Return why programs on the node cannot reach each other at 127.0.0.1, or an empty string."""
    loopback = facts["interfaces"].get("lo")
    if loopback is not None and not _is_usable(loopback):
        return PhaseMessage.LOOPBACK_UNUSABLE.fill(
            problem=_unusable_text("lo", facts["interfaces"])
        )
    if facts.get("loopback_error"):
        return PhaseMessage.LOOPBACK_BLOCKED.fill(error=facts["loopback_error"])
    return ""


def _named_interface_problem(
    value: str,
    interfaces: Mapping[str, NodeFacts],
    expected: Expectations,
) -> str:
    """Return why a variable does not name a usable interface, or an empty string if it does."""
    # `^eth` excludes interfaces by prefix; any other interface may be used.
    if value.startswith("^"):
        return ""
    prefixes = _interface_prefixes(value)
    if not prefixes:
        return ""

    matching = [name for name in interfaces if name.startswith(prefixes)]
    if not matching:
        return "there is no such interface"

    usable = [name for name in matching if _is_usable(interfaces[name])]
    if usable:
        is_loopback_only = set(usable) == {"lo"}
        if is_loopback_only and expected.has_queue:
            return "lo reaches no other node"
        return ""

    return _unusable_text(matching[0], interfaces)


def _exact_interfaces_problem(
    value: str,
    interfaces: Mapping[str, NodeFacts],
    expected: Expectations,
) -> str:
    """Return the first unusable interface in Gloo's list with the reason, or an empty string.

    Gloo opens every interface in the list, and treats no name as a prefix.
    """
    names = [name for name in value.split(",") if name]
    for name in names:
        if name not in interfaces:
            return (
                "there is no such interface" if len(names) == 1 else f"there is no interface {name}"
            )
        if not _is_usable(interfaces[name]):
            return _unusable_text(name, interfaces)

    if "lo" in names and expected.has_queue:
        return "lo reaches no other node"
    return ""


def _unusable_text(name: str, interfaces: Mapping[str, NodeFacts]) -> str:
    if interfaces[name]["is_up"]:
        return f"{name} has no address"
    return f"{name} is down"


def _interface_prefixes(value: str) -> tuple[str, ...]:
    """Return the name prefixes in a list such as `=hsn0,eth` or `mlx5_0:1`.

    NCCL reads a name as a prefix. A leading `=` requests exactly that name, and `:1` is a port of a
    device.
    """
    names = []
    for name in value.split(","):
        if name:
            names.append(name.lstrip("=").partition(":")[0])

    return tuple(names)


def _is_usable(interface: NodeFacts) -> bool:
    return bool(interface["is_up"] and interface["address"])


def _usable_interfaces(facts: NodeFacts) -> str:
    usable = []
    for name, interface in facts["interfaces"].items():
        if _is_usable(interface) and name != "lo":
            usable.append(name)

    return ", ".join([*usable, *facts["infiniband"]]) or "none is up"


def host_names_check(answers: JobAnswers) -> PlacedCheck:
    """Check that each node has its own host name, because ranks and NCCL identify nodes by it."""
    rule = PlacedRule(
        PreflightCheck.HOST_NAMES,
        (
            "each node has its own host name, which is not localhost (NCCL and torch tell nodes "
            "apart by it)"
        ),
        (
            "Set it on these nodes: hostnamectl set-hostname NAME. Cloud images often start as "
            "localhost."
        ),
    )
    hosts = {node: str(facts["host"]) for node, facts in answers.facts(HOSTS, "names").items()}
    num_nodes_of = Counter(hosts.values())
    faults = {}
    for node, host in hosts.items():
        if host.partition(".")[0] in ("localhost", ""):
            faults[node] = f"its host name is {host or 'empty'}"
        elif num_nodes_of[host] > 1:
            faults[node] = f"{num_nodes_of[host]} nodes have the host name {host}"

    if faults:
        return rule.broken(by_node(faults), list(faults))
    return rule.passed(counted(len(num_nodes_of), "name"), ", ".join(hosts))


def foreign_addresses_check(answers: JobAnswers) -> PlacedCheck:
    """Check that each node's name resolves to an address that the node really has.

    The name is resolved on every other node.
    """
    rule = PlacedRule(
        PreflightCheck.NODE_ADDRESSES,
        "a node's name resolves to an address of that node",
        ("Fix /etc/hosts or the DNS of these nodes: they reach another machine under this name."),
    )
    own_addresses = {}
    for node, facts in answers.facts(HOSTS, "interfaces").items():
        if facts["addresses"]:
            own_addresses[node] = set(facts["addresses"])

    faults = {}
    for node, facts in answers.facts(HOSTS, "names").items():
        for name, addresses in facts["addresses"].items():
            has_address = own_addresses.get(name)
            if has_address is not None and not has_address & set(addresses):
                own_outer_addresses = []
                for address in sorted(has_address):
                    if not address.startswith(INNER_ADDRESSES):
                        own_outer_addresses.append(address)

                faults[node] = (
                    f"{name} is {', '.join(addresses)}, which {name} does not have "
                    f"(it has {', '.join(own_outer_addresses)})"
                )

    faults |= _second_owners(answers, own_addresses)
    if faults:
        return rule.broken(by_node(faults), list(faults))
    return rule.passed(
        f"{counted(len(own_addresses), 'name')} resolved to the right node",
        ", ".join(answers.nodes),
    )


def _second_owners(answers: JobAnswers, own_addresses: Mapping[str, set[str]]) -> dict[str, str]:
    """Return a fault for each node that also has the address of another node.

    Only addresses to which names resolve count, because the bridges of containers have the same
    address on all nodes.
    """
    faults = {}
    for facts in answers.facts(HOSTS, "names").values():
        for name, addresses in facts["addresses"].items():
            outer_addresses = {each for each in addresses if not each.startswith(INNER_ADDRESSES)}
            for node, of_node in own_addresses.items():
                if node != name and outer_addresses & of_node:
                    faults[node] = PhaseMessage.SECOND_OWNER.fill(
                        address=", ".join(sorted(outer_addresses & of_node)), name=name
                    )

    return faults

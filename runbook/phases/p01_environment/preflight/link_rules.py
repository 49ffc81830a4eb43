"""Rules for the third stage: connections, latency, bandwidth and clocks between nodes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbook.core.units import show_duration
from runbook.node_checks.answers import PEERS
from runbook.node_checks.peers import CONNECTIONS
from runbook.phases.p01_environment.preflight import thresholds
from runbook.phases.p01_environment.preflight.expectations import Expectations
from runbook.phases.p01_environment.preflight.job_answers import JobAnswers, NodeFacts
from runbook.phases.p01_environment.preflight.node_rules import presence_check
from runbook.phases.p01_environment.preflight.placed_check import (
    PlacedCheck,
    PlacedRule,
    PreflightCheck,
)

LISTEN = "listen"
DONE = "done"
CAUSES = {
    "meeting port": (
        "the rendezvous port cannot be reached: a firewall between the nodes, or a wrong name"
    ),
    "data port": "the rendezvous port answers, but a port that the kernel chose on the named "
    "interface does not: a firewall, or an interface that does not lead to the other node",
    "small messages": "the connection opens, but small messages do not get through",
    "large messages": (
        "small messages get through, but large ones do not: the MTU of the path is smaller than "
        "that of the interface"
    ),
    "many connections": (
        "single connections get through, but not many at the same time: a firewall limits how many "
        "a node may open (connlimit, hashlimit), or its table of connections is full"
    ),
}
"""For each stage that a connection may fail to reach, the probable cause."""


@dataclass(frozen=True, eq=False)
class Link:
    """The result when one node connects to another."""

    source: str
    target: str
    facts: NodeFacts

    @property
    def name(self) -> str:
        """The names of both nodes, in the direction of the connection."""
        return f"{self.source} to {self.target}"


def link_checks(answers: JobAnswers, expected: Expectations) -> list[PlacedCheck]:
    """Check listening, connections, clocks and message speeds between nodes.

    Small and large messages are checked separately.
    """
    if len(answers.nodes) < 2:
        return [PlacedRule(PreflightCheck.LINKS, "nodes reach each other").passed("one node")]
    presence = presence_check(answers, PEERS)
    listening = listening_check(answers)
    if "fail" in (presence.verdict, listening.verdict):
        return [presence, listening]
    links, silent = _links(answers)
    reached = reach_check(links, silent)
    if reached.verdict == "fail":
        return [presence, listening, reached]
    return [
        presence,
        listening,
        reached,
        clocks_check(links),
        lost_packets_check(links),
        round_trip_check(links),
        bandwidth_check(links, expected),
    ]


def listening_check(answers: JobAnswers) -> PlacedCheck:
    """Check that each node can listen at the addresses and ports where its ranks will listen."""
    rule = PlacedRule(
        PreflightCheck.PORT,
        (
            "each node can listen on the rendezvous port, and on the interface that the "
            "environment names"
        ),
        "Stop the program that uses the port there (ss -ltnp), or name an interface with an address.",
    )
    silent = answers.missing(PEERS, LISTEN)
    if silent:
        value = "; ".join(f"{node}: {error}" for node, error in silent.items())
        return rule.broken(value, list(silent))

    ports = {str(facts["port"]) for facts in answers.facts(PEERS, LISTEN).values()}
    return rule.passed(f"port {', '.join(sorted(ports))}", ", ".join(answers.nodes))


def _links(answers: JobAnswers) -> tuple[list[Link], dict[str, str]]:
    """Return every link that was tried, and the reason why a pair of nodes gave no report."""
    links = []
    silent = {}
    for part in answers.parts(PEERS):
        if not part.startswith("to "):
            continue
        target = part.removeprefix("to ")
        for source, facts in answers.facts(PEERS, part).items():
            links.append(Link(source, target, facts))
        for source, reason in answers.missing(PEERS, part).items():
            # Only some nodes connect to a peer. A node that began to connect and then stopped
            # answering is reported.
            if reason != "no answer":
                silent[f"{source} to {target}"] = reason

    return links, silent


def reach_check(links: Sequence[Link], silent: Mapping[str, str]) -> PlacedCheck:
    """Check that each link works in every stage.

    For a link that does not work, name the stage that failed.
    """
    rule = PlacedRule(
        PreflightCheck.LINKS,
        (
            "nodes reach each other on the rendezvous port and on ports that the kernel chooses "
            f"(net.ipv4.ip_local_port_range), with {CONNECTIONS} connections at the same time: gloo "
            "opens one for each pair of ranks in each process group"
        ),
        "Open all TCP ports between the nodes, and set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to "
        "the interface that leads to the other nodes.",
    )
    broken = [link for link in links if link.facts["stage"] != DONE]
    if not broken and not silent:
        return rule.passed(f"{len(links)} tried", ", ".join(link.name for link in links[:4]))
    texts = [f"{link.name}: {_link_fault(link.facts)}" for link in broken]
    texts += [f"{pair}: {reason}" for pair, reason in silent.items()]
    pairs = [{link.source, link.target} for link in broken]
    return rule.broken("; ".join(texts[:4]), shared_nodes(pairs))


def _link_fault(facts: NodeFacts) -> str:
    target = f"port {facts['port']}"
    if "data_port" in facts:
        target = f"{facts['address']}:{facts['data_port']}"
    return f"{CAUSES[facts['stage']]} ({target}: {facts['error']})"


def shared_nodes(pairs: Sequence[set[str]]) -> list[str]:
    """Return the nodes that are in the largest number of broken pairs: a bad node breaks several.

    >>> shared_nodes([{"n1", "n2"}, {"n2", "n3"}]), shared_nodes([{"n1", "n2"}])
    (['n2'], ['n1', 'n2'])
    """
    counts = Counter(node for pair in pairs for node in pair)
    most_links = max(counts.values(), default=0)
    return sorted(node for node, count in counts.items() if count == most_links)


def clocks_check(links: Sequence[Link]) -> PlacedCheck:
    """Check the clock offset of each pair, measured during the fastest round trip."""
    rule = PlacedRule(
        PreflightCheck.LINK_CLOCKS,
        f"clocks agree within {thresholds.CLOCK.value:g} s: {thresholds.CLOCK.source}",
        "Start a time service (chrony) there.",
    )
    worst = max(links, key=lambda link: abs(float(link.facts["clock_offset"])))
    offset = float(worst.facts["clock_offset"])
    if abs(offset) <= thresholds.CLOCK.value:
        return rule.passed(f"within {show_duration(abs(offset))}")
    direction = "ahead of" if offset > 0 else "behind"
    value = f"{worst.target} is {show_duration(abs(offset))} {direction} {worst.source}"
    skewed = []
    for link in links:
        if abs(link.facts["clock_offset"]) > thresholds.CLOCK.value:
            skewed.append({link.source, link.target})

    return rule.broken(value, shared_nodes(skewed))


def lost_packets_check(links: Sequence[Link]) -> PlacedCheck:
    """Check how many segments of small messages TCP had to retransmit."""
    rule = PlacedRule(
        PreflightCheck.LOST_PACKETS,
        f"TCP retransmits less than {thresholds.LOST_PACKETS.value:.0%} of the segments",
        "Check errors and drops of the ports on this path (ip -s link, ethtool -S, the switch), "
        "reseat or replace the cable, or exclude the node.",
    )
    shares = {link: _share_sent_again(link.facts) for link in links}
    lossy = [link for link in links if shares[link] >= thresholds.LOST_PACKETS.value]
    if lossy:
        texts = [f"{link.name}: {shares[link]:.1%} of the segments retransmitted" for link in lossy]
        return rule.broken(
            "; ".join(texts[:4]), shared_nodes([{link.source, link.target} for link in lossy])
        )

    return rule.passed(f"{max(shares.values()):.1%} of the segments retransmitted, at most")


def _share_sent_again(facts: NodeFacts) -> float:
    num_segments = int(facts["small_segments"])
    # A single segment may be sent again because a busy machine acknowledged it late, so it does not
    # count.
    if int(facts["small_sent_again"]) < 2:
        return 0.0
    return int(facts["small_sent_again"]) / num_segments


def round_trip_check(links: Sequence[Link]) -> PlacedCheck:
    """Check the fastest round trip of each pair."""
    rule = PlacedRule(
        PreflightCheck.LATENCY,
        f"a small message and its reply take less than {thresholds.ROUND_TRIP.value * 1000:g} ms",
        "Look for lost packets on these links (ip -s link, ethtool -S), or exclude the node.",
    )
    slow = []
    for link in links:
        if float(link.facts["quickest_trip"]) > thresholds.ROUND_TRIP.value:
            slow.append(link)

    if slow:
        texts = [f"{link.name}: {show_duration(link.facts['quickest_trip'])}" for link in slow]
        return rule.broken(
            "; ".join(texts[:4]), shared_nodes([{link.source, link.target} for link in slow])
        )

    median = max(float(link.facts["round_trip"]) for link in links)
    return rule.passed(f"a median of {median * 1e6:.0f} us at most")


def bandwidth_check(links: Sequence[Link], expected: Expectations) -> PlacedCheck:
    """Compare the bandwidth for large messages with the network bandwidth stated for the site."""
    floor = thresholds.NETWORK_FLOOR.value
    text = f"at least {floor / 1e9:g} GB/s: {thresholds.NETWORK_FLOOR.source}"
    # TCP does not reach a fabric's bandwidth. The all-reduce is compared with that bandwidth
    # instead.
    if expected.network_bytes and not expected.fabric:
        floor = thresholds.NETWORK_SHARE.value * expected.network_bytes
        stated = f"{expected.network_bytes / 1e9:g} GB/s stated for the site"
        text = f"at least {thresholds.NETWORK_SHARE.value:.0%} of the {stated} (hardware.network)"

    rule = PlacedRule(
        PreflightCheck.BANDWIDTH,
        text,
        "Check the link's speed and errors (ethtool), the interface that the environment names, "
        "and other jobs on the switch; or correct hardware.network.",
    )
    slow = [link for link in links if float(link.facts["bytes_per_second"]) < floor]
    if slow:
        texts = [f"{link.name}: {link.facts['bytes_per_second'] / 1e9:.4f} GB/s" for link in slow]
        return rule.broken(
            "; ".join(texts[:4]), shared_nodes([{link.source, link.target} for link in slow])
        )

    slowest = min(float(link.facts["bytes_per_second"]) for link in links)
    return rule.passed(f"{slowest / 1e9:.2f} GB/s at least, one TCP connection")

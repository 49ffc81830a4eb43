"""Rules for the last stage, which starts ranks.

The ranks connect in the same way as in the trainer, and use each process group that the trainer
uses.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from runbook.core.units import show_bytes, show_duration
from runbook.node_checks.answers import HOSTS
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight import thresholds
from runbook.phases.p01_environment.preflight.expectations import Expectations
from runbook.phases.p01_environment.preflight.job_answers import JobAnswers
from runbook.phases.p01_environment.preflight.node_rules import by_node
from runbook.phases.p01_environment.preflight.placed_check import (
    PlacedCheck,
    PlacedRule,
    PreflightCheck,
)
from runbook.plan_file.group_limits import GROUP_SECONDS, MEETING_SECONDS

RankFacts = Mapping[str, Any]
"""What one rank of the probe reported, written by training/probe.py."""
SHOWN_RANKS = 8
USED_NETWORK = re.compile(r"NCCL INFO Using network (.+)")


def rank_presence_check(
    facts: Sequence[RankFacts],
    world_size: int,
    first_end: str,
    nodes: Sequence[str] = (),
) -> PlacedCheck:
    """Check that every rank wrote an answer.

    `first_end` describes the process that ended first, and `nodes` lists the job's nodes in order.
    """
    rule = PlacedRule(
        PreflightCheck.RANKS,
        "every rank starts in the same way as the trainer's ranks, and answers",
        (
            "See err in the job's folder. A rank that never appears was not started, or ended "
            "while importing torch."
        ),
    )
    present = {int(rank["rank"]) for rank in facts}
    missing = sorted(set(range(world_size)) - present)
    if missing:
        rank_list = ", ".join(map(str, missing[:SHOWN_RANKS]))
        places = nodes_of_ranks(missing, world_size, nodes)
        where = f" on {', '.join(places)}" if places else ""
        value = PhaseMessage.RANKS_ANSWERED.fill(
            present=len(present), world_size=world_size, missing=rank_list, where=where
        )
        return rule.broken(f"{value}. {first_end}".rstrip(". "), places)

    return rule.passed(f"{world_size} of {world_size}")


def nodes_of_ranks(ranks: Sequence[int], world_size: int, nodes: Sequence[str]) -> list[str]:
    """Return the nodes of these ranks. Launchers number ranks node by node.

    >>> nodes_of_ranks([2, 3], 4, ["n1", "n2"]), nodes_of_ranks([0], 1, [])
    (['n2'], [])
    """
    if not nodes or world_size % len(nodes):
        return []
    ranks_per_node = world_size // len(nodes)
    return list(dict.fromkeys(nodes[rank // ranks_per_node] for rank in ranks))


def meeting_check(facts: Sequence[RankFacts], world_size: int) -> PlacedCheck:
    """Check that all ranks connected and that their first all-reduce succeeded.

    Only the first error is shown, because later errors are consequences of it.
    """
    rule = PlacedRule(
        PreflightCheck.RENDEZVOUS,
        f"all ranks connect within {show_duration(MEETING_SECONDS)}, and complete an all-reduce "
        f"within {show_duration(GROUP_SECONDS)}",
        (
            "Check that rank's node first: its log is in err of the job's folder. Then check the "
            "site's network variables."
        ),
    )
    return _step_check(rule, facts, "group", world_size)


def groups_check(facts: Sequence[RankFacts], expected: Expectations) -> PlacedCheck:
    """Check that each process group of the layout can be created and used."""
    rule = PlacedRule(
        PreflightCheck.PROCESS_GROUPS,
        "each process group of the plan is created in the trainer's order and completes an "
        f"all-reduce within {show_duration(GROUP_SECONDS)} (laifs-container-recipes issue 44: a "
        "second group hung after the first had passed)",
        "Update the network plug-in (aws-ofi-nccl, aws-ofi-rccl) and its settings for this "
        "fabric (FI_MR_CACHE_MONITOR, FI_CXI_*), or use another image.",
    )
    has_no_megatron = any(
        "ModuleNotFoundError" in rank["errors"].get("groups", "") for rank in facts
    )
    if has_no_megatron and expected.framework != "runbook":
        value = "megatron-core cannot be imported outside the framework's checkout"
        return rule.broken(value, verdict="unknown")

    broken = _step_check(rule, facts, "groups", len(facts))
    if broken.verdict == "fail":
        return broken
    sums = [group for rank in facts for group in rank["groups"]["sums"]]
    wrong = [group["name"] for group in sums if not group["sum_is_right"]]
    if wrong:
        return rule.broken(f"the all-reduce is wrong in {', '.join(sorted(set(wrong)))}")
    names = list(dict.fromkeys(group["name"] for group in sums))
    layout = facts[0]["groups"]["layout"]
    if not names:
        return rule.passed(f"one rank in each (tensor x pipeline x context {layout})")
    slowest = max(sums, key=lambda group: float(group["first_seconds"]))
    value = (
        f"{len(names)} with more than one rank (tensor x pipeline x context {layout}), "
        f"the slowest first all-reduce took {show_duration(slowest['first_seconds'])} in "
        f"{slowest['name']}"
    )
    return rule.passed(value)


def _step_check(
    rule: PlacedRule,
    facts: Sequence[RankFacts],
    part: str,
    num_ranks: int,
) -> PlacedCheck:
    """Check one part of the probe, using the answers from all ranks.

    Name the step at which the ranks without an answer stopped.
    """
    unfinished = [rank for rank in facts if not rank.get(part)]
    if not unfinished:
        return rule.passed(f"{num_ranks} ranks")
    first = min(unfinished, key=lambda rank: _failure_time(rank, part))
    node = str(first["host"])
    step = _step_text(first)
    error = first["errors"].get(part, "")
    error_text = error or _silent_end(first)
    others = len(unfinished) - 1
    if others:
        later_failures = f" ({others} other ranks failed after it)"
    else:
        later_failures = ""

    hung = _stuck_group(unfinished)
    nodes = [node] if error and not hung else []
    return rule.broken(
        PhaseMessage.FIRST_FAILED_RANK.fill(
            rank=first["rank"],
            node=node,
            step=step,
            error_text=error_text,
            later_failures=later_failures,
            hung=hung,
        ),
        nodes,
    )


def _failure_time(rank: RankFacts, part: str) -> float:
    """Return the time when a rank failed, or when it began the step that hung."""
    failed = rank.get("error_times", {}).get(part)
    if failed is not None:
        return float(failed)
    current = rank.get("current")
    if current:
        return float(current["since"])
    return float(rank["time"])


def _silent_end(rank: RankFacts) -> str:
    """Return how a rank that reported no error ended: at its deadline, or for an unknown reason."""
    current = rank.get("current")
    if current and current["hung"]:
        return "it hung there until it was killed"
    return "its process ended before this step did"


def _step_text(rank: RankFacts) -> str:
    current = rank.get("current")
    return f"{current['step']}: " if current else ""


def _stuck_group(ranks: Sequence[RankFacts]) -> str:
    """Return the step that hung, with its ranks and nodes, or an empty string if no step hung."""
    waiting = [rank["current"] for rank in ranks if rank.get("current")]
    if not waiting:
        return ""
    earliest = min(waiting, key=lambda current: float(current["since"]))
    inside = []
    for rank in ranks:
        if rank.get("current") and rank["current"]["step"] == earliest["step"]:
            inside.append(rank)

    nodes = ", ".join(dict.fromkeys(str(rank["host"]) for rank in inside))
    numbers = ", ".join(str(rank["rank"]) for rank in inside[:SHOWN_RANKS])
    return PhaseMessage.WAITING_RANKS.fill(step=earliest["step"], ranks=numbers, nodes=nodes)


def cores_of_hosts(answers: JobAnswers) -> dict[str, int]:
    """Return how many cores the job has on each host, by the name that the host gives itself."""
    cores = answers.facts(HOSTS, "cores")
    cores_of = {}
    for node, names in answers.facts(HOSTS, "names").items():
        if node in cores:
            cores_of[str(names["host"])] = int(cores[node]["cores"])

    return cores_of


def binding_check(facts: Sequence[RankFacts], cores_of: Mapping[str, int]) -> PlacedCheck:
    """Check that the ranks of a node do not share fewer cores than the job has there.

    `cores_of` says how many cores the job has on each node. OpenMP variables bind the main thread
    in a program that imports torch to the first core it may use, which is the same for all ranks. A
    launcher that imports torch passes this binding on to its ranks.
    """
    rule = PlacedRule(
        PreflightCheck.BOUND_CORES,
        "after the import of torch, the ranks of a node use a core each (pytorch issues 91989, 99625)",
        "Unset the variables that bind threads (in the shell, a module or a prolog of the "
        "scheduler), or let the launcher bind the ranks (binding in the site file).",
    )
    ranks_of: dict[str, list[RankFacts]] = {}
    for rank in facts:
        if rank.get("bound_cores"):
            ranks_of.setdefault(str(rank["host"]), []).append(rank)

    faults = {}
    for host, ranks in ranks_of.items():
        num_cores = cores_of.get(host, 0)
        bound = {core for rank in ranks for core in rank["bound_cores"]}
        if len(bound) < min(len(ranks), num_cores):
            variables = [f"{name}={value}" for name, value in ranks[0]["binding"].items()]
            faults[host] = PhaseMessage.RANKS_SHARE_CORES.fill(
                ranks=len(ranks),
                cores=", ".join(map(str, sorted(bound))),
                allowed=num_cores,
                variables=", ".join(variables) or "no variable binds them",
            )

    if faults:
        return rule.broken(by_node(faults), list(faults))
    return rule.passed("not fewer cores than ranks", ", ".join(ranks_of))


def bandwidth_check(facts: Sequence[RankFacts], expected: Expectations) -> PlacedCheck:
    """Compare the all-reduce bus bandwidth over all ranks with the network at the site."""
    num_hosts = len({rank["host"] for rank in facts})
    floor = 0.0
    text = "an all-reduce over all ranks is correct; its bus bandwidth is reported"
    if expected.network_bytes and num_hosts > 1:
        floor = thresholds.FABRIC_SHARE.value * expected.network_bytes
        stated = f"{expected.network_bytes / 1e9:g} GB/s of a node's adapters"
        text = (
            f"an all-reduce over all ranks is correct, with at least "
            f"{thresholds.FABRIC_SHARE.value:.0%} of the {stated}"
        )

    rule = PlacedRule(
        PreflightCheck.ALL_REDUCE,
        text,
        (
            "Check which network NCCL chose (NCCL_DEBUG=INFO in out), the fabric's plug-in, "
            "and hardware.network."
        ),
    )
    groups = [rank["group"] for rank in facts]
    if not all(group["sum_is_right"] for group in groups):
        remedy = "Report it: a device computes wrong results, or an adapter transfers wrong data."
        return rule.broken("the all-reduce is wrong", remedy=remedy)

    speed = groups[0]["bus_bytes_per_second"]
    if speed is None:
        return rule.passed("one rank, nothing to transfer")
    slowest = max(float(group["seconds"]) for group in groups)
    value = PhaseMessage.BUS_BANDWIDTH.fill(
        ranks=len(groups),
        message_bytes=show_bytes(groups[0]["bytes"]),
        slowest=show_duration(slowest),
        speed=speed / 1e9,
        backend=groups[0]["backend"],
    )
    if speed < floor:
        return rule.broken(value)
    return rule.passed(value)


def transport_check(job_output: str, num_hosts: int, expected: Expectations) -> PlacedCheck:
    """Check which network NCCL chose. Sockets fail if the site has a fabric."""
    rule = PlacedRule(
        PreflightCheck.TRANSPORT,
        f"NCCL uses the site's fabric ({expected.fabric or 'none named'}), not sockets",
        (
            "Load the module or mount the plug-in of this fabric (aws-ofi-nccl, aws-ofi-rccl), and "
            "check NCCL's lines in out."
        ),
    )
    networks = sorted({match.strip() for match in USED_NETWORK.findall(job_output)})
    if expected.on_cpu or num_hosts < 2 or not expected.fabric:
        return rule.passed(", ".join(networks) or "not checked: no fabric between GPUs")
    if not networks:
        return rule.broken("NCCL did not report which network it chose", verdict="unknown")
    if any(network == "Socket" for network in networks):
        return rule.broken(f"Using network {', '.join(networks)}")
    return rule.passed(", ".join(networks))

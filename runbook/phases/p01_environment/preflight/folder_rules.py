"""Rules for the first stage: folders that the nodes share, and the file server's clock."""

from collections.abc import Mapping, Sequence

from runbook.core.units import show_bytes, show_duration
from runbook.node_checks.answers import HOSTS
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight import thresholds
from runbook.phases.p01_environment.preflight.expectations import Expectations
from runbook.phases.p01_environment.preflight.job_answers import JobAnswers, NodeFacts
from runbook.phases.p01_environment.preflight.node_rules import (
    NodeRule,
    by_node,
    judge_each_node,
)
from runbook.phases.p01_environment.preflight.placed_check import (
    PlacedCheck,
    PlacedRule,
    PreflightCheck,
)
from runbook.phases.p01_environment.preflight.thresholds import MIB

RUN_FOLDER = "folder 0"
"""Name of the part about the run folder. All other folders hold only checkpoints."""
STEPS_WITHOUT_USE_FOR_CHECKPOINTS = ("link", "lock", "map")


def folder_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong with a shared folder, or an empty string."""
    folder = facts["folder"]
    mount = f"{facts['file_system']} at {facts['mount_point']}"
    if facts["errors"]:
        errors = ", ".join(f"{step}: {error}" for step, error in facts["errors"].items())
        return f"{folder} ({mount}): {errors}"

    if facts["read_only"]:
        return f"{folder} ({mount}) is mounted read-only"
    if facts["token"] == "other":
        return (
            f"{folder} ({mount}) has different content than on the submitting machine: it is a "
            "different folder, or the node's view of it is stale"
        )

    if facts["token"] != "same":
        return f"{folder} ({mount}): {facts['token']}"
    if facts["free_inodes"] is not None and facts["free_inodes"] < thresholds.FOLDER_INODES.value:
        return f"{folder} ({mount}) has {facts['free_inodes']} inodes free"
    if facts.get("write_seconds", 0.0) > thresholds.FOLDER_WRITE.value:
        return PhaseMessage.FOLDER_SLOW.fill(
            folder=folder, mount=mount, time=show_duration(facts["write_seconds"])
        )
    if facts["free"] < expected.checkpoint_bytes:
        free = show_bytes(facts["free"])
        return (
            f"{folder} ({mount}) has {free} free, a checkpoint needs "
            f"{show_bytes(expected.checkpoint_bytes)}"
        )

    return ""


def checkpoint_folder_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong with a folder that holds only checkpoints, or an empty string.

    Checkpoints need no links, locks or memory maps, which some file systems refuse.
    """
    errors = {}
    for step, error in facts["errors"].items():
        if step not in STEPS_WITHOUT_USE_FOR_CHECKPOINTS:
            errors[step] = error
    return folder_fault({**facts, "errors": errors}, expected)


def unseen_faults(facts: Mapping[str, NodeFacts]) -> dict[str, str]:
    """Return the nodes that did not see files in a shared folder, and whose files these were.

    A node that wrote its file too late, because an earlier check took long there, is left out.
    """
    faults = {}
    for node, of_node in facts.items():
        last_look = of_node.get("looked_until", 0.0)
        unseen = []
        for other in of_node["unseen"]:
            written = facts.get(other, {}).get("written", 0.0)
            if not last_look or written < last_look - thresholds.SEEN_SECONDS.value:
                unseen.append(other)

        if unseen:
            mount = f"{of_node['file_system']} at {of_node['mount_point']}"
            faults[node] = (
                f"{of_node['folder']} ({mount}) does not show what was written by "
                f"{', '.join(unseen)}"
            )

    return faults


def _checkpoint_folder_text(facts: NodeFacts) -> str:
    return f"{facts['folder']}: the same view, write, rename ({facts['file_system']})"


def _folder_text(facts: NodeFacts) -> str:
    return (
        f"{facts['folder']}: the same view, write, rename, link, lock, map ({facts['file_system']})"
    )


def file_clock_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if the node clock differs too much from the file server's."""
    ahead = facts["ahead"]
    if abs(ahead) <= thresholds.CLOCK.value:
        return ""
    direction = "behind" if ahead > 0 else "ahead of"
    return f"its clock is {show_duration(abs(ahead))} {direction} the file server's"


def folder_checks(
    answers: JobAnswers,
    expected: Expectations,
    folders: Sequence[str],
) -> list[PlacedCheck]:
    """Check each folder that the nodes share."""
    return [_folder_check(answers, expected, folder) for folder in folders]


def _folder_check(answers: JobAnswers, expected: Expectations, part: str) -> PlacedCheck:
    """Check one folder.

    If a node cannot write there, files that other nodes cannot see are not reported.
    """
    if part == RUN_FOLDER:
        operations, fault, shown = "write, rename, link, lock and map", folder_fault, _folder_text
    else:
        operations = "write and rename"
        fault, shown = checkpoint_folder_fault, _checkpoint_folder_text
    rule = PlacedRule(
        PreflightCheck.SHARED_FOLDER,
        (f"every node sees the same folder and can {operations} files there; one checkpoint fits"),
        (
            "Mount it on these nodes as on the others, free space, or choose another folder "
            "(jobs.stage, --runs)."
        ),
    )
    folder_check = judge_each_node(NodeRule(rule, part, fault, shown), answers, expected)
    if folder_check.verdict == "fail":
        return folder_check
    facts = answers.facts(HOSTS, part)
    unseen = unseen_faults(facts)
    if unseen:
        return rule.broken(by_node(unseen), list(unseen))
    slow = slow_writers(facts)
    if slow:
        return rule.broken(by_node(slow), list(slow), remedy=PhaseMessage.REPAIR_PATH.fill())
    return folder_check


def slow_writers(facts: Mapping[str, NodeFacts]) -> dict[str, str]:
    """Return the nodes that write far slower than the fastest one, each with both speeds."""
    seconds_of = {node: _seconds_per_mebibyte(of_node) for node, of_node in facts.items()}
    fastest = min(seconds_of.values(), default=0.0)
    limit = max(thresholds.FOLDER_STREAM.value, thresholds.SLOW_WRITER.value * fastest)
    slow = {}
    for node, seconds in seconds_of.items():
        if seconds > limit:
            slow[node] = PhaseMessage.SLOW_WRITER.fill(
                folder=facts[node]["folder"],
                speed=show_bytes(int(MIB / seconds)),
                fastest=show_bytes(int(MIB / fastest)) if fastest else "",
            )

    return slow


def _seconds_per_mebibyte(facts: NodeFacts) -> float:
    """Return a node's seconds for each further MiB.

    A node measures them only if the first MiB takes long. Otherwise, the first MiB counts.
    """
    return float(facts.get("stream_seconds") or facts.get("write_seconds", 0.0))

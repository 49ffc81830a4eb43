"""Decides which nodes to replace by spare nodes after a failed attempt.

The first of these that applies decides: nodes on which a failed step does not end, if they are at
most half of all nodes; the nodes in a pipeline stage where ranks hung or were killed, if the log
names no node and there are enough spare nodes; and nodes named by the log or by a killed rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.next_job.attempts import JobEvent, json_lines, nodes_called, split_by_attempt
from runbook.next_job.decisions import Attempt
from runbook.next_job.job_files import JobFiles, read_or_empty
from runbook.next_job.stage_nodes import RankPlaces
from runbook.plan_file.node_lists import expand_names

KILLED_TASKS = re.compile(
    r"srun: error: (\S+): tasks? \S+: (?:Killed|Bus error|Segmentation fault|Out Of Memory)"
)
ENDED_TASKS = re.compile(r"srun: error: (\S+): tasks? \S+: ")
"""The line in which srun names nodes whose tasks have ended."""
NAMES = re.compile(r"[\w.-]+(?:\[[\d,-]+\][\w.-]*)*")
"""Names in a sentence, with the brackets of Slurm's lists."""


def nodes_to_replace(files: JobFiles, attempt: Attempt, stages: int, spares: int) -> list[str]:
    """Return the nodes that spare nodes should replace, according to the most certain evidence."""
    if (files.folder / "unended").exists():
        nodes = files.nodes()
        unended = unended_nodes(nodes, files.log_lines())
        # If most nodes are slow to end, for example to free memory, none of them is to blame.
        if unended and 2 * len(unended) <= len(nodes):
            return unended

    stage = suspect_stage(files, stages)
    if not attempt.bad_nodes and stage and len(stage) <= spares:
        return stage  # The log names no node, so any node in the stage may be to blame.
    return suspect_nodes(files, attempt)


def suspect_nodes(files: JobFiles, attempt: Attempt) -> list[str]:
    """Return the nodes to which the classifier, the watchdog, the starter or a killed rank points."""
    nodes = files.nodes()
    named = list(attempt.bad_nodes)
    for word in NAMES.findall(attempt.evidence):
        named += nodes_called(word.rstrip("."), nodes)
    killed = read_or_empty(files.folder / "rank-signal").split()
    if killed and killed[0].isdigit() and nodes:
        node_index = int(killed[0]) // files.ranks_per_node()
        named += nodes[node_index : node_index + 1]

    return list(dict.fromkeys(named))


def unended_nodes(nodes: Sequence[str], log_lines: Sequence[str]) -> list[str]:
    """Return the nodes where a failed step did not end, because srun did not report its end.

    >>> unended_nodes(["n1", "n2"], ["srun: error: n1: task 0: Killed"])
    ['n2']
    """
    ended: set[str] = set()
    for line in log_lines:
        task_end = ENDED_TASKS.match(line)
        if task_end:
            ended.update(nodes_called(task_end[1], nodes))

    return [node for node in nodes if node not in ended]


def suspect_stage(files: JobFiles, stages: int) -> list[str]:
    """Return the nodes in a pipeline stage if ranks on several of them hung or were killed.

    It is unknown which of these nodes caused the failure. The result is empty for every other
    failure.
    """
    slices = split_by_attempt(list(json_lines(files.events)), files.name)
    events = slices[-1] if slices else []
    places = RankPlaces(files.nodes(), files.ranks_per_node(), stages)
    ranks = [*hung_ranks(events), *places.first_ranks(killed_nodes(files.log_lines()))]
    return places.suspect_stage(ranks)


def hung_ranks(events: Sequence[JobEvent]) -> list[int]:
    """Return the ranks that hung, according to the watchdog."""
    ranks = []
    for event in events:
        rank = event.get("rank")
        if event.get("event") == "hang" and isinstance(rank, int):
            ranks.append(rank)

    return ranks


def killed_nodes(log_lines: Sequence[str]) -> list[str]:
    """Return the nodes whose tasks were killed by a signal, according to srun.

    >>> killed_nodes(["srun: error: n2: tasks 8-15: Killed", "srun: error: n1: task 0: Terminated"])
    ['n2']
    >>> killed_nodes(["srun: error: n[3-4]: tasks 2-3: Killed"])
    ['n3', 'n4']
    """
    nodes = []
    for line in log_lines:
        killed = KILLED_TASKS.match(line)
        if killed:
            nodes += expand_names(killed[1])

    return nodes

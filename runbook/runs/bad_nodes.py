"""Nodes known to be bad, by site, with the evidence.

An entry is valid until it expires or the node is forgiven.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runbook.core.files import read_lines
from runbook.core.processes import user_name
from runbook.core.table import Row
from runbook.core.units import show_duration
from runbook.jobs.schedulers import get_queue_scripts
from runbook.params import Settings
from runbook.plan_file.bad_node_lifetimes import LIFETIMES, FoundBy
from runbook.plan_file.json_records import append_line
from runbook.runs.messages import RunMessage
from runbook.runs.run_folder import runs_folder

FILE_NAME = "bad_nodes.jsonl"
EXCLUDE = "exclude"
"""Slurm directive used to exclude nodes.

PBS has no counterpart, because qsub can request a host but cannot exclude it.
"""


@dataclass(frozen=True)
class BadNode:
    """A reason to exclude a node."""

    node: str
    found_by: FoundBy
    evidence: str
    run: str
    job: str
    found: float
    """Unix time, in seconds."""
    expires: float
    """Unix time, in seconds."""

    def describe(self) -> str:
        """Return the entry as a readable line."""
        age = show_duration(max(0.0, time.time() - self.found))
        return f"{self.node} ({self.found_by}, {age} ago): {self.evidence}"


def bad_nodes_file(settings: Settings) -> Path:
    """Return the path to the list of bad nodes for a site, in the folder with all runs."""
    return runs_folder(settings.project) / settings.site.site / FILE_NAME


def report_bad_nodes(
    settings: Settings,
    nodes: Sequence[str],
    found_by: FoundBy,
    evidence: str,
    job: str,
) -> list[BadNode]:
    """Add an entry for each node.

    Do nothing on a site without a queue, because it has a single node.
    """
    if settings.site.scheduler == "local":
        return []
    now_seconds = time.time()
    entries = []
    for node in nodes:
        expires = now_seconds + LIFETIMES[found_by]
        entry = BadNode(
            node,
            found_by,
            evidence[:300],
            settings.name,
            job,
            now_seconds,
            expires,
        )
        append_line(bad_nodes_file(settings), asdict(entry))
        entries.append(entry)

    return entries


def forgive_nodes(path: Path, nodes: Sequence[str]) -> list[str]:
    """Forgive the named nodes, or all nodes if none is named.

    Return the nodes that had an entry.
    """
    now_seconds = time.time()
    listed = {entry.node for entry in read_bad_nodes(path, now_seconds)}
    forgiven = sorted(listed & set(nodes) if nodes else listed)
    for node in forgiven:
        append_line(path, {"node": node, "forgiven": now_seconds, "by": user_name()})
    return forgiven


def read_bad_nodes(path: Path, now: float) -> list[BadNode]:
    """Return the entries that are valid at the time `now`: neither expired nor forgiven."""
    return parse_bad_nodes(read_lines(path), now)


def parse_bad_nodes(lines: Sequence[Mapping[str, Any]], now: float) -> list[BadNode]:
    """Return the newest valid entry for each node.

    >>> made = {"node": "n1", "found_by": "failure", "evidence": "Xid 79", "run": "r", "job": "j",
    ... "found": 1.0}
    >>> [entry.node for entry in parse_bad_nodes([{**made, "expires": 9.0}], now=2.0)]
    ['n1']
    >>> parse_bad_nodes([{**made, "expires": 9.0}, {"node": "n1", "forgiven": 1.5}], now=2.0)
    []
    """
    newest: dict[str, BadNode] = {}
    for values in lines:
        node = str(values.get("node", ""))
        if "forgiven" in values:
            newest.pop(node, None)
        elif node and values.get("found_by") in FoundBy.__members__.values():
            newest[node] = BadNode(**{**values, "found_by": FoundBy(values["found_by"])})

    return [entry for entry in newest.values() if entry.expires > now]


@dataclass(frozen=True)
class Exclusion:
    """Bad nodes to exclude from the next job, and those that cannot be excluded."""

    left_out: tuple[BadNode, ...] = ()
    kept: tuple[BadNode, ...] = ()
    why_kept: str = ""

    def as_text(self) -> str:
        """Return the notice shown before a job is submitted.

        The text is empty if no bad node is known.
        """
        lines = [RunMessage.LEFT_OUT.fill(nodes=entry.describe()) for entry in self.left_out]
        lines += [f"Known to be bad, but not left out: {entry.describe()}" for entry in self.kept]
        if self.kept:
            lines.append(self.why_kept)
        return "\n".join(lines)


def choose_exclusion(
    settings: Settings,
    entries: Sequence[BadNode],
    nodes_wanted: int,
) -> Exclusion:
    """Choose the nodes that a job excludes.

    Exclude no node if the site would not have enough nodes left. Entries from a queue are kept even
    if the site file now names this machine instead.
    """
    if not entries or settings.site.scheduler == "local":
        return Exclusion()
    if not get_queue_scripts(settings.site).can_leave_out_nodes:
        why = RunMessage.PBS_LEAVES_OUT_NO_NODE.fill()
        return Exclusion(kept=tuple(entries), why_kept=why)

    total = settings.site.hardware.nodes
    if total and total - len(entries) < nodes_wanted:
        why = RunMessage.NODES_NEEDED.fill(wanted=nodes_wanted, total=total)
        return Exclusion(kept=tuple(entries), why_kept=why)

    return Exclusion(left_out=tuple(entries))


def without_bad_nodes(settings: Settings, nodes_wanted: int) -> tuple[Settings, Exclusion]:
    """Return settings to make jobs exclude bad nodes on this site, and the decision."""
    entries = read_bad_nodes(bad_nodes_file(settings), time.time())
    exclusion = choose_exclusion(settings, entries, nodes_wanted)
    if not exclusion.left_out:
        return settings, exclusion
    site = settings.site
    names = [site.directives[EXCLUDE]] if EXCLUDE in site.directives else []
    names += [entry.node for entry in exclusion.left_out]
    directives = {**site.directives, EXCLUDE: ",".join(names)}
    return replace(settings, site=site.model_copy(update={"directives": directives})), exclusion


def bad_node_rows(entries: Sequence[BadNode]) -> list[Row]:
    """Return a row for each entry."""
    now_seconds = time.time()
    rows: list[Row] = []
    for entry in entries:
        rows.append(
            {
                "node": entry.node,
                "found by": str(entry.found_by),
                "evidence": entry.evidence,
                "run": entry.run,
                "job": entry.job,
                "age": show_duration(round(max(0.0, now_seconds - entry.found))),
                "expires in": show_duration(max(0.0, entry.expires - now_seconds)),
            }
        )

    return rows

"""Compares the facts of the nodes, and names the node that differs from the others."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbook.node_checks.answers import HOSTS
from runbook.node_checks.fact_sheet.group_names import FactGroup
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight.fact_table import FactRow, Meaning, row_of
from runbook.phases.p01_environment.preflight.job_answers import JobAnswers
from runbook.phases.p01_environment.preflight.node_rules import by_node
from runbook.phases.p01_environment.preflight.placed_check import PlacedCheck, PlacedRule
from runbook.planning import Check

DIFFERENCE = "difference: "
"""Prefix for the name of a check that compares one group of facts."""
ABSENT = "(not there)"
SHOWN_DIFFERENCES = 8
SHOWN_LETTERS = 80
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class NodeDifference:
    """A fact that is not the same on all nodes."""

    row: FactRow
    fact: str
    nodes_of: Mapping[str, tuple[str, ...]]
    """The nodes with each value, the rarest value first."""

    @property
    def odd_nodes(self) -> tuple[str, ...]:
        """The nodes without the most frequent value; all nodes if no value is more frequent."""
        groups = list(self.nodes_of.values())
        has_majority = len(groups[-1]) > len(groups[-2])
        chosen = groups[:-1] if has_majority else groups
        return tuple(node for nodes in chosen for node in nodes)

    def as_text(self) -> str:
        """Return the fact with each value and its nodes."""
        values = list(self.nodes_of)
        parts = []
        for value, nodes in self.nodes_of.items():
            others = [other for other in values if other != value]
            text = _distinct_part(value, others)
            others_text = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
            parts.append(
                PhaseMessage.VERSION_ON_NODES.fill(version=text, nodes=nodes[0] + others_text)
            )
        return PhaseMessage.DIFFERENT_FACT.fill(fact=self.fact, values=", ".join(parts))


def difference_checks(answers: JobAnswers) -> list[PlacedCheck]:
    """Return a check for each group of facts. It passes if all nodes have the same facts."""
    if len(answers.nodes) < 2:
        return []
    return [_group_check(group, answers) for group in FactGroup if _is_answered(group, answers)]


def _is_answered(group: FactGroup, answers: JobAnswers) -> bool:
    """Return whether any node was asked for these facts."""
    return any(answers.answer(HOSTS, node, group.part) for node in answers.nodes)


def _group_check(group: FactGroup, answers: JobAnswers) -> PlacedCheck:
    rule = PlacedRule(
        f"{DIFFERENCE}{group}",
        "the nodes of a job have the same set-up; facts that differ by nature are in fact_table.py",
        "Give the named node the value of the others, or leave the node out (runbook nodes --add).",
    )
    silent = answers.missing(HOSTS, group.part)
    if silent:
        return rule.broken(by_node(silent), list(silent), verdict="warn")
    facts = {}
    for node, of_node in answers.facts(HOSTS, group.part).items():
        facts[node] = {name: str(value) for name, value in of_node.items()}

    differences = find_differences(group, facts)
    if not differences:
        return rule.passed("the same on all nodes", ", ".join(facts))
    defects = [each for each in differences if each.row.meaning is Meaning.DEFECT]
    shown = [*defects, *[each for each in differences if each not in defects]]
    texts = [each.as_text() for each in shown[:SHOWN_DIFFERENCES]]
    if len(shown) > SHOWN_DIFFERENCES:
        texts.append(PhaseMessage.MORE_DIFFERENCES.fill(count=len(shown) - SHOWN_DIFFERENCES))
    if defects:
        texts.append(defects[0].row.source)
    blamed = dict.fromkeys(node for each in defects or differences for node in each.odd_nodes)
    return rule.broken("; ".join(texts), list(blamed), verdict="fail" if defects else "warn")


def find_differences(
    group: FactGroup, facts: Mapping[str, Mapping[str, str]]
) -> list[NodeDifference]:
    """Return the facts whose values differ between nodes, without those that differ by nature."""
    differences = []
    names = dict.fromkeys(name for of_node in facts.values() for name in of_node)
    for name in names:
        row = row_of(group, name)
        if row.meaning is Meaning.NATURAL:
            continue
        values = {}
        for node, of_node in facts.items():
            # Nodes do not report their own address, because Debian sets it to 127.0.1.1.
            if not (name.endswith(f" of {node}") and name not in of_node):
                values[node] = of_node.get(name, ABSENT)
        nodes_of = _nodes_of(values, row.tolerance)
        if len(nodes_of) > 1:
            differences.append(NodeDifference(row, name, nodes_of))
    return differences


def _nodes_of(values: Mapping[str, str], tolerance: float) -> dict[str, tuple[str, ...]]:
    """Group the nodes by value, the rarest value first."""
    nodes_of: dict[str, list[str]] = {}
    for node, value in values.items():
        known = next((other for other in nodes_of if is_equal(value, other, tolerance)), value)
        nodes_of.setdefault(known, []).append(node)
    rarest_first = sorted(nodes_of.items(), key=lambda item: len(item[1]))
    return {value: tuple(nodes) for value, nodes in rarest_first}


def is_equal(value: str, other: str, tolerance: float) -> bool:
    """Return whether two values are equal, or differ only in numbers within the tolerance.

    >>> is_equal("100 kB", "104 kB", 0.1), is_equal("100 kB", "104 kB", 0.0)
    (True, False)
    """
    if value == other:
        return True
    if not tolerance or NUMBER.sub("", value) != NUMBER.sub("", other):
        return False
    pairs = zip(NUMBER.findall(value), NUMBER.findall(other), strict=True)
    return all(
        abs(float(first) - float(second)) <= tolerance * max(float(first), float(second))
        for first, second in pairs
    )


def _distinct_part(value: str, others: Sequence[str]) -> str:
    """Return a value. If it is long, return only the words that no other value has."""
    if not value:
        return "(empty)"
    if len(value) <= SHOWN_LETTERS:
        return value
    common = set(" ".join(others).split())
    words = [word for word in value.split() if word not in common]
    text = " ".join(words) or "no words of its own"
    return f"... {text}"[:SHOWN_LETTERS]


def differences_of(checks: Sequence[Check], nodes: Sequence[str]) -> list[str]:
    """Return the differences that concern one of these nodes. Without nodes, return all."""
    texts = []
    for check in checks:
        if not isinstance(check, PlacedCheck) or not check.name.startswith(DIFFERENCE):
            continue
        is_about_nodes = not nodes or bool(set(nodes) & set(check.nodes))
        if check.verdict != "pass" and is_about_nodes:
            texts.append(check.value)
    return texts

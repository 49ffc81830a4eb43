"""Applies a rule to every node in a job, and checks that every node answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from runbook.node_checks.answers import HOSTS
from runbook.phases.p01_environment.preflight.expectations import Expectations
from runbook.phases.p01_environment.preflight.job_answers import JobAnswers, NodeFacts
from runbook.phases.p01_environment.preflight.placed_check import PlacedCheck, PlacedRule

ANSWERED = "answers"
"""Prefix for the name of a check that every node answered."""
Fault = Callable[[NodeFacts, Expectations], str]
"""Returns what is wrong with a node, or an empty string."""


@dataclass(frozen=True)
class NodeRule:
    """A rule that is applied to each node separately."""

    rule: PlacedRule
    part: str
    fault: Fault
    shown: Callable[[NodeFacts], str]
    """Returns the value from a healthy node, to show in the row for a passed check."""
    verdict: str = "fail"


def judge_each_node(
    node_rule: NodeRule,
    answers: JobAnswers,
    expected: Expectations,
    rung: str = HOSTS,
) -> PlacedCheck:
    """Apply a rule to every node. A node without an answer breaks the rule."""
    silent = answers.missing(rung, node_rule.part)
    if silent:
        return node_rule.rule.broken(by_node(silent), list(silent))
    facts = answers.facts(rung, node_rule.part)
    faults = {}
    for node, node_facts in facts.items():
        fault = node_rule.fault(node_facts, expected)
        if fault:
            faults[node] = fault

    if faults:
        return node_rule.rule.broken(by_node(faults), list(faults), verdict=node_rule.verdict)
    texts = dict.fromkeys(node_rule.shown(node_facts) for node_facts in facts.values())
    return node_rule.rule.passed(" or ".join(texts), ", ".join(facts))


def by_node(texts: Mapping[str, str]) -> str:
    """Return a line that groups the nodes with the same value.

    >>> by_node({"n1": "64 KiB", "n2": "64 KiB", "n3": "8 KiB"})
    'n1, n2: 64 KiB; n3: 8 KiB'
    """
    nodes_of: dict[str, list[str]] = {}
    for node, text in texts.items():
        nodes_of.setdefault(text, []).append(node)
    return "; ".join(f"{', '.join(nodes)}: {text}" for text, nodes in nodes_of.items())


def presence_check(answers: JobAnswers, rung: str) -> PlacedCheck:
    """Check that each node in the job answered."""
    rule = PlacedRule(
        f"{ANSWERED} ({rung})",
        "every node of the job starts the program and answers",
        (
            "See err in the job's folder. The shared folder, the container or Python may be "
            "missing on that node."
        ),
    )
    silent = []
    for node in answers.nodes:
        if all(answers.answer(rung, node, part) is None for part in answers.parts(rung)):
            silent.append(node)

    if silent or not answers.nodes:
        value = f"{len(answers.nodes) - len(silent)} of {len(answers.nodes)} nodes answered"
        return rule.broken(f"{value}; no answer from {', '.join(silent) or 'the job'}", silent)

    return rule.passed(
        f"{len(answers.nodes)} of {len(answers.nodes)} nodes", ", ".join(answers.nodes)
    )

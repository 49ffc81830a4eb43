"""Rules for the first stage: Python, and the versions and sources of packages."""

from collections.abc import Mapping, Sequence

from runbook.core.checks import Check, judge
from runbook.node_checks.answers import HOSTS, OWN_PACKAGE, ProgramEnd
from runbook.node_checks.packages import replaced_packages
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight.expectations import Expectations
from runbook.phases.p01_environment.preflight.job_answers import JobAnswers, NodeFacts
from runbook.phases.p01_environment.preflight.node_rules import by_node
from runbook.phases.p01_environment.preflight.placed_check import (
    PlacedCheck,
    PlacedRule,
    PreflightCheck,
)

REPLACED_RULE = "packages come from the environment, and not from a folder in front of it"
REPLACED_REMEDY = (
    "Remove that folder from PYTHONPATH, or the package from ~/.local (PYTHONNOUSERSITE=1 leaves "
    "that out): another version than the one that was installed is imported."
)
SHOWN_NAMES = 4
"""Number of names that a message lists."""


def program_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return a different Python that precedes the running `python3` on PATH.

    A different Python later on PATH, as on most systems, is never started by mistake. If the job's
    own Python is not on PATH, there is no fault either.
    """
    if not _is_found_by_name(facts):
        return ""
    return _python_in_front(facts)


def named_program_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return a different Python that comes on PATH before the one in the site file."""
    if _is_found_by_name(facts):
        return ""
    return _python_in_front(facts)


def _is_found_by_name(facts: NodeFacts) -> bool:
    """Return whether `python3` on PATH is the Python that the job runs."""
    return bool(facts["programs"].get("python3", {}).get("is_own", False))


def _python_in_front(facts: NodeFacts) -> str:
    own_place = facts["own_place"]
    if own_place is None:
        return ""
    for name, program in facts["programs"].items():
        place = program["place"]
        if program["is_own"] or place is None or place >= own_place:
            continue
        if program["ended"] == ProgramEnd.FAILED.value:
            return PhaseMessage.BROKEN_PYTHON_IN_FRONT.fill(
                name=name,
                path=program["path"],
                executable=facts["executable"],
            )
        if program["ended"] == ProgramEnd.WELL.value:
            return PhaseMessage.PYTHON_IN_FRONT.fill(
                name=name,
                path=program["path"],
                version=program["version"],
                executable=facts["executable"],
            )

    return ""


def versions_check(answers: JobAnswers) -> PlacedCheck:
    """Check that all nodes have the same packages.

    Name each package and node with a different version.
    """
    rule = PlacedRule(
        PreflightCheck.VERSIONS,
        "Python and every package have the same version on all nodes",
        "Give all nodes the same image or environment; these nodes have a different one.",
    )
    silent = answers.missing(HOSTS, "software")
    if silent:
        return rule.broken(by_node(silent), list(silent))
    facts = answers.facts(HOSTS, "software")
    versions = {}
    for node, node_facts in facts.items():
        versions[node] = {"python": node_facts["python"], **node_facts["packages"]}

    differences, odd_nodes = different_versions(versions)
    if differences:
        return rule.broken("; ".join(differences), odd_nodes)
    return rule.passed("the same on all nodes", ", ".join(facts))


def cut_libraries_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the packages whose libraries end before the end that their own header states."""
    faults = []
    for package, source in facts.items():
        names = source.get("cut_libraries", ())
        if names:
            faults.append(
                PhaseMessage.LIBRARIES_CUT.fill(
                    package=package, folder=source["folder"], names=", ".join(names[:SHOWN_NAMES])
                )
            )
    return "; ".join(faults)


def replaced_packages_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the packages that another folder provides in place of the job's environment.

    Answers from earlier versions of the checks do not have them.
    """
    return replaced_text(facts.get("replaced", {}))


def replaced_text(replaced: Mapping[str, str]) -> str:
    """Return a line with the packages that are shadowed by a folder outside the environment."""
    return "; ".join(f"{name} {text}" for name, text in replaced.items())


def shell_packages_check() -> Check:
    """Check the packages that Python imports in this shell. Jobs set PYTHONPATH themselves."""
    text = replaced_text(replaced_packages())
    return judge(
        PreflightCheck.SHELL_PACKAGES,
        not text,
        text or PhaseMessage.PACKAGES_OF_ENVIRONMENT.fill(),
        REPLACED_RULE,
        REPLACED_REMEDY,
        otherwise="warn",
    )


def sources_check(answers: JobAnswers) -> PlacedCheck:
    """Check that packages of the same version have the same source files on all nodes."""
    rule = PlacedRule(
        PreflightCheck.PACKAGE_SOURCES,
        "a package has the same source files on all nodes, not only the same version",
        "Give all nodes the same checkout or image: update this folder to the same commit, and "
        "look for local changes (`git status` there).",
    )
    silent = answers.missing(HOSTS, "sources")
    if silent:
        return rule.broken(by_node(silent), list(silent))
    facts = answers.facts(HOSTS, "sources")
    # A node with a cold file cache may have run out of time before the last packages.
    common = set.intersection(*(set(node_facts) for node_facts in facts.values()))
    sources: dict[str, dict[str, str | None]] = {}
    for node, node_facts in facts.items():
        of_node: dict[str, str | None] = {}
        for package, source in node_facts.items():
            if package in common:
                of_node[package] = source["checksum"]
        sources[node] = of_node

    differences, odd_nodes = different_versions(sources)
    if differences:
        folders = [_source_folder(facts, text.partition(" ")[0]) for text in differences]
        value = "; ".join(
            PhaseMessage.DIFFERENT_SOURCES.fill(versions=text, folder=folder)
            for text, folder in zip(differences, folders, strict=True)
        )
        return rule.broken(value, odd_nodes)
    not_reached = _not_reached(facts)
    if not_reached:
        return rule.broken(
            by_node(not_reached), list(not_reached), remedy=READ_AGAIN, verdict="warn"
        )
    return rule.passed(", ".join(sorted(common)), ", ".join(facts))


READ_AGAIN = (
    "Repeat the preflight: the files are then in the cache. If that does not help, the node reads "
    "them too slowly, or the package is not installed there (see the check `versions`)."
)


def _not_reached(facts: Mapping[str, NodeFacts]) -> dict[str, str]:
    """Return, for each node, the packages that only other nodes have read.

    Our own package must be on every node, so it is included even if no node has read it.
    """
    packages = {OWN_PACKAGE}.union(*facts.values())
    not_reached = {}
    for node, node_facts in facts.items():
        names = sorted(packages - set(node_facts))
        if names:
            not_reached[node] = PhaseMessage.SOURCES_NOT_READ.fill(packages=", ".join(names))

    return not_reached


def _source_folder(facts: Mapping[str, NodeFacts], package: str) -> str:
    """Return the folder of a package, or the folder on each node if they differ."""
    folders = {node: str(node_facts[package]["folder"]) for node, node_facts in facts.items()}
    if len(set(folders.values())) == 1:
        return next(iter(folders.values()))
    return by_node(folders)


def different_versions(
    versions: Mapping[str, Mapping[str, str | None]],
) -> tuple[list[str], list[str]]:
    """Return a line for each package whose versions differ, and the nodes not in the majority.

    >>> different_versions({"n1": {"torch": "2.5"}, "n2": {"torch": "2.4"}, "n3": {"torch": "2.5"}})
    (['torch 2.4 on n2, 2.5 on n1 and 1 more'], ['n2'])
    """
    texts = []
    odd_nodes: list[str] = []
    packages = dict.fromkeys(name for packages in versions.values() for name in packages)
    for package in packages:
        nodes_of: dict[str, list[str]] = {}
        for node, node_versions in versions.items():
            nodes_of.setdefault(node_versions.get(package) or "(none)", []).append(node)
        if len(nodes_of) < 2:
            continue
        rarest_first = sorted(nodes_of.items(), key=lambda item: len(item[1]))
        parts = [
            PhaseMessage.VERSION_ON_NODES.fill(version=version, nodes=_some_nodes(nodes))
            for version, nodes in rarest_first
        ]
        texts.append(
            PhaseMessage.DIFFERENT_VERSIONS.fill(package=package, versions=", ".join(parts))
        )
        majority = len(rarest_first[-1][1])
        is_tie = len(rarest_first[-2][1]) == majority
        for _, nodes in rarest_first:
            # With only two nodes, it is unclear which one is wrong.
            if is_tie or len(nodes) < majority:
                odd_nodes += nodes

    return texts, list(dict.fromkeys(odd_nodes))


def _some_nodes(nodes: Sequence[str]) -> str:
    if len(nodes) == 1:
        return nodes[0]
    return f"{nodes[0]} and {len(nodes) - 1} more"

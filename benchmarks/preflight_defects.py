"""`python -m benchmarks.preflight_defects`: does `runbook preflight` name the defect in a cluster?

It starts the two-node Slurm cluster from the tests (tests/slurm; needs root and Debian's slurm
packages), creates each defect in tests/slurm/defects.py for real, one at a time, calls preflight,
and writes a table: which check found the first defect, whether that is the right cause, and how
long it took. Before, between and after the defects it calls preflight on healthy nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "tests" / "slurm"))

from broken_node import BrokenNode  # noqa: E402
from defects import DEFECTS, Defect, Place  # noqa: E402
from healthy import HEALTHY  # noqa: E402
from two_nodes import BIN, Cluster, Project, what_is_missing  # noqa: E402

SOUND = Defect("sound", "nothing", ())
SHOWN_LETTERS = 160


@dataclass(frozen=True)
class Outcome:
    """The result from a preflight with one defect."""

    defect: Defect
    check: str
    value: str
    nodes: tuple[str, ...]
    seconds: float
    load: float
    warnings: Mapping[str, str]
    """Values from the checks that warned, by name."""

    @property
    def is_right(self) -> bool:
        """Whether the first reported check names the right cause and the right node."""
        if not self.defect.checks:
            return not self.check
        says_cause = all(word in self.value for word in self.defect.words)
        says_node = self.defect.node in self.value or self.defect.node in self.nodes
        has_warned = set(self.defect.warnings) <= set(self.warnings)
        return self.check in self.defect.checks and says_cause and says_node and has_warned

    @property
    def is_warned_of(self) -> bool:
        """Whether there is no failed check, and a warning names the right cause and node."""
        texts = [self.warnings[name] for name in self.defect.checks if name in self.warnings]
        wanted = (*self.defect.words, self.defect.node)
        return not self.check and any(all(word in text for word in wanted) for text in texts)

    @property
    def verdict(self) -> str:
        """What the table says about the defect."""
        if self.is_right:
            return "yes"
        return "warning" if self.is_warned_of else "**no**"


def place_of(project: Project, work: Path) -> Place:
    """Return the paths to the files and folders that defects break."""
    run = project.runs / "queued"
    (run / "environment").mkdir(parents=True, exist_ok=True)
    return Place(
        environment=str(run / "environment"),
        run=str(run),
        packages=sysconfig.get_paths()["purelib"],
        package=str(PROJECT / "runbook"),
        python=os.path.realpath(sys.executable),
        work=str(work),
        path=project.cluster.environment["PATH"],
    )


def preflight(project: Project, defect: Defect, place: Place) -> dict[str, object]:
    """Run preflight. During a stage, run the command that triggers the defect, if it has one."""
    site = project.root / "params" / "sites" / "two-nodes.yaml"
    sound_site = site.read_text()
    broken_site = sound_site
    for text, other_text in defect.site.items():
        assert text in broken_site, text
        broken_site = broken_site.replace(text, other_text)
    site.write_text(broken_site)
    argv = f"{defect.limits} exec '{BIN}/runbook' preflight queued --json --runs '{project.runs}' \"$@\""
    variables = {name: text.format(**vars(place)) for name, text in defect.variables.items()}
    errors = []
    rung, command = defect.during
    # Standard output goes to a file, because the answers from two nodes would fill a pipe, which
    # nobody reads before stderr has ended.
    try:
        with (
            tempfile.TemporaryFile("w+") as stdout,
            subprocess.Popen(
                ["bash", "-c", argv, "preflight", "--wait", "1", *defect.options],
                cwd=project.root,
                env={**project.cluster.environment, **variables},
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            assert process.stderr is not None
            for line in process.stderr:
                errors.append(line)
                if rung and line.strip() == f"preflight: rung {rung}":
                    project.cluster.do(*command.split())
            process.wait()
            stdout.seek(0)
            output = stdout.read()
    finally:
        site.write_text(sound_site)
    if not output:
        return {"defect": "(no answer)", "checks": [], "words": "".join(errors)[-500:]}
    answer: dict[str, object] = json.loads(output)
    return answer


def try_defect(project: Project, node: BrokenNode, defect: Defect, place: Place) -> Outcome:
    """Break the cluster, run preflight, and repair the cluster."""
    try:
        if defect.breaks is not None:
            defect.breaks(node, place)
        start = time.monotonic()
        answer = preflight(project, defect, place)
        seconds = time.monotonic() - start
    finally:
        if defect.name == "no-controller":
            node.cluster.do("ctld-start")
        node.heal()
        for each in ("node1", "node2"):
            node.cluster.do("boot", each)
        node.cluster.wait_idle()
        forgive(project)
    name = str(answer["defect"] or "")
    checks = answer["checks"]
    assert isinstance(checks, list)
    first = next((check for check in checks if check["verdict"] == "fail"), {})
    value = str(first.get("value", answer.get("words", "")))
    nodes = tuple(first.get("nodes", ()))
    warnings = {check["name"]: check["value"] for check in checks if check["verdict"] == "warn"}
    return Outcome(defect, name, value, nodes, seconds, os.getloadavg()[0], warnings)


def forgive(project: Project) -> None:
    """Let the next preflight use the node that this one marked as bad."""
    for path in project.runs.glob("*/bad_nodes.jsonl"):
        path.unlink()


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the table in Markdown."""
    lines = [
        "| defect | named | first defect of preflight | seconds | load |",
        "| --- | --- | --- | --- | --- |",
    ]
    for outcome in outcomes:
        kind = " (simulated)" if outcome.defect.is_simulated else ""
        check = outcome.check
        value = outcome.value
        if outcome.verdict == "warning":
            check = next(name for name in outcome.defect.checks if name in outcome.warnings)
            value = outcome.warnings[check]
        value = value.replace("|", "/").replace("\n", " ")[:SHOWN_LETTERS]
        said = f"`{check}`: {value}" if check else "none"
        lines.append(
            f"| {outcome.defect.text}{kind} | {outcome.verdict} | {said} | {outcome.seconds:.0f} | {outcome.load:.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Try every defect, or those that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preflight_defects")
    parser.add_argument("names", nargs="*", help="names of defects (default: all)")
    parser.add_argument(
        "--healthy", action="store_true", help="the settings of tests/slurm/healthy.py instead"
    )
    parser.add_argument("--out", type=Path, help="a file for the table")
    arguments = parser.parse_args()
    missing = what_is_missing()
    if missing:
        sys.stderr.write(f"There can be no Slurm here: {missing}\n")
        return 2
    rows = HEALTHY if arguments.healthy else DEFECTS
    chosen = [each for each in rows if not arguments.names or each.name in arguments.names]
    skipped = [each for each in chosen if each.program and shutil.which(each.program) is None]
    chosen = [each for each in chosen if each not in skipped]
    if not arguments.names and not arguments.healthy:
        chosen = [SOUND, *chosen, SOUND]
    with tempfile.TemporaryDirectory(prefix="runbook-defects-", dir="/var/tmp") as folder:
        outcomes = try_all(Path(folder), chosen)
    defects = [outcome for outcome in outcomes if outcome.defect is not SOUND]
    num_right = sum(outcome.is_right for outcome in defects)
    text = table(outcomes)
    verdict = "passed" if arguments.healthy else "named with the right cause"
    num_warned = sum(outcome.verdict == "warning" for outcome in defects)
    machine = f"{platform.platform()}, {os.cpu_count()} cores"
    text += f"\n{num_right} of {len(defects)} {verdict}, {num_warned} warned of. {machine}.\n"
    text += "".join(f"Skipped without {each.program}: {each.text}.\n" for each in skipped)
    sys.stdout.write(text)
    if arguments.out:
        arguments.out.write_text(text)
    return 0


def try_all(folder: Path, chosen: Sequence[Defect]) -> list[Outcome]:
    """Try defects on one cluster, and report each as soon as it ends."""
    cluster = Cluster(folder / "slurm")
    outcomes = []
    try:
        cluster.do("start")
        (folder / "project").mkdir()
        project = Project(folder / "project", cluster)
        node = BrokenNode(cluster, folder / "work")
        place = place_of(project, node.folder)
        for defect in chosen:
            outcome = try_defect(project, node, defect, place)
            outcomes.append(outcome)
            sys.stderr.write(
                f"{outcome.verdict} {defect.name} {outcome.seconds:.0f} s, load {outcome.load:.1f}: "
                f"{outcome.check}: {outcome.value[:400]} {outcome.nodes}\n"
            )
    finally:
        cluster.do("stop")
    return outcomes


if __name__ == "__main__":
    sys.exit(main())

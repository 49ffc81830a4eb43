"""docs/hours-lost.md and the tried remedies: every claim has the kind of evidence that it names."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from runbook.results.failures.trials import TRIALS
from runbook.tools.drills.drill_list import DRILLS

CLONE = Path(__file__).parents[1]
ROW = re.compile(r"^\| (?!problem|---)(.+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
THREADS = re.compile(r"(?:[\w-]+ )*#\d+(?:, (?:[\w-]+ )*#\d+)*")
CLAIM = re.compile(
    r"(prevents|names|preflight names|preflight warns|preflight and the trainer name)\b"
)
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
IDENTIFIER = re.compile(r"`([A-Z_]{6,}|--[a-z-]+)`")
LOG_TEST = "tests/results/test_known_failures.py"
PREFLIGHT_TEST = "tests/phases/test_preflight_rules.py"


@dataclass(frozen=True)
class Problem:
    """A row of the page."""

    name: str
    threads: str
    answer: str
    tests: str


def problems() -> list[Problem]:
    text = (CLONE / "docs" / "hours-lost.md").read_text(encoding="utf-8")
    return [Problem(*row) for row in ROW.findall(text)]


@cache
def sources() -> str:
    """Return the text from all files that define jobs, sites and rules."""
    folders = (CLONE / "runbook", CLONE / "params")
    files = [path for folder in folders for path in folder.rglob("*")]
    texts = [path for path in files if path.suffix in (".py", ".yaml", ".j2")]
    return "\n".join(path.read_text(encoding="utf-8") for path in texts)


def faults(problem: Problem) -> set[str]:
    """Return the claims in a row that have no evidence."""
    wrong = set()
    if not THREADS.fullmatch(problem.threads):
        wrong.add("threads")
    claim = CLAIM.match(problem.answer)
    tests = NAMED_TEST.findall(problem.tests)
    files = {file for file, _ in tests}
    if not claim or not files:
        return wrong | {"claim" if files else "test"}
    by_preflight = claim[1] in ("preflight names", "preflight warns")
    in_log = problem.answer.startswith("names it in the log")
    if by_preflight and files != {PREFLIGHT_TEST}:
        wrong.add("not a test of the preflight")
    if in_log != (LOG_TEST in files):
        wrong.add("a log is named by the rules for logs, and by nothing else")
    for file, name in tests:
        if f"def {name}(" not in (CLONE / file).read_text(encoding="utf-8"):
            wrong.add("test")
    for identifier in IDENTIFIER.findall(problem.name + problem.answer):
        if identifier.removeprefix("--") not in sources():
            wrong.add("identifier")
    return wrong


def test_each_problem_has_threads_and_evidence_of_its_claim() -> None:
    rows = problems()
    assert len(rows) == 25
    assert {row.name: faults(row) for row in rows if faults(row)} == {}


@pytest.mark.parametrize(
    ("problem", "change", "fault"),
    [
        ("nvcc is", {"threads": "DeepSpeed, long ago"}, "threads"),
        ("nvcc is", {"answer": "it names nothing"}, "claim"),
        ("nvcc is", {"tests": "read by hand"}, "test"),
        (
            "nvcc is",
            {"tests": "`tests/training/test_hangs.py::test_the_hung_rank_is_named_and_ended`"},
            "not a test of the preflight",
        ),
        (
            "pyxis",
            {"answer": "prevents it"},
            "a log is named by the rules for logs, and by nothing else",
        ),
        ("RCCL", {"answer": "prevents: `FI_MR_CACHE_MONITORS` of the site"}, "identifier"),
        ("pyxis", {"tests": f"`{LOG_TEST}::test_that_was_never_written`"}, "test"),
    ],
)
def test_a_claim_without_its_evidence_is_noticed(problem: str, change: dict, fault: str) -> None:
    row = next(row for row in problems() if row.name.startswith(problem))
    assert faults(row) == set()
    assert fault in faults(replace(row, **change))


def test_each_tried_remedy_names_a_drill_or_a_defect_that_exists() -> None:
    assert len({trial.kind.name for trial in TRIALS}) == len(TRIALS)
    for trial in TRIALS:
        sort, _, name = trial.place.partition(" ")
        exists = {"drill": is_drill, "test": is_test, "defect": is_defect}[sort]
        assert exists(name), trial


def is_drill(name: str) -> bool:
    return name in DRILLS


def is_test(name: str) -> bool:
    file, _, function = name.partition("::")
    return f"def {function}(" in (CLONE / file).read_text(encoding="utf-8")


def is_defect(name: str) -> bool:
    defects = (CLONE / "tests" / "slurm" / "defects.py").read_text(encoding="utf-8")
    return f'"{name}",' in defects

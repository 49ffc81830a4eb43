"""docs/hours-lost.md and the tried remedies: what they name as evidence exists."""

from __future__ import annotations

import re
from pathlib import Path

from runbook.results.failures.trials import TRIALS
from runbook.tools.drills.table import DRILLS

CLONE = Path(__file__).parents[1]
ROW = re.compile(r"^\| (?!problem|---)(.+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_each_problem_has_threads_and_a_test_that_exists() -> None:
    rows = ROW.findall((CLONE / "docs" / "hours-lost.md").read_text(encoding="utf-8"))
    assert len(rows) == 25
    missing = []
    for problem, threads, answer, tests in rows:
        assert re.search(r"#\d+", threads), problem
        assert re.search("prevents|name|warns", answer), problem
        named_tests = NAMED_TEST.findall(tests)
        assert named_tests, problem
        for file, name in named_tests:
            if f"def {name}(" not in (CLONE / file).read_text(encoding="utf-8"):
                missing.append(f"{file}::{name}")
    assert missing == []


def test_each_tried_remedy_names_a_drill_or_a_defect_that_exists() -> None:
    defects = (CLONE / "tests" / "slurm" / "defects.py").read_text(encoding="utf-8")
    assert len({trial.kind.name for trial in TRIALS}) == len(TRIALS)
    for trial in TRIALS:
        sort, _, name = trial.place.partition(" ")
        assert name in DRILLS if sort == "drill" else f'"{name}",' in defects, trial

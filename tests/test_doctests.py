"""The examples in docstrings show what the functions return."""

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "runbook"
ELSEWHERE = ("planning", "training")
"""Packages whose examples run with their own tests: tests/planning, tests/training."""


def modules_with_examples() -> list[str]:
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).with_suffix("")
        if module.parts[0] not in ELSEWHERE and ">>> " in path.read_text(encoding="utf-8"):
            names.append(".".join(module.parts))
    return names


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_hold(name):
    results = doctest.testmod(importlib.import_module(f"runbook.{name}"))
    assert results.attempted > 0
    assert results.failed == 0

"""Rotation: of an expensive family of tests, each run of the suite does a part, and the next run does the next part.

`make test` and CI name the turn in RUNBOOK_TURN (the number of commits below HEAD). Without it, as in a plain `pytest`
and in `make test-all`, everything runs. A test takes part through its marker:

- `rotate(5)`: the cases of this function are dealt to five turns, one after the other;
- `rotate(5, together="harness")`: all tests of this name run in the same turn, because they share what is expensive.

Cases rotate, not properties: at least one case of each function carries no marker, unless another test holds the same.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Sequence

import pytest

TURN_VARIABLE = "RUNBOOK_TURN"
LEFT_OUT = pytest.StashKey[Counter[str]]()
"""Tests left to another turn, by family."""


def turn_of(position: int, every: int, family: str) -> int:
    """Return the turn of a family's test. Families start at different turns, so that all turns take equally long."""
    return (zlib.crc32(family.encode()) + position) % every


def left_to_other_turns(items: Sequence[pytest.Item], turn: int) -> dict[pytest.Item, str]:
    """Return the tests that do not run in this turn, each with its family."""
    sizes: Counter[str] = Counter()
    left_out: dict[pytest.Item, str] = {}
    for item in items:
        marker = item.get_closest_marker("rotate")
        if marker is None:
            continue
        (every,) = marker.args
        together = marker.kwargs.get("together")
        family = together or item.nodeid.partition("[")[0]
        position = 0 if together else sizes[family]
        sizes[family] += 1
        if turn_of(position, every, family) != turn % every:
            left_out[item] = family
    return left_out


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LEFT_OUT] = Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if TURN_VARIABLE not in os.environ:
        return
    left_out = left_to_other_turns(items, int(os.environ[TURN_VARIABLE]))
    config.stash[LEFT_OUT].update(left_out.values())
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]

"""Rotation: each time the suite runs, it executes one part of an expensive test family, and the
next part the next time.

`make test` and CI name the turn in RUNBOOK_TURN (the number of commits up to HEAD). Without it, as
in a plain `pytest` and in `make test-all`, everything runs. A test takes part through its marker:

- `rotate(5)`: the cases for this function are distributed over five turns, one after another;
- `rotate(3, turn=1)`: all tests with this marker run in the same turn, because they share an
  expensive fixture.

Cases rotate, not properties: a function has at least as many cases as its family has turns. A test
that rotates with a `turn` shares a complete campaign. Other tests, which run every time, check the
same properties in a different way.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Sequence

import pytest

TURN_VARIABLE = "RUNBOOK_TURN"
LEFT_OUT = pytest.StashKey[Counter[str]]()
"""Tests left for another turn, by family."""


def first_turn(family: str, every: int) -> int:
    """Return the turn in which the first case in a family runs.

    It differs between families, so that all turns take about the same time.
    """
    return zlib.crc32(family.encode()) % every


def left_to_other_turns(items: Sequence[pytest.Item], turn: int) -> dict[pytest.Item, str]:
    """Return the tests that do not run in this turn, each with its family."""
    sizes: Counter[str] = Counter()
    left_out: dict[pytest.Item, str] = {}
    for item in items:
        marker = item.get_closest_marker("rotate")
        if marker is None:
            continue
        (every,) = marker.args
        function = item.nodeid.partition("[")[0]
        if "turn" in marker.kwargs:
            family = function.partition("::")[0]
            own_turn = marker.kwargs["turn"]
        else:
            family = function
            own_turn = first_turn(family, every) + sizes[family]
            sizes[family] += 1
        if own_turn % every != turn % every:
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

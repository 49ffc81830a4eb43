"""A layout that the plan accepts can be rehearsed, and one that it rejects cannot.

Layouts are random, but the same each time. `make drills` sets FUZZ_LAYOUTS=100, the number for each
kind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LAYOUTS = int(os.environ.get("FUZZ_LAYOUTS", "10"))

pytestmark = [pytest.mark.training, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_plan_and_rehearsal_allow_the_same_layouts(kind: str) -> None:
    program = Path(__file__).with_name("layouts.py")
    ended = subprocess.run(
        [sys.executable, program, kind, "0", str(LAYOUTS)], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    compared = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(compared) == LAYOUTS
    assert [found for found in compared if not found["agree"]] == []
    assert len({bool(found["planned"]) for found in compared}) == 2, (
        "some are allowed, and some refused"
    )

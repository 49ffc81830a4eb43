"""One bench for all drills: importing torch takes longer than most of them."""

from __future__ import annotations

import pytest

from runbook.tools.drills.bench import Bench


@pytest.fixture(scope="session")
def bench():
    with Bench() as bench:
        yield bench

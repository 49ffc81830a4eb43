"""Files with arbitrary content lead to a clear error or a result, never to a traceback, a hang or a
write. `make drills` sets FUZZ_INPUTS=10000: that many inputs of each kind from atheris, which
follows the branches it reaches, and half as many from hypothesis."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from targets import MAKERS, mutate

INPUTS = int(os.environ.get("FUZZ_INPUTS", "400"))
LONG = INPUTS > 1000
SEED = int(os.environ.get("FUZZ_SEED", "1"))
"""Seed for the inputs. It is fixed, so that a new failure is caused by a code change. 0 draws
new inputs each time, to search for more failures."""
SECONDS_FOR_ONE = 60
"""Only a hang takes this long, even on a busy machine."""

pytestmark = pytest.mark.timeout(3600 if LONG else 300)


@pytest.mark.parametrize("kind", MAKERS)
def test_whole_files_can_be_read(kind, fuzz_targets):
    """Check that the seeds are readable, because a campaign with unreadable seeds finds nothing."""
    target = fuzz_targets[kind]
    assert target.look(target.seeds[0]) == "read"


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.rotate(3)
def test_changed_files_are_answered(kind, fuzz_targets):
    target = fuzz_targets[kind]

    @settings(
        max_examples=INPUTS // 2 if LONG else INPUTS,
        deadline=SECONDS_FOR_ONE * 1000,
        database=None,
        derandomize=SEED > 0,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(number=st.integers(0, 2**48), seed=st.sampled_from(range(len(target.seeds))))
    @example(number=0, seed=0)
    def look(number: int, seed: int) -> None:
        content = mutate(target.seeds[seed], target.words, random.Random(number))
        target.look(content)

    look()


@pytest.mark.parametrize("kind", MAKERS)
def test_arbitrary_bytes_are_answered(kind, fuzz_targets):
    target = fuzz_targets[kind]

    @settings(
        max_examples=max(20, INPUTS // 10),
        deadline=SECONDS_FOR_ONE * 1000,
        database=None,
        derandomize=SEED > 0,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(content=st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
    def look(content: bytes) -> None:
        target.look(content)

    look()


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory, request):
    """Run the campaigns that belong to this turn, two at a time."""
    kinds = [
        test.callspec.params["kind"]
        for test in request.session.items
        if "campaigns" in test.fixturenames
    ]
    root = tmp_path_factory.mktemp("campaigns")
    script = str(Path(__file__).with_name("campaign.py"))

    def run(kind: str) -> subprocess.CompletedProcess[str]:
        folder = root / kind
        folder.mkdir()
        limits = [f"-runs={INPUTS}", f"-timeout={SECONDS_FOR_ONE}", f"-seed={SEED}"]
        command = [sys.executable, script, kind, str(folder), *limits]
        return subprocess.run(command, capture_output=True, text=True, timeout=3000, cwd=folder)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(kinds, pool.map(run, kinds), strict=True))


@pytest.mark.skipif(not LONG, reason="the campaign of make drills (FUZZ_INPUTS=10000)")
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.rotate(5)
def test_a_campaign_that_follows_the_branches_finds_nothing(kind, campaigns):
    done = campaigns[kind]
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert f"Done {INPUTS} runs" in done.stdout + done.stderr, done.stderr[-2000:]

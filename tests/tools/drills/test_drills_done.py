"""The drills that take seconds are run for real, with ten random kills. `make drills` runs all
twenty and fifty kills.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import psutil
import pytest

from runbook.core.processes import wait_until
from runbook.tools.drills.bench import judge_ending
from runbook.tools.drills.drill_list import DRILLS, do_drill
from runbook.tools.drills.random_kills import kill_often

pytestmark = [pytest.mark.training, pytest.mark.timeout(900)]
LONG = (
    "02-kill-launcher",
    "09-straggler",
    "14-rendezvous",
    "15-clock-and-limits",
    "20-random-kills",
)


@pytest.mark.parametrize("name", [name for name in DRILLS if name not in LONG])
@pytest.mark.rotate(5)
def test_it_ends_as_the_table_says(name, bench):
    verdict = do_drill(bench, name)
    assert (verdict.verdict, verdict.name) == ("pass", name), verdict.detail
    assert verdict.detail.endswith("no processes left")


def test_ten_kills_at_random_moments_lose_nothing_and_train_nothing_twice(bench):
    """The share of time spent training is measured but not checked, as it depends on the machine
    load.
    """
    ending = kill_often(bench, kills=10, steps=200)
    verdict = judge_ending("ten kills", ending, bench.end_left(), 0.0)
    assert verdict.verdict == "pass", verdict.detail
    assert verdict.final_loss_equal and verdict.extra["goodput"] > 0


def test_whoever_is_killed_while_asking_for_a_rank_does_not_end_the_warm_process(bench):
    path = str(bench.warm.socket_path)
    whole = (
        json.dumps(
            {"function": "no:where", "arguments": ["x"], "environment": {}, "folder": "/"}
        ).encode()
        + b"\n"
    )
    for said in (b"", b'{"argu', b"no json\n", whole):
        with socket.socket(socket.AF_UNIX) as client, Path(os.devnull).open("wb") as nothing:
            client.connect(path)
            if said:
                socket.send_fds(client, [said], [nothing.fileno(), nothing.fileno()])
    assert wait_until(lambda: not bench.left(), 30)
    assert psutil.Process(bench.warm.pid).status() != psutil.STATUS_ZOMBIE

"""What jobs ask for against what queues and disks give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runbook.planning import Check

QUEUES = {
    "queues": {"debug": {"min_nodes": 2, "max_nodes": 4, "max_walltime": "01:00:00"}, "free": {}}
}


@pytest.mark.parametrize(
    ("job", "fault"),
    [
        ({"nodes": 1, "walltime": "00:30:00"}, "Change jobs.training.nodes."),
        ({"nodes": 5, "walltime": "00:30:00"}, "Change jobs.training.nodes."),
        ({"nodes": 2, "walltime": "01:00:01"}, "Change jobs.training.walltime."),
        (
            {"nodes": 5, "walltime": "02:00:00"},
            "Change jobs.training.nodes and jobs.training.walltime.",
        ),
    ],
)
def test_a_job_the_queue_would_not_take_is_refused(
    refusal: Callable[..., str], job: dict[str, Any], fault: str
) -> None:
    sections = {
        "jobs": {"training": {"partition": "debug", **job}},
        "training": {"global_batch": 240},
    }
    text = refusal(sections, site=QUEUES)
    assert "04-training: queue: " in text
    assert (
        "in debug (at least 2, at most 4 nodes, at most 01:00:00). Rule: nodes and walltime are within"
        in text
    )
    assert fault in text


def test_a_job_within_the_limits_passes(verdicts: Callable[..., dict[str, Check]]) -> None:
    sections = {"jobs": {"training": {"partition": "debug", "nodes": 2, "walltime": "01:00:00"}}}
    assert verdicts(sections, site=QUEUES)["04-training: queue"].value == (
        "2 nodes for 01:00:00 in debug (at least 2, at most 4 nodes, at most 01:00:00)"
    )
    free = verdicts({"jobs": {"data": {"partition": "free"}}}, site=QUEUES)["02-data: queue"]
    assert free.value == "1 node for the queue's own time in free (no limit known)"


def test_a_queue_of_a_site_that_describes_none_stays_unknown(
    verdicts: Callable[..., dict[str, Check]],
) -> None:
    check = verdicts({"jobs": {"training": {"partition": "other"}}})["04-training: queue"]
    assert (check.verdict, check.value) == ("unknown", "the limits of other on here are not known")


@pytest.mark.parametrize(
    ("partition", "meant"),
    [
        ("debgu", "Did you mean debug?"),
        ("other", "There are debug, free."),
        ("free,debgu", "Did you mean debug?"),
    ],
)
def test_a_queue_that_the_site_does_not_name_is_warned_of(
    verdicts: Callable[..., dict[str, Check]], partition: str, meant: str
) -> None:
    check = verdicts({"jobs": {"training": {"partition": partition}}}, site=QUEUES)[
        "04-training: queue"
    ]
    missing = partition.rpartition(",")[2]
    assert (check.verdict, check.value) == (
        "warn",
        f"{missing} is not among the queues of params/sites/here.yaml",
    )
    assert check.remedy == f"{meant} Change jobs.training.partition, or add it below queues."


def test_of_several_queues_the_one_that_takes_the_job_counts(
    verdicts: Callable[..., dict[str, Check]],
) -> None:
    job = {"partition": "debug,free", "walltime": "02:00:00"}
    assert (
        verdicts({"jobs": {"training": job}}, site=QUEUES)["04-training: queue"].verdict == "pass"
    )

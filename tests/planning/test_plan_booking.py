"""What jobs request, compared with what queues and disks provide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from suite.messages import says

from runbook.core.checks import counted
from runbook.plan_file.diagnostics import Statement
from runbook.planning import Check
from runbook.planning.messages import PlanningMessage

LIMITS = ", ".join(
    (
        PlanningMessage.FEWEST_NODES.fill(nodes=2),
        PlanningMessage.MOST_NODES.fill(nodes=4),
        PlanningMessage.LONGEST_JOB.fill(walltime="01:00:00"),
    )
)
QUEUES = {
    "queues": {"debug": {"min_nodes": 2, "max_nodes": 4, "max_walltime": "01:00:00"}, "free": {}}
}


@pytest.mark.parametrize(
    ("job", "exceeded"),
    [
        ({"nodes": 1, "walltime": "00:30:00"}, ["nodes"]),
        ({"nodes": 5, "walltime": "00:30:00"}, ["nodes"]),
        ({"nodes": 2, "walltime": "01:00:01"}, ["walltime"]),
        ({"nodes": 5, "walltime": "02:00:00"}, ["nodes", "walltime"]),
    ],
)
def test_a_job_the_queue_would_not_take_is_refused(
    broken: Callable[..., tuple[Check, ...]], job: dict[str, Any], exceeded: list[str]
) -> None:
    sections = {
        "jobs": {"training": {"partition": "debug", **job}},
        "training": {"global_batch": 240},
    }
    (check,) = broken(sections, site=QUEUES)
    keys = [f"jobs.training.{key}" for key in exceeded]
    assert (check.name, check.keys) == ("04-training: queue", tuple(keys))
    assert says(
        check.value,
        PlanningMessage.JOB_IN_QUEUE,
        nodes=counted(job["nodes"], "node"),
        time_limit=job["walltime"],
        partition="debug",
        limits=LIMITS,
    )
    assert check.rule == PlanningMessage.QUEUE_RULE.fill()
    assert check.remedy == PlanningMessage.CHANGE_KEYS.fill(keys=" and ".join(keys))


def test_a_job_within_the_limits_passes(verdicts: Callable[..., dict[str, Check]]) -> None:
    sections = {"jobs": {"training": {"partition": "debug", "nodes": 2, "walltime": "01:00:00"}}}
    debug = verdicts(sections, site=QUEUES)["04-training: queue"]
    assert debug.value == PlanningMessage.JOB_IN_QUEUE.fill(
        nodes="2 nodes", time_limit="01:00:00", partition="debug", limits=LIMITS
    )
    free = verdicts({"jobs": {"data": {"partition": "free"}}}, site=QUEUES)["02-data: queue"]
    assert free.value == PlanningMessage.JOB_IN_QUEUE.fill(
        nodes="1 node",
        time_limit=PlanningMessage.QUEUE_TIME.fill(),
        partition="free",
        limits=PlanningMessage.NO_LIMIT.fill(),
    )


def test_a_queue_of_a_site_that_describes_none_stays_unknown(
    verdicts: Callable[..., dict[str, Check]],
) -> None:
    check = verdicts({"jobs": {"training": {"partition": "other"}}})["04-training: queue"]
    assert check.verdict == "unknown"
    assert check.value == PlanningMessage.QUEUES_NOT_KNOWN.fill(partition="other", site="here")


@pytest.mark.parametrize(
    ("partition", "meant"),
    [
        ("debgu", PlanningMessage.DID_YOU_MEAN.of(name="debug")),
        ("other", PlanningMessage.THERE_ARE.of(names="debug, free")),
        ("free,debgu", PlanningMessage.DID_YOU_MEAN.of(name="debug")),
    ],
)
def test_a_queue_that_the_site_does_not_name_is_warned_of(
    verdicts: Callable[..., dict[str, Check]], partition: str, meant: Statement
) -> None:
    check = verdicts({"jobs": {"training": {"partition": partition}}}, site=QUEUES)[
        "04-training: queue"
    ]
    missing = partition.rpartition(",")[2]
    assert check.verdict == "warn"
    assert check.value == PlanningMessage.QUEUE_NOT_LISTED.fill(queue=missing, site="here")
    assert check.remedy == PlanningMessage.NAME_A_QUEUE.fill(suggestion=meant, section="training")


def test_of_several_queues_the_one_that_takes_the_job_counts(
    verdicts: Callable[..., dict[str, Check]],
) -> None:
    job = {"partition": "debug,free", "walltime": "02:00:00"}
    assert (
        verdicts({"jobs": {"training": job}}, site=QUEUES)["04-training: queue"].verdict == "pass"
    )

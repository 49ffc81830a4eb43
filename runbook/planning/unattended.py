"""Chains of jobs and spare nodes: how they affect the plan, and why they may be impossible."""

from __future__ import annotations

import math
from collections.abc import Iterator

from runbook.core.checks import Check, counted
from runbook.core.units import show_duration
from runbook.params import Settings
from runbook.plan_file.phase_names import FULL
from runbook.planning.cost.long_training import LongTraining
from runbook.planning.messages import PlanningMessage

CHAIN = "jobs.training.chain"
SPARES = "jobs.training.spares"


def check_unattended(settings: Settings, endurance: LongTraining) -> Iterator[Check]:
    """Yield a check for the chain and for the spare nodes, if the run requests them."""
    job = settings.job(FULL)
    if job.chain > 1:
        yield _chain_check(settings, endurance, job.chain)
    if job.spares:
        yield _spares_check(settings, job.nodes, job.spares)


def _chain_check(settings: Settings, endurance: LongTraining, chain: int) -> Check:
    name = f"{FULL}: chain"
    obstacle = _obstacle(settings)
    if obstacle:
        return Check(name, "fail", f"{CHAIN}={chain}", f"{obstacle}. Set {CHAIN} to 1")
    value = f"{counted(chain, 'job')} queued at once"
    if endurance.walltime_seconds:
        value += f", of at most {show_duration(endurance.walltime_seconds)} each"
    rule = "as many jobs as training needs, plus one for each failure that a restart cannot fix"
    needed = endurance.jobs
    if needed is None:
        return Check(name, "pass", value, rule)
    hours_between = endurance.hours_between_failures
    if hours_between is None or endurance.spares:
        value += PlanningMessage.CHAIN_WITHOUT_FAILURE.fill(jobs=counted(needed, "job"))
    else:
        failures_per_job = endurance.walltime_seconds / 3600 / hours_between
        without_failure = needed
        needed = jobs_with_failures(needed, failures_per_job)
        value += PlanningMessage.CHAIN_WITH_FAILURES.fill(
            without_failure=counted(without_failure, "job"),
            jobs=needed,
        )

    return Check(name, "warn" if chain < needed else "pass", value, rule)


def jobs_with_failures(jobs: int, failures_per_job: float) -> int:
    """Return how many jobs a training run needs if every failure ends a job.

    Failures are random. With `failures_per_job` failures per full walltime, each job completes (1 -
    exp(-f)) / f of its walltime on average.

    >>> jobs_with_failures(30, 0.3), jobs_with_failures(30, 0.0)
    (35, 30)
    """
    if not failures_per_job:
        return jobs
    mean_share = -math.expm1(-failures_per_job) / failures_per_job
    return math.ceil(jobs / mean_share)


def _spares_check(settings: Settings, nodes: int, spares: int) -> Check:
    name = f"{FULL}: spare nodes"
    obstacle = _obstacle(settings)
    if obstacle:
        return Check(name, "fail", f"{SPARES}={spares}", f"{obstacle}. Set {SPARES} to 0")
    total = nodes + spares
    value = (
        f"{counted(nodes, 'node')} of {total} train; each hour costs {spares / nodes:.1%} more "
        "device-hours than the plan counts"
    )
    available = settings.site.hardware.nodes
    rule = "nodes + spares are at most the nodes of the site"
    if available and total > available:
        return Check(name, "fail", f"{total} of {available} nodes", f"{rule}. Lower {SPARES}")
    return Check(name, "pass", value, rule)


def _obstacle(settings: Settings) -> str:
    """Return why a job cannot continue automatically here, or an empty string if it can."""
    if settings.site.scheduler == "local":
        return f"site {settings.site.site} has no queue where a job could wait or request nodes"
    if settings.run.training.framework == "nemo":
        return "the progress of nemo is unknown, so a loop of restarts would never end"
    return ""

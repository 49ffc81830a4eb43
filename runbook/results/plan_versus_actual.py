"""Compares planned with measured values for a training run."""

import math
from collections.abc import Mapping

from runbook.core import quantities
from runbook.core.table import Table
from runbook.plan_file.phase_names import FULL
from runbook.planning.cost.memory import process_bytes
from runbook.planning.make_plan import Plan
from runbook.planning.useful_time import useful_time
from runbook.results.messages import ResultMessage
from runbook.results.metrics import Summary
from runbook.results.wall_time import WallTime

Numbers = Mapping[str, float | None]
"""Values by name. Each name includes the unit. A value is None if it is unknown."""


def plan_versus_actual(planned: Numbers, actual: Numbers, remarks: Mapping[str, str] = {}) -> Table:
    """Return a table with each planned value next to the measured value.

    If a name is only on one side, the other side is left empty, to avoid silently dropping a value.

    >>> plan_versus_actual({"step (s)": 2.0, "memory (B)": 5}, {"step (s)": 2.5}).rows[0]
    {'what': 'step (s)', 'planned': 2.0, 'actual': 2.5, 'ratio': 1.25, 'remark': ''}
    """
    rows = []
    for name in dict.fromkeys((*planned, *actual)):
        planned_value = planned.get(name)
        actual_value = actual.get(name)
        ratio = None
        if planned_value and actual_value is not None:
            ratio = actual_value / planned_value
        if actual_value is None:
            missing_side = "not measured"
        elif planned_value is None:
            missing_side = "not planned"
        else:
            missing_side = ""

        rows.append(
            {
                "what": name,
                "planned": planned_value,
                "actual": actual_value,
                "ratio": ratio,
                "remark": remarks.get(name) or missing_side,
            }
        )

    title = ResultMessage.PLAN_VERSUS_ACTUAL.fill()
    return Table(rows, title, source="plan.json, metrics.jsonl, events.jsonl")


def planned_numbers(plan: Plan, phase: str) -> dict[str, float | None]:
    """Return the planned values for a phase from plan.json, named as in `actual_numbers`."""
    spec = plan.phases[phase]
    time = plan.time[phase]
    return {
        "iterations": spec.duration.iterations,
        "processes": spec.parallel.world_size,
        "global batch (sequences)": spec.batch.global_,
        "tokens consumed (tokens)": spec.duration.tokens,
        quantities.STEP_TIME: time.seconds_per_iteration,
        quantities.THROUGHPUT: time.tokens_per_second,
        quantities.SPEED: time.tflops_per_device,
        quantities.FIRST_LOSS: math.log(spec.model.shape.vocabulary),
        quantities.PROCESS_MEMORY: process_bytes(plan.memory[phase]) or None,
        "wall time (s)": time.seconds,
        quantities.USEFUL_TIME: _planned_useful_time(plan, phase),
    }


def _planned_useful_time(plan: Plan, phase: str) -> float | None:
    """Return what percentage of the time is expected to be useful.

    Return None if no failure rate is known.
    """
    expectation = useful_time(plan) if phase == FULL else None
    if expectation is None:
        return None
    return 100 * expectation.of_training_nodes


def actual_numbers(summary: Summary, account: WallTime | None = None) -> dict[str, float | None]:
    """Return the measured values for the right-hand side of `plan_versus_actual`."""
    numbers: dict[str, float | None] = {
        "iterations": summary.last_iteration,
        "processes": summary.world_size,
        "global batch (sequences)": summary.global_batch,
        "tokens consumed (tokens)": summary.consumed_tokens,
        quantities.STEP_TIME: summary.seconds_per_iteration,
        quantities.THROUGHPUT: summary.tokens_per_second,
        quantities.SPEED: summary.tflops_per_device,
        quantities.FIRST_LOSS: summary.first_loss,
        quantities.PROCESS_MEMORY: summary.memory_bytes or None,
    }
    if account is not None:
        numbers["wall time (s)"] = account.wall_seconds
    return numbers

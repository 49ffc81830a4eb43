"""The plan's promises under the names of the measured numbers."""

from __future__ import annotations

from typing import Any

from runbook.analysis import tables
from runbook.analysis.table import Table
from runbook.phases.trained import Trained


def plan_versus_actual(one: Trained) -> Table:
    """The plan's numbers of one training phase beside the measured ones."""
    planned = tables.spec_promises(one.spec) | promises(one)
    return tables.plan_versus_actual(planned, tables.actual_numbers(one.summary, one.parts))


def promises(one: Trained) -> dict[str, Any]:
    """The plan's estimates under the names of the measured numbers."""
    names = {
        "seconds_per_iteration": "step time (s/iteration)",
        "tokens_per_second": "throughput (tokens/s)",
        "seconds": "wall time (s)",
        "first_loss": "first loss (nat/token)",
    }
    return {label: one.planned[key] for key, label in names.items() if one.planned.get(key) is not None}

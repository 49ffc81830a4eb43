"""Results: what a run's files say, set beside the plan, beside what others published, and beside other runs."""

from __future__ import annotations

from runbook.analysis.gates import learning_check, resume_check, smoke_gate
from runbook.analysis.history import Evaluation, History, Step, read_events, read_metrics, read_validation
from runbook.analysis.metrics import Summary, goodput, summarize
from runbook.analysis.table import Table
from runbook.analysis.tables import (
    actual_numbers,
    goodput_table,
    numbers_table,
    plan_versus_actual,
    published_table,
    shape_from_spec,
    spec_promises,
    speed_table,
)

__all__ = [
    "Evaluation",
    "History",
    "Step",
    "Summary",
    "Table",
    "actual_numbers",
    "goodput",
    "goodput_table",
    "learning_check",
    "numbers_table",
    "plan_versus_actual",
    "published_table",
    "read_events",
    "read_metrics",
    "read_validation",
    "resume_check",
    "shape_from_spec",
    "smoke_gate",
    "spec_promises",
    "speed_table",
    "summarize",
]

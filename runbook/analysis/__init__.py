"""Results: what a run's files say, set beside the plan, beside what others published, and beside other runs."""

from __future__ import annotations

from runbook.analysis.compare import Comparison, RunFacts, Tolerance, compare, read_run
from runbook.analysis.cost import Rates, cost_table, projection_table
from runbook.analysis.documents import azure_checkpoint_table, lumi_table, results_table
from runbook.analysis.gates import learning_check, resume_check, smoke_gate
from runbook.analysis.history import Evaluation, History, Step, read_events, read_metrics, read_validation
from runbook.analysis.metrics import Summary, goodput, summarize
from runbook.analysis.scaling import ScalePoint, scaling_table
from runbook.analysis.table import Table
from runbook.analysis.tables import (
    actual_numbers,
    goodput_table,
    numbers_table,
    plan_versus_actual,
    planned_numbers,
    published_table,
    seconds_band,
    shape_from_spec,
    spec_promises,
    speed_table,
)

__all__ = [
    "Comparison",
    "Evaluation",
    "History",
    "Rates",
    "RunFacts",
    "ScalePoint",
    "Step",
    "Summary",
    "Table",
    "Tolerance",
    "actual_numbers",
    "azure_checkpoint_table",
    "compare",
    "cost_table",
    "goodput",
    "goodput_table",
    "learning_check",
    "lumi_table",
    "numbers_table",
    "plan_versus_actual",
    "planned_numbers",
    "projection_table",
    "published_table",
    "read_events",
    "read_metrics",
    "read_run",
    "read_validation",
    "results_table",
    "resume_check",
    "scaling_table",
    "seconds_band",
    "shape_from_spec",
    "smoke_gate",
    "spec_promises",
    "speed_table",
    "summarize",
]

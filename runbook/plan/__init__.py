"""Everything that follows from what a person chose: sizes, layout, memory, time, and the rules they must keep."""

from runbook.plan.build import Plan, make_plan
from runbook.plan.calibration import Calibration, Measured
from runbook.plan.checks import Check
from runbook.plan.choices import FULL, SMOKE
from runbook.plan.data import held_out_split
from runbook.plan.machine import Machine
from runbook.plan.table import Table
from runbook.plan.text import tables

__all__ = [
    "FULL",
    "SMOKE",
    "Calibration",
    "Check",
    "Machine",
    "Measured",
    "Plan",
    "Table",
    "held_out_split",
    "make_plan",
    "tables",
]

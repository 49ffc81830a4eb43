"""Everything that follows from what a person chose: sizes, layout, memory, time, and the rules they must keep."""

from runbook.core.checks import Check
from runbook.core.table import Table
from runbook.planning.cost.speed import Calibration, Calibrations
from runbook.planning.layout import FULL, SMOKE, Machine
from runbook.planning.plan import make_plan
from runbook.planning.plan_record import Plan
from runbook.planning.plan_tables import tables
from runbook.planning.token_files import held_out_split

__all__ = [
    "FULL",
    "SMOKE",
    "Calibration",
    "Calibrations",
    "Check",
    "Machine",
    "Plan",
    "Table",
    "held_out_split",
    "make_plan",
    "tables",
]

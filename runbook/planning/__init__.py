"""Computes sizes, layout, memory, time and cost from the run's choices, and checks the rules."""

from runbook.core.checks import Check as Check
from runbook.plan_file.phase_names import FULL as FULL
from runbook.plan_file.phase_names import SMOKE as SMOKE
from runbook.planning.choice import Machine as Machine
from runbook.planning.cost.calibration import Calibration as Calibration
from runbook.planning.cost.calibration import Calibrations as Calibrations
from runbook.planning.make_plan import Plan as Plan
from runbook.planning.make_plan import make_plan as make_plan

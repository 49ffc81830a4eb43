"""What smoke tests measured of a machine: kept in each run's folder, found again for later plans."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from runbook.analysis.history import History
from runbook.errors import PlanError, RecordError
from runbook.params import Settings
from runbook.phases import machine
from runbook.phases.plan_file import read_plan_file
from runbook.plan import SMOKE, Calibration, Measured, Plan, make_plan
from runbook.plan.calibration import FEWEST, calibrate, engine_of, read
from runbook.plan.choices import smoke_choice
from runbook.records.files import write_text

FILE = "smoke/calibration.json"


def keep(settings: Settings, plan: Plan, folder: Path, history: History) -> Calibration | None:
    """Write what the smoke test measured against its plan; None where too few steps were timed or nothing planned."""
    content = plan.as_dict()
    planned = content["time"][SMOKE]["seconds_per_iteration"]
    seconds = [step.seconds for step in history.steps]
    if planned is None or len(seconds) <= FEWEST:
        return None
    used = content["calibration"][SMOKE]
    plain = planned / (used["factor"] if used else 1)
    try:
        factor = calibrate(seconds, plain)
    except PlanError:
        return None
    spec = content["phases"][SMOKE]
    found = Calibration(
        factor=float(f"{factor:.4g}"),
        measured_seconds=float(f"{factor * plain:.4g}"),
        predicted_seconds=float(f"{plain:.4g}"),
        steps=len(seconds) - 1,
        machine=machine.identity(settings.site),
        engine=engine_of(smoke_choice(settings)),
        precision=spec["precision"]["format"],
        operations=content["flops"][SMOKE]["per_iteration"][content["flops"][SMOKE]["convention"]],
        run=settings.name,
        measured=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    write_text(folder / FILE, json.dumps(found.as_dict(), indent=1) + "\n")
    return found


def known(settings: Settings, runs: Path) -> Measured:
    """What the smoke tests of all runs in a folder measured; a file that cannot be read is passed over."""
    found = []
    for path in sorted(runs.glob(f"*/{FILE}")):
        try:
            found.append(read(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, PlanError):
            continue
    return Measured(machine.identity(settings.site), tuple(found))


def for_run(settings: Settings, folder: Path) -> Measured:
    """What this run's plan was made with, so that it stays the same; for a run without a plan, all that is known."""
    try:
        stored: dict[str, Any] = read_plan_file(folder).get("calibration", {})
        kept = tuple(read(one) for one in stored.values() if one)
    except (RecordError, PlanError, AttributeError):
        return known(settings, folder.parent)
    return Measured(machine.identity(settings.site), kept)


def corrected(settings: Settings, folder: Path) -> dict[str, Any]:
    """The run's plan once more, by what is measured now; nothing is written."""
    measured = known(settings, folder.parent)
    return make_plan(settings, machine.measure(settings.site), measured).as_dict()

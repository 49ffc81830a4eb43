"""The LUMI document's results table for a run and its variants: filled in as they are run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runbook import params
from runbook.analysis.documents import Measured, results_table
from runbook.analysis.run_row import run_row
from runbook.analysis.scaling import ScalePoint, scaling_table
from runbook.analysis.table import Table
from runbook.errors import PlanError
from runbook.params import Settings
from runbook.phases import machine, trained
from runbook.phases.plan_file import read_plan_file
from runbook.plan import make_plan
from runbook.plan.choices import full_choice

FULL = "04-training"


def names_of(run: str) -> list[str]:
    """The run's own variants, or the run itself where it has none."""
    return [f"{run}:{variant}" for variant in params.variant_names(run)] or [run]


def table(names: Sequence[str], runs: Path) -> Table:
    """One row for each name (a run, `RUN:VARIANT`); what was not run stands there as never measured."""
    settings = [params.load(name) for name in names]
    rows = [_row(one, runs) for one in settings]
    hardware = settings[0].site.hardware
    return results_table(
        rows,
        device=hardware.device,
        precision=str(settings[0].run.training.precision),
        device_bytes=hardware.device_memory,
        source="metrics.jsonl of each run",
    )


def scaling(names: Sequence[str], runs: Path) -> Table:
    """Efficiency over the numbers of devices that were measured."""
    points = [
        ScalePoint(row.name, row.devices, row.samples_per_second)
        for row in (_row(params.load(name), runs) for name in names)
        if row.samples_per_second
    ]
    return scaling_table(points)


def _row(settings: Settings, runs: Path) -> Measured:
    folder = runs / settings.name
    per_node = settings.site.hardware.devices_per_node
    if (folder / "plan.json").exists():
        plan = read_plan_file(folder)
        spec = plan["phases"][FULL]
        metrics = folder / spec["log"]["metrics"]
        if not metrics.exists():
            return run_row(spec, None, devices_per_node=per_node, name=settings.name, source=str(folder / "plan.json"))
        one = trained.read_folder(folder, plan, FULL)
        lines = f"{metrics}:{one.history.steps[0].line}-{one.history.steps[-1].line}"
        return run_row(spec, one.summary, devices_per_node=per_node, name=settings.name, source=lines)
    try:
        plan = make_plan(settings, machine.measure(settings.site)).as_dict()
    except PlanError as error:
        return _refused(settings, str(error))
    return run_row(plan["phases"][FULL], None, devices_per_node=per_node, name=settings.name, source="not run")


def _refused(settings: Settings, text: str) -> Measured:
    """A variant that the plan would not start, with the first reason."""
    choice = full_choice(settings)
    devices = choice.nodes * choice.devices_per_node
    reasons = [line.strip().partition(". ")[2].partition(" Rule:")[0] for line in text.splitlines()[1:]]
    return Measured(
        model=choice.model.label,
        shape=choice.shape,
        nodes=choice.nodes,
        devices=devices,
        pipeline=choice.pipeline,
        tensor=choice.tensor,
        data=devices // (choice.pipeline * choice.tensor),
        zero_stage=choice.zero_stage,
        samples_per_second=None,
        name=settings.name,
        refused=next((reason for reason in reasons if reason), "its values do not fit together"),
        source="not run",
    )

"""The LUMI document's results table for a run and its variants: filled in as they are run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runbook import params
from runbook.analysis.documents import Measured, results_table
from runbook.analysis.run_row import run_row
from runbook.analysis.scaling import ScalePoint, scaling_table
from runbook.analysis.table import Table
from runbook.display import Table as shown_table
from runbook.errors import PlanError
from runbook.params import Settings
from runbook.phases import machine, trained
from runbook.phases.plan_file import read_plan_file
from runbook.plan import make_plan
from runbook.plan.choices import full_choice
from runbook.records.files import write_text

FULL = "04-training"


def of_run(run: str, project: Path | None = None) -> list[Settings]:
    """The run named, and each of its variants."""
    names = [run, *(f"{run}:{variant}" for variant in params.variant_names(run, project))]
    return [params.load(name, project=project) for name in names]


def around(settings: Settings) -> list[Settings]:
    """A run that is open, as it was bound, and its siblings: the run of the same name and its variants."""
    run = settings.run.run
    if run not in params.run_names(settings.project):
        return [settings]
    others = [one for one in of_run(run, settings.project) if one.name != settings.name]
    return [settings, *others]


def table(runs_of: Sequence[Settings], runs: Path) -> Table:
    """One row for each; what was not run stands there as never measured."""
    hardware = runs_of[0].site.hardware
    return results_table(
        [_row(one, runs) for one in runs_of],
        device=hardware.device,
        precision=str(runs_of[0].run.training.precision),
        device_bytes=hardware.device_memory,
        source="metrics.jsonl of each run",
    )


def scaling(runs_of: Sequence[Settings], runs: Path) -> Table:
    """Efficiency over the numbers of devices that were measured."""
    points = [
        ScalePoint(row.name, row.devices, row.samples_per_second)
        for row in (_row(one, runs) for one in runs_of)
        if row.samples_per_second
    ]
    return scaling_table(points)


def show(runs_of: Sequence[Settings], runs: Path, name: str) -> str:
    """The table for a terminal; kept as NAME.variants.csv beside the run folders."""
    found = table(runs_of, runs)
    path = runs / f"{Path(name).stem}.variants.csv"
    write_text(path, found.to_csv())
    shown = [{key: value for key, value in row.items() if key != "source"} for row in found]
    return shown_table(shown, found.title, (*found.notes, f"as CSV: {path}")).as_text()


def done(runs_of: Sequence[Settings], runs: Path) -> list[Path]:
    """The folders of those that were trained."""
    folders = [runs / one.name for one in runs_of]
    return [folder for folder in folders if (folder / "metrics.jsonl").exists()]


def _row(settings: Settings, runs: Path) -> Measured:
    folder = runs / settings.name
    per_node = settings.site.hardware.devices_per_node
    if (folder / "plan.json").exists():
        plan = read_plan_file(folder)
        spec = plan["phases"][FULL]
        metrics = folder / spec["log"]["metrics"]
        if not metrics.exists():
            where = f"{settings.name}/plan.json"
            return run_row(spec, None, devices_per_node=per_node, name=settings.name, source=where)
        one = trained.read_folder(folder, plan, FULL)
        lines = f"{settings.name}/{one.history.source}:{one.history.steps[0].line}-{one.history.steps[-1].line}"
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

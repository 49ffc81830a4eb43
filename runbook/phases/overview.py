"""A run before it is run, for the command line: `plan`, `check`, `why`, `render`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runbook import params
from runbook.display import CheckTable, Table
from runbook.params import Settings
from runbook.params.catalogue import SchedulerKind
from runbook.params.stage import require, with_placeholders
from runbook.phases import calibrations, machine
from runbook.phases.campaign import runs_folder
from runbook.phases.plan_file import plan_file, write_plan_file
from runbook.plan import Plan, make_plan, text
from runbook.plan.volumes import site_tables
from runbook.plan.what_if import what_if
from runbook.plan.what_if_text import what_if_table
from runbook.render import (
    PACKAGE,
    JobFolder,
    RenderedJob,
    asks_for_queue,
    data_tasks,
    preparation_files,
    render_fleet,
    render_job,
    render_preparation,
    render_task,
    write_job,
)
from runbook.render.folder import write_whole


def make(
    run: str, set_words: Sequence[str], *, portable: bool = False, measured: bool = False
) -> tuple[Settings, Plan]:
    """A run's settings and plan, without a folder; `portable` also refuses what papermill would read otherwise.

    `measured` lets the smoke tests that were run on this machine correct the step times.
    """
    settings = (params.check if portable else params.load)(run, set_words=set_words)
    found = calibrations.known(settings, runs_folder(settings.project)) if measured else None
    return settings, make_plan(settings, machine.measure(settings.site), found)


def rendered_jobs(settings: Settings, plan: Plan, folder: Path) -> dict[str, RenderedJob]:
    """The job of each training phase, as it would be submitted."""
    content = plan_file(settings, plan)
    return {phase: render_job(settings, content, phase, folder, python=sys.executable) for phase in content["phases"]}


def render_all(run: str, set_words: Sequence[str], out: Path, *, placeholders: bool = False) -> list[Path]:
    """Write what would be submitted into `out`; returns the files.

    A required value that was not given is refused, or with `placeholders` marked in capitals.
    """
    settings, plan = make(run, set_words)
    if placeholders:
        settings = with_placeholders(settings)
        plan = make_plan(settings, machine.measure(settings.site))
    require(settings)
    jobs = rendered_jobs(settings, plan, runs_folder(settings.project) / settings.name)
    write_plan_file(settings, plan, out)
    for phase, job in jobs.items():
        write_job(JobFolder(out / phase), job)
    if settings.site.scheduler is not SchedulerKind.LOCAL:
        text = render_preparation(settings, PACKAGE)
        write_whole(out / "01-environment" / "prepare.sh", text, mode=0o755)
        for name, content in preparation_files(settings).items():
            write_whole(out / "01-environment" / name, content)
    if asks_for_queue(settings, "02-data"):
        for task in data_tasks(settings, sys.executable):
            write_job(JobFolder(out / task.folder("02-data")), render_task(settings, "02-data", task, PACKAGE))
    if fleet := render_fleet(settings):
        write_whole(out / "01-environment" / "fleet.sh", fleet, mode=0o755)
    return [path for path in sorted(out.rglob("*")) if path.is_file()]


def plan_text(settings: Settings, plan: Plan) -> str:
    """The whole plan for a terminal."""
    title = f"{settings.name} on {settings.site.site}: {settings.site.title}"
    measured = calibrations.known(settings, runs_folder(settings.project))
    others = what_if_table(what_if(settings, machine.measure(settings.site), measured), settings.site.currency)
    shown = [
        Table(table.rows, table.title, table.note.splitlines()).as_text()
        for table in (
            *text.tables(plan.as_dict()),
            *site_tables(settings.site, plan.as_dict(), settings.run.training.precision),
            others,
        )
    ]
    end = f"The scripts, word for word: runbook render {settings.run.run} --out DIR"
    return "\n\n".join([title, *rehearsal_tables(settings), *shown, end])


def rehearsal_tables(settings: Settings) -> list[str]:
    """What the site changed of another site's run file, where it did."""
    rows = [
        {"key": key, "here": settings.value(key), "because": why} for key, why in sorted(settings.rehearsed().items())
    ]
    title = f"Changed because the run file was written for another site than {settings.site.site}"
    return [str(Table(rows, title).as_text())] if rows else []


def checks_text(plan: Plan) -> str:
    """Every rule the plan was held to."""
    return str(CheckTable(plan.checks).as_text())


def why_text(run: str, key: str, set_words: Sequence[str]) -> str:
    """A value's chain of origins, and what the plan derives from it."""
    settings, plan = make(run, set_words)
    explanation = params.why(settings, key)
    derived = _derived(explanation.key, plan.as_dict())
    return explanation.text() + ("\n  the plan makes of it: " + "; ".join(derived) if derived else "")


def _derived(key: str, plan: Mapping[str, Any]) -> list[str]:
    spec = plan["phases"]["03-smoke-test" if "smoke" in key else "04-training"]
    model, parallel, duration = spec["model"], spec["parallel"], spec["duration"]
    name = key.rpartition(".")[2]
    if name == "model":
        return [f"{model['parameters']:,} parameters", f"{model['layers']} layers x {model['hidden']}"]
    if key.startswith("parallel.") or name in ("nodes", "devices_per_node", "tensor", "pipeline"):
        return [f"world size {parallel['world_size']}", f"{parallel['data']} data-parallel copies"]
    if name in ("iterations", "samples", "tokens", "global_batch", "micro_batch", "sequence_length"):
        return [
            f"{duration['iterations']:,} iterations, {duration['samples']:,} sequences, {duration['tokens']:,} tokens",
            f"{spec['batch']['num_microbatches']} micro-batches a step on each copy",
        ]
    if name.startswith(("warmup", "decay")):
        rate = spec["learning_rate"]
        return [f"warm-up over {rate['warmup_samples']:,} sequences, decay over {rate['decay_samples']:,}"]
    return []

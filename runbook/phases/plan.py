"""00-plan: what will be trained, on what, for how long - shown and written before anything is booked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.analysis import figures, plan_figures
from runbook.display import show_figure, show_table, show_text
from runbook.phases import calibrations, choosing, closing, machine, overview
from runbook.phases import campaign as campaigns
from runbook.phases.campaign import Campaign
from runbook.plan import FULL, SMOKE, Table, text
from runbook.plan.data_text import data_table
from runbook.plan.summary_text import summary_table
from runbook.plan.volumes import site_tables
from runbook.plan.what_if import what_if
from runbook.plan.what_if_text import what_if_table

PHASE = "00-plan"


def bind(namespace: Mapping[str, Any]) -> Campaign:
    """Check the parameters, compute the plan, open the record, and show what one decides by."""
    campaign = campaigns.bind(PHASE, namespace)
    show(summary_table(campaign.plan.as_dict()))
    return campaign


def choose(campaign: Campaign) -> None:
    """The values of the run as a form that shows what each change does, and writes a run file."""
    choosing.show(campaign.settings)


def show_sizes(campaign: Campaign) -> None:
    """Parameters part by part, and what the labels should have said."""
    show(text.sizes_table(campaign.plan.as_dict()))


def show_layout(campaign: Campaign) -> None:
    """The layout in one table, and every rule it was held to."""
    show(text.layout_table(campaign.plan.as_dict()))
    campaign.check(campaign.plan.checks)


def show_memory(campaign: Campaign) -> None:
    """Bytes by part on the fullest device, against what it has."""
    plan = campaign.plan.as_dict()
    show(text.memory_table(plan))
    figure = plan_figures.memory_figure(plan, {SMOKE: "smoke test", FULL: "training"})
    show_figure(figures.as_svg(figure).text, "Memory of one rank of the fullest stage; its numbers are in the table.")


def show_time(campaign: Campaign) -> None:
    """Operations, seconds, checkpoints; an estimate names its basis."""
    plan = campaign.plan.as_dict()
    show(text.time_table(plan))
    if parts := plan["time"][FULL]["parts"]:
        show(text.parts_table(plan))
        figure = plan_figures.step_figure(parts, text.PART_WORDS)
        show_figure(
            figures.as_svg(figure).text, "Where the time of a training step goes; its numbers are in the table."
        )
    show(text.endurance_table(plan))
    show(text.flops_table(plan))


def show_storage(campaign: Campaign) -> None:
    """Bytes of checkpoints and data, and what preparing the text takes, our way and the documents'."""
    plan = campaign.plan.as_dict()
    settings = campaign.settings
    beside = site_tables(settings.site, plan, settings.run.training.precision)
    for table in (text.storage_table(plan), *beside, data_table(plan), text.places_table(plan)):
        show(table)


def show_what_if(campaign: Campaign) -> None:
    """The training with one thing changed, and the best layout that a search finds."""
    settings = campaign.settings
    measured = calibrations.for_run(settings, campaign.folder)
    found = what_if(settings, machine.measure(settings.site), measured)
    show(what_if_table(found, settings.site.currency))


def show_scripts(campaign: Campaign) -> None:
    """The job scripts word for word."""
    for phase, job in overview.rendered_jobs(campaign.settings, campaign.plan, campaign.folder).items():
        show_text(f"jobs/{phase}/job.sh\n\n{job.script}")


def finish(campaign: Campaign) -> None:
    """Write the record and mark the phase done."""
    for key, value in promises(campaign.plan.as_dict()).items():
        campaign.session.result(key, value)
    closing.finish(campaign, [campaign.folder / "run.yaml", campaign.folder / "plan.json"])


def promises(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan in a few numbers for each training phase; the whole of it is plan.json."""
    numbers: dict[str, Any] = {}
    for (phase, spec), label in zip(plan["phases"].items(), plan["labels"], strict=False):
        numbers |= {
            f"{phase}: model": label["text"],
            f"{phase}: parameters": spec["model"]["parameters"],
            f"{phase}: tokens": spec["duration"]["tokens"],
            f"{phase}: expected seconds": plan["time"][phase]["seconds"],
            f"{phase}: memory of a node (B)": plan["memory"][phase]["least_bytes"],
            f"{phase}: checkpoint (B)": plan["checkpoint"][phase]["checkpoint_bytes"],
        }
    return numbers


def show(table: Table) -> None:
    """A table of the plan with its note."""
    show_table(table.rows, title=table.title, notes=table.note.splitlines())

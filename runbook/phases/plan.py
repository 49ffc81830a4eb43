"""00-plan: what will be trained, on what, for how long - shown and written before anything is booked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runbook.display import show_table, show_text
from runbook.phases import campaign as campaigns
from runbook.phases import closing, overview
from runbook.phases.campaign import Campaign
from runbook.plan import text

PHASE = "00-plan"


def bind(namespace: Mapping[str, Any]) -> Campaign:
    """Check the parameters, compute the plan and open the record."""
    return campaigns.bind(PHASE, namespace)


def show_sizes(campaign: Campaign) -> None:
    """Parameters part by part, and what the labels should have said."""
    show(text.sizes_table(campaign.plan.as_dict()))


def show_layout(campaign: Campaign) -> None:
    """The layout in one table, and every rule it was held to."""
    show(text.layout_table(campaign.plan.as_dict()))
    campaign.check(campaign.plan.checks)


def show_memory(campaign: Campaign) -> None:
    """Bytes by part on the fullest device, against what it has."""
    show(text.memory_table(campaign.plan.as_dict()))


def show_time(campaign: Campaign) -> None:
    """Operations, seconds, checkpoints; an estimate names its basis."""
    plan = campaign.plan.as_dict()
    for table in (text.time_table(plan), text.flops_table(plan), text.storage_table(plan)):
        show(table)


def show_scripts(campaign: Campaign) -> None:
    """The job scripts word for word."""
    for phase, job in overview.rendered_jobs(campaign.settings, campaign.plan, campaign.folder).items():
        show_text(f"jobs/{phase}/job.sh\n\n{job.script}")


def finish(campaign: Campaign) -> None:
    """Write the record and mark the phase done."""
    plan = campaign.plan.as_dict()
    for key in ("labels", "memory", "flops", "checkpoint", "time"):
        campaign.session.result(key, plan[key])
    closing.finish(campaign, [campaign.folder / "run.yaml", campaign.folder / "plan.json"])


def show(table: text.Table) -> None:
    """A table of the plan with its note."""
    show_table(table.rows, title=table.title, notes=[table.note] if table.note else [])

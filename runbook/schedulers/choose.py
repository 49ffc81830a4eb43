"""The adapter a site's jobs go through."""

from __future__ import annotations

from runbook.errors import JobError
from runbook.params.catalogue import SchedulerKind, Site
from runbook.schedulers.base import Scheduler
from runbook.schedulers.local import LocalScheduler


def get_scheduler(site: Site) -> Scheduler:
    """The scheduler of a site; `JobError` for a kind this version cannot submit to."""
    if site.scheduler is SchedulerKind.LOCAL:
        return LocalScheduler()
    raise JobError(
        f"site {site.site} submits to {site.scheduler}, which this version cannot do yet. Run on this machine instead "
        "(--set site=local), or submit the scripts of `runbook render` yourself."
    )

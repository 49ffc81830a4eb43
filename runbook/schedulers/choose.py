"""The adapter a site's jobs go through."""

from __future__ import annotations

from runbook.params.catalogue import SchedulerKind, Site
from runbook.schedulers.base import Scheduler
from runbook.schedulers.local import LocalScheduler
from runbook.schedulers.pbs import Pbs
from runbook.schedulers.queue import QueueScheduler
from runbook.schedulers.slurm import Slurm


def get_scheduler(site: Site) -> Scheduler:
    """The scheduler of a site."""
    if site.scheduler is SchedulerKind.LOCAL:
        return LocalScheduler()
    return QueueScheduler(Slurm() if site.scheduler is SchedulerKind.SLURM else Pbs())

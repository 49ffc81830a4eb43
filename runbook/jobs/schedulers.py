"""Lookup tables for schedulers. A new scheduler needs a row here and a name in `Site.scheduler`."""

from dataclasses import dataclass

from runbook.jobs.job_folder import Scheduler
from runbook.jobs.local import LocalScheduler
from runbook.jobs.pbs import Pbs
from runbook.jobs.queue import Queue, QueueScheduler
from runbook.jobs.render.pbs_scripts import PbsScripts
from runbook.jobs.render.queue_scripts import QueueScripts
from runbook.jobs.render.slurm_scripts import SlurmScripts
from runbook.jobs.slurm import Slurm
from runbook.params.schema.site import Site


@dataclass(frozen=True)
class QueueKind:
    """The interface to one kind of queue, and the script parts specific to it."""

    queue: type[Queue]
    scripts: type[QueueScripts]


QUEUE_KINDS = {
    "slurm": QueueKind(Slurm, SlurmScripts),
    "pbs": QueueKind(Pbs, PbsScripts),
}
"""All supported queues, by name in site files. `local` has no queue."""


LOCAL = LocalScheduler.kind
SCHEDULER_NAMES = frozenset({LOCAL, *QUEUE_KINDS})
"""Names that site files use for schedulers."""


def get_scheduler(site: Site) -> Scheduler:
    """Return the scheduler used on a site."""
    return scheduler_named(site.scheduler)


def scheduler_named(name: str) -> Scheduler:
    """Return the scheduler with this name in site files. Raise `KeyError` for an unknown name."""
    if name == LOCAL:
        return LocalScheduler()
    return QueueScheduler(QUEUE_KINDS[name].queue())


def get_queue(site: Site) -> Queue:
    """Return the interface to the site queue. Raise `KeyError` for a site without a queue."""
    return QUEUE_KINDS[site.scheduler].queue()


def get_queue_scripts(site: Site) -> QueueScripts:
    """Return the parts of job scripts that are specific to the site queue.

    Raise `KeyError` for a site without a queue.
    """
    return QUEUE_KINDS[site.scheduler].scripts()

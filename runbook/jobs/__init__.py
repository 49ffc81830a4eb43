"""Job scripts, and the queues they go to: submit, ask, signal, cancel."""

from runbook.jobs.job_folder import Scheduler
from runbook.jobs.local import LocalScheduler
from runbook.jobs.pbs import Pbs
from runbook.jobs.queue import QueueScheduler
from runbook.jobs.slurm import Slurm
from runbook.params.schema.site import Site


def get_scheduler(site: Site) -> Scheduler:
    """The scheduler of a site."""
    if site.scheduler == "local":
        return LocalScheduler()
    return QueueScheduler(Slurm() if site.scheduler == "slurm" else Pbs())

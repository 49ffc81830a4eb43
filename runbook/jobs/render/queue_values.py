"""Values used in every script for a queued job."""

from runbook.jobs.render.environment_variables import environment_groups
from runbook.jobs.schedulers import get_queue_scripts
from runbook.params import Job, Settings


def queue_values(
    settings: Settings,
    phase: str,
    job: Job,
    *,
    devices: bool = True,
) -> dict[str, object]:
    """Return the values needed in every template for a queued job.

    `phase` names the job in the queue.
    """
    queue = get_queue_scripts(settings.site)
    return {
        "queue": queue,
        "directives": queue.directives(settings, phase, job, devices=devices),
        "run": settings.name,
        "site": settings.site,
        "job": job,
        "environment": environment_groups(settings),
    }

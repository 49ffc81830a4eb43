"""Text that is sent to a machine: job scripts and training arguments."""

from __future__ import annotations

from runbook.render.folder import JobFolder
from runbook.render.jobs import PACKAGE, render_job, write_job
from runbook.render.preparing import preparation_files, render_fleet, render_preparation, step_script
from runbook.render.queue_jobs import RenderedJob
from runbook.render.setup_steps import SetupStep, setup_steps
from runbook.render.tasks import Task, asks_for_queue, data_tasks, render_task

__all__ = [
    "PACKAGE",
    "JobFolder",
    "RenderedJob",
    "SetupStep",
    "Task",
    "asks_for_queue",
    "data_tasks",
    "preparation_files",
    "render_fleet",
    "render_job",
    "render_preparation",
    "render_task",
    "setup_steps",
    "step_script",
    "write_job",
]

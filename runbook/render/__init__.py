"""Text that is sent to a machine: job scripts and training arguments."""

from __future__ import annotations

from runbook.render.folder import JobFolder
from runbook.render.jobs import PACKAGE, render_job, write_job
from runbook.render.preparing import render_fleet, render_preparation
from runbook.render.queue_jobs import RenderedJob

__all__ = ["PACKAGE", "JobFolder", "RenderedJob", "render_fleet", "render_job", "render_preparation", "write_job"]

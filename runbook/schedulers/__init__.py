"""The only door to a queue: submit, state, cancel, signal."""

from __future__ import annotations

from runbook.schedulers.base import JobFolder, JobStatus, Scheduler, State, latest_job_folder, next_job_folder
from runbook.schedulers.choose import get_scheduler

__all__ = ["JobFolder", "JobStatus", "Scheduler", "State", "get_scheduler", "latest_job_folder", "next_job_folder"]

"""Job scripts, and the queues that run them: submission, queries, signals and cancellation."""

from runbook.jobs.schedulers import get_scheduler as get_scheduler

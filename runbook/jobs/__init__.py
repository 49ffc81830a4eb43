"""Job scripts, and the queues that run them: submission, status, signals, cancellation."""

from runbook.jobs.schedulers import get_scheduler as get_scheduler

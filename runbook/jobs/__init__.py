"""Job scripts, and the queues that run them: submit, query, signal, cancel."""

from runbook.jobs.schedulers import get_scheduler as get_scheduler

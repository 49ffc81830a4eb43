"""Job scripts, and the queues they go to: submit, ask, signal, cancel."""

from runbook.jobs.schedulers import get_scheduler as get_scheduler

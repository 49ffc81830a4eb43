"""Messages about what to do after a job, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class NextJobMessage(Message):
    """Messages about what to do after a job."""

    BOTH_JOBS = "{earlier} and {last}: {failure}"
    CAUSE_NAMED_BEFORE = "{where}; before that, the log reports {cause_name}: {evidence}"
    NO_NEW_STEP = (
        "{jobs_without_progress} jobs in a row completed no new step (jobs.training.restarts is "
        "{budget})"
    )
    RANK_IN_CODE = "rank {rank} on {host} in {where}"
    SAME_FAILURE_TWICE = (
        "the same failure twice at step {failing_step} ({both}): this is not a coincidence"
    )
    WOULD_HAPPEN_AGAIN = "{cause}: it would happen again"

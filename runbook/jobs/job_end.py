"""The end of a job, derived from its status. `runbook.plan_file.job_ends` has the types."""

from __future__ import annotations

from runbook.jobs.job_folder import JobStatus
from runbook.plan_file.job_ends import FROM_OUTSIDE as FROM_OUTSIDE
from runbook.plan_file.job_ends import MAY_PASS as MAY_PASS
from runbook.plan_file.job_ends import WILL_REPEAT as WILL_REPEAT
from runbook.plan_file.job_ends import EndCause as EndCause
from runbook.plan_file.job_ends import JobEnd as JobEnd


def job_end(status: JobStatus, cause: EndCause | None = None) -> JobEnd:
    """Return a job's end with this cause. All other values come from the job status."""
    return JobEnd(status.state, status.exit_code, status.signal, cause)

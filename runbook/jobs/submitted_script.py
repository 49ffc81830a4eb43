"""Reads the script for a queued or finished job, from Slurm or from the file sent to PBS."""

import json
import shlex
import shutil
from pathlib import Path

from runbook.core import shell
from runbook.core.errors import JobError
from runbook.jobs.messages import JobMessage

_TIMEOUT_SECONDS = 30.0


def submitted_script(job_id: str) -> tuple[str, str]:
    """Return the name and text of a job script.

    Slurm keeps the script, while PBS only knows which file was submitted. Raise `JobError` if this
    machine has no queue, or if the script is no longer available.
    """
    if shutil.which("scontrol"):
        return f"job-{job_id}.sbatch", _script_of_slurm(job_id)
    if shutil.which("qstat"):
        return _script_of_pbs(job_id)
    raise JobError(JobMessage.NO_QUEUE_HERE, job_id=job_id)


def _script_of_slurm(job_id: str) -> str:
    argv = ["scontrol", "write", "batch_script", job_id, "-"]
    finished = shell.run(argv, timeout=_TIMEOUT_SECONDS, check=False)
    if finished.exit_code or not finished.out.strip():
        reason = shell.last_lines(finished.err or finished.out, 1) or "it printed nothing"
        raise JobError(JobMessage.SLURM_HAS_NO_SCRIPT, job_id=job_id, reason=reason)

    return finished.out


def _script_of_pbs(job_id: str) -> tuple[str, str]:
    argv = ["qstat", "-x", "-f", "-F", "json", job_id]
    finished = shell.run(argv, timeout=_TIMEOUT_SECONDS, check=False)
    try:
        job = next(iter(json.loads(finished.out)["Jobs"].values()))
        arguments = shlex.split(job["Submit_arguments"])
        folder = Path(job["Variable_List"]["PBS_O_WORKDIR"])
    except (ValueError, KeyError, StopIteration) as error:
        reason = shell.last_lines(finished.err or finished.out, 1) or "it printed nothing"
        raise JobError(JobMessage.PBS_HAS_NO_SCRIPT, job_id=job_id, reason=reason) from error

    path = folder / (arguments[-1] if arguments else "")
    if not path.is_file():
        raise JobError(JobMessage.SUBMITTED_SCRIPT_GONE, job_id=job_id, path=path)

    return path.name, path.read_text(encoding="utf-8", errors="replace")

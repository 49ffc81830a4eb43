"""Slurm: sbatch, squeue, scontrol, sacct, scancel."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from runbook import shell
from runbook.errors import JobError, ProgramError
from runbook.render.folder import JobFolder
from runbook.schedulers import slurm_text as text
from runbook.schedulers.asked import asked_of, faults
from runbook.schedulers.base import State
from runbook.schedulers.lock import HOLDER_VARIABLE
from runbook.schedulers.queue_base import SUBMIT_SECONDS, LostAnswerError, QueueJob, QueueSilentError

ASK_TIMEOUT = 30.0
"""A client gives up by itself sooner (MessageTimeout is 10 s unless a site changed it)."""

_UNKNOWN_JOB = "Invalid job id"
_NO_HISTORY = "accounting storage is disabled"
_BROKEN_OFF = ("Socket timed out", "Zero Bytes", "Transport endpoint", "Connection reset", "Unexpected message")
"""Errors of sbatch after which the controller may have taken the job; a failed connection is none of them."""


class Slurm:
    """The programs of Slurm, as they stand on the PATH of a login node."""

    kind = "slurm"

    def refuse(self, script: str) -> None:
        """Hold what the script asks for against the partitions as the controller describes them now."""
        missing = [name for name in ("sbatch", "squeue", "scontrol", "scancel") if shutil.which(name) is None]
        if missing:
            raise JobError(
                f"{', '.join(missing)}: on no folder of PATH, so this is not a login node of a Slurm cluster. Go to "
                "one, or load the module that brings Slurm. Nothing was submitted."
            )
        said = _run("scontrol", "--oneliner", "--all", "show", "partition")
        if said.exit_code:
            raise JobError(
                f"Slurm's controller does not say which partitions there are, so nothing was submitted. {_words(said)}"
            )
        found = faults(asked_of(script), text.parse_partitions(said.out))
        if found:
            raise JobError(f"Nothing was submitted: {'; '.join(found)}. Change jobs.<phase> in the run file.")

    def submit(self, folder: JobFolder, token: str, after: Sequence[str]) -> str:
        """`sbatch job.sh` from the job's folder; a job that could never start is taken out again at once."""
        words = ["sbatch", "--parsable", f"--comment={token}"]
        if after:
            words += [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"]
        try:
            said = shell.run(
                [*words, folder.script.name],
                cwd=folder.path,
                env=_outside_of_jobs(),
                timeout=SUBMIT_SECONDS,
                check=False,
            )
        except ProgramError as error:
            raise LostAnswerError(f"The answer of sbatch was lost: {error}") from error
        number = text.parse_job_id(said.out)
        if said.exit_code or not number:
            if not said.exit_code or any(words in said.err for words in _BROKEN_OFF):
                raise LostAnswerError(f"sbatch did not say whether it submitted the job. {_words(said)}")
            raise JobError(f"Slurm refused the job of {folder.path}; nothing was submitted. {_words(said)}")
        self._take_back_what_never_starts(folder, number)
        return number

    def find(self, folder: JobFolder, token: str) -> str | None:
        """By the comment it was submitted with, in the queue and, where there is one, in the accounts."""
        said = _run("squeue", "--noheader", "--all", "--states=all", f"--user={os.getuid()}", _FORMAT)
        if said.exit_code:
            raise QueueSilentError(f"Slurm's controller does not answer. {_words(said)}")
        known = _run("sacct", *_SACCT, "--starttime=now-7days", check=False)
        jobs = text.parse_squeue(said.out) + (text.parse_sacct(known.out) if not known.exit_code else [])
        return next((_whole(job.job) for job in jobs if token and job.token == token), None)

    def ask(self, job: str) -> QueueJob | None:
        """By squeue while the controller remembers the job (scontrol for its exit code), by sacct afterwards."""
        said = _run("squeue", "--noheader", "--all", "--states=all", "--array", f"--jobs={job}", _FORMAT)
        if not said.exit_code:
            found = text.together([one for one in text.parse_squeue(said.out) if _whole(one.job) == job])
            if found is not None:
                return self._with_exit_code(found)
        elif _UNKNOWN_JOB not in said.err:
            raise QueueSilentError(f"Slurm's controller does not answer. {_words(said)}")
        known = _run("sacct", *_SACCT, f"--jobs={job}")
        if known.exit_code:
            if _NO_HISTORY in known.err:
                return None
            raise QueueSilentError(f"The controller has forgotten the job, and sacct does not answer. {_words(known)}")
        return text.together([one for one in text.parse_sacct(known.out) if _whole(one.job) == job])

    def end(self, job: str) -> None:
        """`scancel`: TERM, and KILL after the cluster's KillWait."""
        said = _run("scancel", job)
        if said.exit_code and _UNKNOWN_JOB not in said.err:
            raise JobError(f"Slurm did not cancel job {job}. {_words(said)}")

    def send(self, job: str, signal_name: str) -> None:
        """`scancel --signal`: to the job's steps, not to its script."""
        said = _run("scancel", f"--signal={signal_name.removeprefix('SIG')}", job)
        if said.exit_code:
            raise JobError(f"Slurm did not send {signal_name} to job {job}. {_words(said)}")

    def queues(self, names: Sequence[str]) -> list[dict[str, str]]:
        """`sinfo`: how many nodes of each partition are in which state."""
        said = _run("sinfo", "--noheader", f"--partition={','.join(names)}", "--format=%R|%a|%l|%D|%T|%N")
        if said.exit_code:
            raise QueueSilentError(f"Slurm's controller does not answer. {_words(said)}")
        columns = ("queue", "state", "time limit", "nodes", "are", "which")
        return [dict(zip(columns, line.split("|"), strict=True)) for line in said.out.splitlines()]

    def _take_back_what_never_starts(self, folder: JobFolder, number: str) -> None:
        """A partition's limits on time, nodes and accounts do not stop sbatch: the job would wait for ever."""
        try:
            said = self.ask(number)
        except QueueSilentError:
            return
        if said is None or said.state is not State.PENDING or not text.never_starts(said.reason):
            return
        self.end(number)
        raise JobError(
            f"The job of {folder.path} would never start and was taken out of the queue again (it was {number}). "
            f"Slurm says: {said.reason} (partition {said.partition}). Change jobs.<phase> in the run file."
        )

    def _with_exit_code(self, found: QueueJob) -> QueueJob:
        if found.state not in (State.FAILED, State.DONE):
            return found
        said = _run("scontrol", "--oneliner", "show", "job", found.job)
        code = text.parse_job_exit_code(said.out) if not said.exit_code else None
        return QueueJob(**{**vars(found), "exit_code": code})


_FORMAT = f"--format={text.SQUEUE_FORMAT}"
_SACCT = ("--allocations", "--noheader", "--parsable2", f"--format={text.SACCT_FIELDS}")


def _run(*words: str, check: bool = True) -> shell.Finished:
    """A question to Slurm; one that takes too long is a queue that does not answer."""
    try:
        return shell.run(words, timeout=ASK_TIMEOUT, check=False)
    except ProgramError as error:
        if check:
            raise QueueSilentError(str(error)) from error
        return shell.Finished(tuple(words), 1, "", str(error), 0.0)


def _outside_of_jobs() -> dict[str, str | None]:
    """Changes to our environment: what an allocation around us says of itself would be taken for the new job's own."""
    inherited = (name for name in os.environ if name.startswith("SLURM_") and name != "SLURM_CONF")
    return dict.fromkeys((HOLDER_VARIABLE, *inherited))


def _whole(job: str) -> str:
    return job.partition("_")[0]


def _words(said: shell.Finished) -> str:
    words = shell.last_lines(said.err or said.out, 6)
    return f"{said.argv[0]} ended with {shell.how_it_ended(said.exit_code)} and said: {words or 'nothing'}"

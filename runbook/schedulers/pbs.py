"""PBS Pro and OpenPBS: qsub, qstat, qdel, qsig."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Sequence

from runbook import shell
from runbook.errors import JobError, ProgramError
from runbook.render.folder import JobFolder
from runbook.schedulers import pbs_text as text
from runbook.schedulers.asked import asked_of, faults
from runbook.schedulers.lock import HOLDER_VARIABLE
from runbook.schedulers.queue_base import SUBMIT_SECONDS, LostAnswerError, QueueJob, QueueSilentError

ASK_TIMEOUT = 30.0
"""A queue that takes longer does not answer."""

_UNKNOWN_JOB = "Unknown Job Id"
_BROKEN_OFF = ("End of File", "Premature end", "timed out", "Protocol")


class Pbs:
    """The programs of PBS, as they stand on the PATH of a login node."""

    kind = "pbs"

    def refuse(self, script: str) -> None:
        """Hold what the script asks for against the queues as the server describes them now."""
        missing = [name for name in ("qsub", "qstat", "qdel") if shutil.which(name) is None]
        if missing:
            raise JobError(
                f"{', '.join(missing)}: on no folder of PATH, so this is not a login node with PBS. Go to one, or load "
                "the module that brings PBS. Nothing was submitted."
            )
        said = _run("qstat", "-Q", "-f")
        if said.exit_code:
            raise JobError(f"PBS does not say which queues there are, so nothing was submitted. {_words(said)}")
        found = faults(asked_of(script), text.parse_queues(said.out))
        if found:
            wrong = "; ".join(found).replace("partition", "queue")
            raise JobError(f"Nothing was submitted: {wrong}. Change jobs.<phase> in the run file.")

    def submit(self, folder: JobFolder, token: str, after: Sequence[str]) -> str:
        """`qsub job.sh` from the job's folder."""
        words = ["qsub", "-v", f"{text.TOKEN_VARIABLE}={token}"]
        if after:
            words += ["-W", f"depend=afterok:{':'.join(after)}"]
        try:
            said = shell.run(
                [*words, folder.script.name],
                cwd=folder.path,
                env={HOLDER_VARIABLE: None},
                timeout=SUBMIT_SECONDS,
                check=False,
            )
        except ProgramError as error:
            raise LostAnswerError(f"The answer of qsub was lost: {error}") from error
        number = text.parse_job_id(said.out)
        if said.exit_code or not number:
            if not said.exit_code or any(words in said.err for words in _BROKEN_OFF):
                raise LostAnswerError(f"qsub did not say whether it submitted the job. {_words(said)}")
            raise JobError(f"PBS refused the job of {folder.path}; nothing was submitted. {_words(said)}")
        return number

    def find(self, folder: JobFolder, token: str) -> str | None:
        """By the variable it was submitted with, among the jobs of this user that PBS remembers."""
        said = _run("qselect", "-x", "-u", pwd.getpwuid(os.getuid()).pw_name)
        if said.exit_code:
            raise QueueSilentError(f"PBS does not answer. {_words(said)}")
        numbers = said.out.split()[-500:]
        if not numbers:
            return None
        jobs = text.parse_jobs(_run("qstat", "-x", "-f", *numbers).out)
        return next((job.job for job in jobs if token and job.token == token), None)

    def ask(self, job: str) -> QueueJob | None:
        """`qstat -x`, which knows finished jobs as long as the server keeps its history."""
        said = _run("qstat", "-x", "-f", job)
        found = text.parse_jobs(said.out)
        if found:
            return found[0]
        if _UNKNOWN_JOB in said.err:
            return None
        raise QueueSilentError(f"PBS does not answer. {_words(said)}")

    def end(self, job: str) -> None:
        """`qdel`: TERM, and KILL after the queue's kill_delay."""
        said = _run("qdel", job)
        if said.exit_code and _UNKNOWN_JOB not in said.err and "finished" not in said.err:
            raise JobError(f"PBS did not delete job {job}. {_words(said)}")

    def send(self, job: str, signal_name: str) -> None:
        """`qsig`: to all processes of the job, its script too; PBS knows no steps."""
        said = _run("qsig", "-s", signal_name, job)
        if said.exit_code:
            raise JobError(f"PBS did not send {signal_name} to job {job}. {_words(said)}")

    def queues(self, names: Sequence[str]) -> list[dict[str, str]]:
        """`qstat -Q`: whether each queue is open, its limit, and how many jobs it holds."""
        said = _run("qstat", "-Q", "-f", *names)
        if said.exit_code:
            raise QueueSilentError(f"PBS does not answer. {_words(said)}")
        return text.queue_rows(said.out)


def _run(*words: str) -> shell.Finished:
    try:
        return shell.run(words, timeout=ASK_TIMEOUT, check=False)
    except ProgramError as error:
        raise QueueSilentError(str(error)) from error


def _words(said: shell.Finished) -> str:
    words = shell.last_lines(said.err or said.out, 6)
    return f"{said.argv[0]} ended with {shell.how_it_ended(said.exit_code)} and said: {words or 'nothing'}"

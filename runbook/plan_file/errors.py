"""Errors that end a training, each with the exit code that a job script acts on."""

FINISHED = 0
FAILED = 1
REFUSED = 2
CANNOT_REHEARSE = 3
"""Of `python -m runbook.training.rehearsal`: what is installed here cannot say whether the job
would work.
"""
STOPPED = 75
"""Saved and stopped by a signal or by the time limit: the same command goes on from there
(EX_TEMPFAIL).
"""


class TrainingError(Exception):
    """Training cannot go on; the text is all that is shown."""

    exit_code = FAILED
    on_all_ranks = False
    """Whether every rank has this same error, so that it is enough when rank 0 shows it."""


class RefusedError(TrainingError):
    """What was asked for cannot be trained; said before the first step, and nothing was changed."""

    exit_code = REFUSED
    on_all_ranks = True

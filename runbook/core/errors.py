"""Errors that users can see. Each names the fault, the rule, the values and the remedy."""

from collections.abc import Iterable

from runbook.core.checks import Check
from runbook.core.messages import CoreMessage
from runbook.plan_file.errors import CodedError


class RunbookError(CodedError):
    """An error that the user can fix.

    Only the error text is shown, and the command exits with `exit_code`.
    """

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """Return the text shown in a notebook in place of a traceback.

        The user has to change something, so a traceback into runbook code does not help.
        """
        return [f"{type(self).__name__}: {self}"]


class ViewInterrupted(KeyboardInterrupt):
    """Raised when a cell that only watches a job is interrupted."""

    def _render_traceback_(self) -> list[str]:
        """Return the text shown in a notebook in place of a traceback, as nothing has failed."""
        return ["KeyboardInterrupt"]


class ParamsError(RunbookError):
    """Raised if a run file, site file, catalogue or override has an unusable value.

    Nothing was written.
    """

    exit_code = 2


class PlanError(RunbookError):
    """Raised if individually valid values contradict each other, such as layout and batch."""

    exit_code = 2

    def __init__(self, text: str, checks: tuple[Check, ...] = ()) -> None:
        super().__init__(text)
        self.checks = checks
        """The failed checks, in the order in which the text lists them."""


class ProgramError(RunbookError):
    """Raised if a program that runbook started failed; contains what the program printed."""


class JobError(RunbookError):
    """Raised if a job could not be submitted, found, watched or cancelled, or if it failed."""


class JobFailedError(JobError):
    """Raised if a job failed."""

    def __init__(self, text: str, job_exit_code: int | None) -> None:
        super().__init__(text)
        self.job_exit_code = job_exit_code
        """Exit code from the job, or None if the job did not record one."""


class DataError(RunbookError):
    """Raised if text, tokens or index files are missing, damaged or not as expected."""


class RecordError(RunbookError):
    """Raised if a record is missing, has been changed, or cannot be written."""


class HeldError(RunbookError):
    """Raised if another process is using this run; the message names that process."""


def raise_if_failed(checks: Iterable[Check]) -> None:
    """Raise one `PlanError` that lists every failed check with its values, rule and remedy.

    The error also carries the checks, for callers that act on them.
    """
    failed = tuple(check for check in checks if check.verdict == "fail")
    if failed:
        if len(failed) == 1:
            head = CoreMessage.ONE_THING.fill()
        else:
            head = CoreMessage.MANY_THINGS.fill(number=len(failed))

        lines = [f"  {number}. {check.as_text()}" for number, check in enumerate(failed, 1)]
        raise PlanError(
            "\n".join([CoreMessage.THINGS_DO_NOT_FIT.fill(things=head), *lines]), failed
        )

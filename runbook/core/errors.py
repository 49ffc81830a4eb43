"""The errors a user can meet: what is wrong, the rule, the remedy - with the values."""


class RunbookError(Exception):
    """Something the user can mend.

    Its text is all that is shown, and the command ends with `exit_code`.
    """

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows in place of a traceback.

        These errors are for the user, not about our code.
        """
        return [f"{type(self).__name__}: {self}"]


class ParamsError(RunbookError):
    """A run file, site file, catalogue or override says something that cannot be used.

    Nothing was written.
    """

    exit_code = 2


class PlanError(RunbookError):
    """The values are each right but do not fit together (layout, batch, memory, held-out data)."""

    exit_code = 2


class ProgramError(RunbookError):
    """A program that was started answered with an error; its own words are kept."""


class JobError(RunbookError):
    """A job could not be submitted, found, watched or cancelled, or ended badly."""


class DataError(RunbookError):
    """Text, tokens or index files are missing, broken or not what was promised."""


class RecordError(RunbookError):
    """A record is missing, was changed later, or cannot be written."""


class HeldError(RunbookError):
    """Another process is working on this run; the message says who."""

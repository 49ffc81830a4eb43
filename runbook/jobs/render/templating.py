"""Shell templates: quoting, and the placeholders of a site's values."""

import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from runbook.core.errors import ParamsError
from runbook.jobs.job_folder import BEAT_SECONDS
from runbook.jobs.messages import JobLine, JobMessage, JobReason, SetupLine
from runbook.params import Settings
from runbook.params.environment import switched_on
from runbook.params.settings import STAGE


def fill(template: str, **values: object) -> str:
    """Return the text of a template in `templates/`, filled in with values.

    A missing value is a bug of ours.
    """
    return _templates().get_template(template).render(**values)


def quote(value: object) -> str:
    r"""Return exactly this text, quoted as a single shell word.

    >>> print(quote("two words"), quote("$(reboot)"), quote("it's"), quote(""), quote(8))
    'two words' '$(reboot)' 'it'"'"'s' '' 8
    """
    text = str(value)
    if "\0" in text:
        raise ParamsError(JobMessage.NUL_CHARACTER, text=text)

    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ParamsError(JobMessage.NOT_UTF8, text=text, reason=error.reason) from error

    return shlex.quote(text)


def variable(name: str) -> str:
    """Return the name of an environment variable. Reject it if a shell could misread it.

    >>> variable("NCCL_DEBUG")
    'NCCL_DEBUG'
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ParamsError(JobMessage.NOT_A_VARIABLE_NAME, name=name)

    return name


def image(name: str) -> str:
    """Return the name of a container image.

    Reject it if a line of a Dockerfile could interpret it as anything else.

    >>> image("nvcr.io/nvidia/pytorch:24.05-py3")
    'nvcr.io/nvidia/pytorch:24.05-py3'
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", name):
        raise ParamsError(JobMessage.NOT_AN_IMAGE_NAME, name=name)

    return name


@cache
def _templates() -> Environment:
    # This is shell, not HTML, and `quote` escapes every value.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        autoescape=False,
        # The usual delimiter is part of ${#array[@]}
        comment_start_string="<%#",
        comment_end_string="#%>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quote": quote, "variable": variable, "image": image}
    environment.globals["beat_seconds"] = BEAT_SECONDS
    environment.globals["reason"] = _reason
    environment.globals["line"] = _line
    environment.globals["setup_line"] = _setup_line
    environment.globals["JobMessage"] = JobMessage
    return environment


def _reason(name: str, **values: object) -> str:
    """Return why a job ended; a value may be a shell variable."""
    return JobReason[name].fill(**values)


def _line(name: str, **values: object) -> str:
    """Return a line for a job's log; a value may be a shell variable."""
    return JobLine[name].fill(**values)


def _setup_line(name: str, **values: object) -> str:
    """Return a line of a script that sets a site up; a value may be a variable of the shell."""
    return SetupLine[name].fill(**values)


KNOWN = {"user": '"$user"', "job": '"$job_number"'}
"""Names of placeholders in the job's script."""


def expand(value: str, settings: Settings) -> str:
    """Return a text as one shell word.

    The run's shared folder is inserted now; {user} and {job} are filled in when the job runs.
    """
    if settings.run.jobs.stage:
        text = value.replace(STAGE, settings.run.jobs.stage.rstrip("/"))
    else:
        text = value

    parts = re.split(r"\{(" + "|".join(KNOWN) + r")\}", text)
    lines = []
    for number, part in enumerate(parts):
        if part:
            lines.append(KNOWN[part] if number % 2 else quote(part))

    return "".join(lines) or quote("")


def environment_groups(settings: Settings) -> dict[str, dict[str, str | None]]:
    """Return the site's groups of variables that are switched on, as shell words.

    A value of None unsets the variable.
    """
    groups: dict[str, dict[str, str | None]] = {}
    for name, variables in switched_on(settings).items():
        groups[name] = {
            key: None if value is None else expand(value, settings)
            for key, value in variables.items()
        }

    return groups


def site_commands(texts: Sequence[str], settings: Settings) -> list[str]:
    """Return a site's own commands, with the run's shared folder inserted as one shell word."""
    return [text.replace(STAGE, quote(settings.run.jobs.stage.rstrip("/"))) for text in texts]

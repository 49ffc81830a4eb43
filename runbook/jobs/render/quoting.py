"""Turns values into shell words for a job script.

Values are quoted, or refused if a shell could misread them.
"""

import re
import shlex
from collections.abc import Sequence

from runbook.core.errors import ParamsError
from runbook.jobs.messages import JobMessage
from runbook.params import Settings
from runbook.params.settings import STAGE


def quote(value: object) -> str:
    r"""Return a string, quoted as a single shell word that means exactly this string.

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
    """Return the name of an environment variable. Refuse a name that a shell could misread.

    >>> variable("NCCL_DEBUG")
    'NCCL_DEBUG'
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ParamsError(JobMessage.NOT_A_VARIABLE_NAME, name=name)

    return name


def image(name: str) -> str:
    """Return the name of a container image.

    Refuse a name that a Dockerfile could misread.

    >>> image("nvcr.io/nvidia/pytorch:24.05-py3")
    'nvcr.io/nvidia/pytorch:24.05-py3'
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*", name):
        raise ParamsError(JobMessage.NOT_AN_IMAGE_NAME, name=name)

    return name


KNOWN = {"user": '"$user"', "job": '"$job_number"'}
"""Placeholders that a job script fills in, and the shell variables for them."""


def expand(value: str, settings: Settings) -> str:
    """Return a string as one shell word.

    The shared folder is inserted now; {user} and {job} are filled in when the job runs.
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


def site_commands(texts: Sequence[str], settings: Settings) -> list[str]:
    """Return commands from the site file, with the shared folder inserted as one shell word."""
    return [text.replace(STAGE, quote(settings.run.jobs.stage.rstrip("/"))) for text in texts]

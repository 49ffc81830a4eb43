"""Templates whose values cannot change a script's structure and whose missing values stop us here."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from runbook.errors import ParamsError

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def fill(template: str, values: dict[str, Any]) -> str:
    """The text of a template in `templates/` with values put in; a value that is missing there is our own bug."""
    return _templates().get_template(template).render(values)


def quote(value: object) -> str:
    r"""One word of the shell that means exactly this text.

    >>> print(quote("two words"), quote("$(reboot)"), quote("it's"), quote(""), quote(8))
    'two words' '$(reboot)' 'it'"'"'s' '' 8
    """
    text = str(value)
    if "\0" in text:
        raise ParamsError(f"{text!r} holds a NUL character, which no program can be given. Remove it from the value.")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ParamsError(
            f"{text!r} is not text that can be written as UTF-8: {error.reason}. Change the value."
        ) from error
    return shlex.quote(text)


def variable(name: str) -> str:
    """The name of an environment variable, refused if a shell could read it as anything else.

    >>> variable("NCCL_DEBUG")
    'NCCL_DEBUG'
    """
    if not _VARIABLE.fullmatch(name):
        raise ParamsError(
            f"{name!r} in the site's environment is not the name of a variable: "
            "letters, digits and '_', not starting with a digit."
        )
    return name


def image(name: str) -> str:
    """The name of a container image, refused if a line of a Dockerfile could read it as anything else.

    >>> image("nvcr.io/nvidia/pytorch:24.05-py3")
    'nvcr.io/nvidia/pytorch:24.05-py3'
    """
    if not _IMAGE.fullmatch(name):
        raise ParamsError(f"{name!r} is not the name of a container image: letters, digits and . _ - / : @ only.")
    return name


@cache
def _templates() -> Environment:
    # Shell, not HTML: escaping is `quote`, and every value passes it.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        autoescape=False,
        comment_start_string="<%#",  # the usual one is a part of ${#array[@]}
        comment_end_string="#%>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quote": quote, "variable": variable, "image": image}
    return environment

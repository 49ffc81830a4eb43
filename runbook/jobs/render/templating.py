"""Renders the shell templates in `templates/`. No other module of `jobs` needs jinja2."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from runbook.jobs.job_folder import BEAT_SECONDS
from runbook.jobs.messages import JobLine, JobMessage, JobReason, SetupLine
from runbook.jobs.render.quoting import image, quote, variable


def fill(template: str, **values: object) -> str:
    """Fill these values into a template from `templates/`, and return the text.

    If a value is missing, our code has a bug.
    """
    return _templates().get_template(template).render(**values)


@cache
def _templates() -> Environment:
    # The text is shell, not HTML, and `quote` escapes every value.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        autoescape=False,
        # jinja2's default delimiter for comments, {#, also occurs in ${#array[@]}.
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
    """Return the text for a reason why a job ended. Values may be shell variables."""
    return JobReason[name].fill(**values)


def _line(name: str, **values: object) -> str:
    """Return a line for a job log. Values may be shell variables."""
    return JobLine[name].fill(**values)


def _setup_line(name: str, **values: object) -> str:
    """Return a line for a script to set up a site. Values may be shell variables."""
    return SetupLine[name].fill(**values)

"""Values of a site file that name what only the job knows: {user}, {job}; all else stays the letters it is."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.errors import ParamsError
from runbook.params import Settings
from runbook.params.stage import STAGE
from runbook.render.templating import quote

KNOWN = {"user": '"$user"', "job": '"$job_number"'}
"""What the job's script calls them."""


def expand(value: str, settings: Settings) -> str:
    """One word of the shell: the run's shared folder is put in now, {user} and {job} when the job runs."""
    text = value.replace(STAGE, settings.run.jobs.stage.rstrip("/")) if settings.run.jobs.stage else value
    parts = re.split(r"\{(" + "|".join(KNOWN) + r")\}", text)
    words = [KNOWN[part] if number % 2 else quote(part) for number, part in enumerate(parts) if part]
    return "".join(words) or quote("")


def environment_groups(settings: Settings) -> dict[str, dict[str, str | None]]:
    """The site's groups of variables that are switched on, as words of the shell; None unsets a variable."""
    site = settings.site
    on = {name: name not in site.switched_off for name in site.environment}
    for word in settings.run.jobs.switch.split():
        sign, name = word[0], word[1:]
        if sign not in "+-" or name not in on:
            raise ParamsError(
                f"jobs.switch: {word!r} is not + or - and a group of site {site.site}'s environment. "
                f"Its groups are {', '.join(on) or 'none'}."
            )
        on[name] = sign == "+"
    return {
        name: {key: None if value is None else expand(value, settings) for key, value in variables.items()}
        for name, variables in site.environment.items()
        if on[name]
    }


def commands(texts: Sequence[str], settings: Settings) -> list[str]:
    """A site's own commands, with the run's shared folder put in as one word of the shell."""
    return [text.replace(STAGE, quote(settings.run.jobs.stage.rstrip("/"))) for text in texts]

"""Environment variable groups on a site, and which of them a run switches on."""

from collections.abc import Mapping

from runbook.core.errors import ParamsError
from runbook.params.messages import ParamsMessage
from runbook.params.settings import Settings


def switched_on(settings: Settings) -> dict[str, Mapping[str, str | None]]:
    """Return the variable groups that jobs in a run set, by name. None unsets a variable.

    Raise `ParamsError` if `jobs.switch` names a group that the site does not have.
    """
    site = settings.site
    on = {name: name not in site.switched_off for name in site.environment}
    for word in settings.run.jobs.switch.split():
        sign = word[0]
        name = word[1:]
        if sign not in "+-" or name not in on:
            raise ParamsError(
                ParamsMessage.UNKNOWN_SWITCH,
                word=word,
                site=site.site,
                groups=", ".join(on) or "none",
            )

        on[name] = sign == "+"

    return {name: variables for name, variables in site.environment.items() if on[name]}

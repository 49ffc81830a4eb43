"""Environment variables set by a job script for its programs."""

from runbook.jobs.render.quoting import expand, quote
from runbook.params import Settings
from runbook.params.variable_groups import switched_on


def environment_groups(settings: Settings) -> dict[str, dict[str, str | None]]:
    """Return the variable groups enabled on this site, with values quoted for the shell.

    None means that the variable is unset.
    """
    groups: dict[str, dict[str, str | None]] = {}
    for name, variables in switched_on(settings).items():
        groups[name] = {
            key: None if value is None else expand(value, settings)
            for key, value in variables.items()
        }

    return groups


def local_environment_groups(settings: Settings) -> dict[str, dict[str, str | None]]:
    """Return the enabled variable groups for jobs on this machine.

    The values contain no placeholders, because a local job has no number and no folder that it
    shares with other nodes.
    """
    groups: dict[str, dict[str, str | None]] = {}
    for name, variables in switched_on(settings).items():
        groups[name] = {
            key: None if value is None else quote(value) for key, value in variables.items()
        }

    return groups

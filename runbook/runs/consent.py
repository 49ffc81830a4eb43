"""Checks whether the user on this machine has allowed the commands in a run file."""

from runbook.core.checks import Check, judge
from runbook.core.table import Table
from runbook.params import Settings
from runbook.plan_file.allowed_commands import (
    allowed_commands_file,
    how_to_allow,
    is_allowed,
)
from runbook.runs.messages import RunMessage

ALARM_COMMAND = "training.alarm_command"


def command_checks(settings: Settings) -> list[Check]:
    """Return a check for each command in the run values.

    The check shows the command as it would be started.
    """
    command = settings.run.training.alarm_command
    if not command.strip():
        return []
    where = settings.origins[ALARM_COMMAND][-1]
    return [
        judge(
            ALARM_COMMAND,
            is_allowed(command),
            f"{command} ({where})",
            "a command in a run file is started only if you allowed it in "
            f"{allowed_commands_file()}",
            "Until then no alarm is sent to the command. It runs on the training's node with your "
            f"rights: if you wrote it, or have read it and trust it, {how_to_allow(command)}",
            otherwise="warn",
        )
    ]


def commands_table(settings: Settings) -> list[Table]:
    """Return a table with results from `command_checks`, or no table if the run has no command."""
    rows = []
    for check in command_checks(settings):
        rows.append(
            {
                "command": settings.run.training.alarm_command,
                "started": "at each alarm, on the training's node",
                "allowed": "yes" if check.verdict == "pass" else f"no. {check.remedy}",
            }
        )

    if not rows:
        return []
    return [Table(rows, RunMessage.COMMANDS_TO_START.fill())]

"""Run-file commands that the user of this machine has allowed.

The file has one command per line, and no run file can name it.

A run file may come from anybody, and `training.alarm_command` in it is started on the training's
node with the rights of whoever trains. It is started only if this person's own file contains
exactly the same text.
"""

import os
import shlex
import unicodedata
from pathlib import Path


def allowed_commands_file() -> Path:
    """Path of the allowed commands, in the user's own configuration."""
    configuration = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(configuration).expanduser() / "gpt3-runbook" / "allowed-commands"


def is_allowed(command: str) -> bool:
    """Return whether a line of the file is exactly this command.

    A file that cannot be read allows nothing.
    """
    try:
        lines = allowed_commands_file().read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError, RuntimeError):
        # RuntimeError: the account has no home
        return False

    return bool(command.strip()) and command.strip() in (line.strip() for line in lines)


def how_to_allow(command: str) -> str:
    """Return the shell command that allows `command`, to be copied by someone who has read it.

    A run file with invisible characters is refused. In a plan that was written by hand, each of
    them becomes a question mark here.
    """
    lines_to_add = "".join(
        letter if unicodedata.category(letter)[0] != "C" else "?" for letter in command.strip()
    )
    path = allowed_commands_file()
    return (
        f"mkdir -p {shlex.quote(str(path.parent))} && printf '%s\\n' {shlex.quote(lines_to_add)} "
        f">> {shlex.quote(str(path))}"
    )

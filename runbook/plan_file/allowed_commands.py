"""Run-file commands that the user has allowed on this machine.

The file has one command per line, and no run file can change its path.

A run file may come from anyone, and its `training.alarm_command` runs on a training node with the
user's rights. So the command runs only if the user's own list contains exactly the same text.
"""

import os
import shlex
import unicodedata
from pathlib import Path


def allowed_commands_file() -> Path:
    """Return the path to the list of allowed commands, in the user's configuration folder."""
    configuration = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(configuration).expanduser() / "gpt3-runbook" / "allowed-commands"


def is_allowed(command: str) -> bool:
    """Return whether the file has a line that is exactly this command.

    If the file cannot be read, no command is allowed.
    """
    try:
        lines = allowed_commands_file().read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError, RuntimeError):
        # RuntimeError: the account has no home folder
        return False

    return bool(command.strip()) and command.strip() in (line.strip() for line in lines)


def how_to_allow(command: str) -> str:
    """Return the shell command a user runs to allow `command` after a review.

    A run file with invisible characters is refused. A plan written by hand may contain invisible
    characters, so each is replaced by a question mark here.
    """
    lines_to_add = "".join(
        letter if unicodedata.category(letter)[0] != "C" else "?" for letter in command.strip()
    )
    path = allowed_commands_file()
    return (
        f"mkdir -p {shlex.quote(str(path.parent))} && printf '%s\\n' {shlex.quote(lines_to_add)} "
        f">> {shlex.quote(str(path))}"
    )

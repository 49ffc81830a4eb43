"""Reads a rendered script as values: requests to the queue, variables, and commands with options."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping

_DIRECTIVE = re.compile(
    r"#SBATCH --(?P<slurm>[\w-]+)(?:=(?P<slurm_value>.*))?"
    r"|#PBS -l (?P<resource>\w+)=(?P<amount>.*)"
    r"|#PBS -(?P<letter>\w)(?: (?P<letter_value>.*))?"
)


def directives_of(script: str) -> dict[str, str]:
    """Return the requests in a script by name. A PBS resource is `-l name`, and a one-letter option
    `-k`.

    Fail if a name occurs twice, because a queue would use only one of them.

    >>> directives_of("#SBATCH --nodes=2\\n#SBATCH --requeue\\necho 1\\n")
    {'nodes': '2', 'requeue': ''}
    >>> directives_of("#PBS -l select=8:ncpus=32\\n#PBS -V\\n")
    {'-l select': '8:ncpus=32', '-V': ''}
    """
    directives: dict[str, str] = {}
    for line in script.splitlines():
        match = _DIRECTIVE.fullmatch(line)
        if match is None:
            assert not line.startswith(("#SBATCH", "#PBS")), line
            continue
        if match["slurm"]:
            name, value = match["slurm"], match["slurm_value"]
        elif match["resource"]:
            name, value = f"-l {match['resource']}", match["amount"]
        else:
            name, value = f"-{match['letter']}", match["letter_value"]
        assert name not in directives, line
        directives[name] = value or ""
    return directives


def commands_of(script: str, *program: str) -> list[list[str]]:
    """Return each command in a script that begins with these words, split into words.

    A command ends where its redirection or the next command begins. The values of shell variables
    are unknown: `"$job"` is the word `$job`.

    >>> commands_of("if a; then\\n  srun \\\\\\n  --nodes=2 b </dev/null &\\nfi\\n", "srun")
    [['srun', '--nodes=2', 'b']]
    """
    commands = []
    for line in re.sub(r"\\\n\s*", "", script).splitlines():
        text = line.strip()
        if not re.match(rf"{re.escape(program[0])}\b", text):
            continue
        words = _words_before_operator(shlex.split(text))
        if words[: len(program)] == list(program):
            commands.append(words)
    return commands


def _words_before_operator(line_words: list[str]) -> list[str]:
    """Return the words of a line up to a redirection, the next command or a comment."""
    words: list[str] = []
    for word in line_words:
        if re.match(r"[<>&|;#]|\d>", word):
            break
        words.append(word)
    return words


def command_of(script: str, *program: str) -> list[str]:
    """Return the words in the only command that begins with these words in a script."""
    (command,) = commands_of(script, *program)
    return command


def options_of(command: list[str], program: str, *, flags: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the options that follow a program in a command, up to the first word that is not an
    option.

    The value of `--name=value` is in the same word. The value of any other option is the next word.
    Names in `flags` have no value.

    >>> options_of(["mpiexec", "-n", "8", "--envall", "bash", "x"], "mpiexec", flags=("--envall",))
    {'-n': '8', '--envall': ''}
    """
    words = iter(command[command.index(program) + 1 :])
    options: dict[str, str] = {}
    for word in words:
        if not word.startswith("-"):
            break
        name, equals, value = word.partition("=")
        assert name not in options, command
        if not equals and name not in flags:
            value = next(words)
        options[name] = value
    return options


def environment_of(script: str, *, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what the lines in a script export if these shell variables are set before.

    The shell itself reads the lines, so that a wrong quote leads to a wrong value. Only complete
    lines that begin with `export` or `unset` run.
    """
    lines = [f"{name}={shlex.quote(value)}" for name, value in (variables or {}).items()]
    lines += [line for line in script.splitlines() if re.match(r"(export|unset) ", line)]
    lines.append("exec /usr/bin/env -0")
    said = subprocess.run(
        ["/bin/bash", "-c", "\n".join(lines)],
        env={"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    pairs = [entry.partition("=") for entry in said.stdout.split("\0") if entry]
    return {name: value for name, _, value in pairs if name not in _OF_THE_SHELL}


_OF_THE_SHELL = ("PATH", "PWD", "SHLVL", "OLDPWD", "_")


def unset_in(script: str) -> set[str]:
    """Return the variables that a script unsets on separate lines."""
    return set(re.findall(r"(?m)^unset (\w+)\b", script))


def array_of(script: str, name: str) -> list[str]:
    """Return the words in a shell array that the script writes in one line."""
    (text,) = re.findall(rf"(?m)^{name}=\((.*)\)$", script)
    return shlex.split(text)

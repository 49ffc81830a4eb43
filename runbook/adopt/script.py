"""A script as it lies on disk: queue directives, commands, settings; a page of text gives its code blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbook.adopt.expansion import environment_of
from runbook.adopt.interpreter import Command, Followed, Setting, follow
from runbook.adopt.marks import Word, clean
from runbook.errors import ParamsError

_SLURM = re.compile(r"^#SBATCH\s+(.*)")
_PBS = re.compile(r"^#PBS\s+(.*)")
_FENCE = re.compile(r"^\s*(?:```|~~~)\s*([\w+-]*)")
_SHELL_FENCES = ("", "bash", "sh", "shell", "console", "slurm", "zsh", "text")


@dataclass(frozen=True)
class Directive:
    """One request to the queue."""

    queue: str
    """slurm or pbs."""
    name: str
    """Without dashes; of `-l select=2` the resource."""
    value: str
    line: int


@dataclass(frozen=True)
class Script:
    """Everything that was read, from one text."""

    text: str
    directives: tuple[Directive, ...]
    followed: Followed
    prose: bool
    """Whether it is a page with code blocks, not a script."""

    @property
    def lines(self) -> list[str]:
        """The text's lines; line 1 comes first."""
        return self.text.splitlines()

    @property
    def commands(self) -> list[Command]:
        """What it would start, in order."""
        return self.followed.commands

    @property
    def settings(self) -> list[Setting]:
        """What it sets, in order."""
        return self.followed.settings

    def value(self, name: str) -> Word | None:
        """The last value that a variable was given, for the whole script or for one command."""
        found = [Word(one.value, one.line) for one in self.settings if one.name == name]
        found += [command.environment[name] for command in self.commands if name in command.environment]
        return found[-1] if found else None

    def matching(self, pattern: str, flags: int = 0) -> list[tuple[int, re.Match[str]]]:
        """Every line that has the pattern, by its number."""
        compiled = re.compile(pattern, flags)
        return [(number, found) for number, line in enumerate(self.lines, 1) if (found := compiled.search(line))]


def read_script(text: str, given: Mapping[str, str] | None = None) -> Script:
    """Read a text. Nothing of it is run; `given` are variables that are set outside it."""
    text = clean(text.replace("\r\n", "\n"))
    prose = _is_prose(text)
    code = _code_of(text) if prose else text
    directives = tuple(directives_of(code))
    variables = environment_of({**_from_queue(directives), **(given or {})})
    try:
        followed = follow(code, variables)
    except RecursionError as error:
        raise ParamsError(
            "the script's quotes and brackets are nested too deep to be read; is it a job script?"
        ) from error
    return Script(text, directives, followed, prose)


def directives_of(code: str) -> list[Directive]:
    """The #SBATCH and #PBS lines.

    >>> [(one.name, one.value) for one in directives_of("#PBS -l select=4:system=x,walltime=1:00:00")]
    [('select', '4:system=x'), ('walltime', '1:00:00')]
    """
    found = []
    for line, text in enumerate(code.splitlines(), 1):
        for queue, pattern in (("slurm", _SLURM), ("pbs", _PBS)):
            if match := pattern.match(text):
                found += options_of(queue, _words(match[1]), line)
    return found


def options_of(queue: str, words: Sequence[str], line: int) -> list[Directive]:
    """Requests given as options, of a directive or of sbatch and qsub themselves."""
    found: list[Directive] = []
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not word.startswith("-"):
            break  # the script's own name
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--"):
            name, equals, value = word[1:2], word[2:], word[2:].removeprefix("=")
        following = place < len(words) and not words[place].startswith("-")
        if not equals and following and name not in _FLAGS:
            value = words[place]
            place += 1
        if queue == "slurm":
            found.append(Directive(queue, _SHORT.get(name, name), value, line))
        else:
            found += _pbs(name, value, line)
    return found


_FLAGS = ("exclusive", "requeue", "no-requeue", "overcommit", "V", "verbose", "wait", "parsable")
_SHORT = {
    "N": "nodes",
    "n": "ntasks",
    "p": "partition",
    "A": "account",
    "t": "time",
    "J": "job-name",
    "q": "qos",
    "c": "cpus-per-task",
    "o": "output",
    "e": "error",
    "G": "gpus",
    "C": "constraint",
    "a": "array",
    "d": "dependency",
}


def _pbs(name: str, value: str, line: int) -> list[Directive]:
    if name != "l":
        return [Directive("pbs", name, value, line)]
    found = []
    for part in re.split(r",(?=[a-z_]+=)", value):
        resource, _, amount = part.partition("=")
        found.append(Directive("pbs", resource, amount.strip('"'), line))
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # a quote that is not closed
        return text.split()


def _from_queue(directives: Sequence[Directive]) -> dict[str, str]:
    """Variables that Slurm sets from what a script asks for."""
    values = {one.name: one.value for one in directives if one.queue == "slurm"}
    devices = re.search(r"\d+$", values.get("gpus-per-node") or values.get("gres", ""))
    return {
        "SLURM_NNODES": values.get("nodes", ""),
        "SLURM_JOB_NUM_NODES": values.get("nodes", ""),
        "SLURM_GPUS_PER_NODE": devices[0] if devices else "",
        "SLURM_NTASKS_PER_NODE": values.get("ntasks-per-node", ""),
        "SLURM_CPUS_PER_TASK": values.get("cpus-per-task", ""),
    }


def _is_prose(text: str) -> bool:
    if text.startswith("#!"):
        return False
    return any(_FENCE.match(line) for line in text.splitlines())


def _code_of(text: str) -> str:
    """The code blocks of a page, other lines empty, so that line numbers stay."""
    inside: str | None = None
    rows = []
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if fence and inside is None:
            inside = fence[1].lower()
            rows.append("")
        elif fence:
            inside = None
            rows.append("")
        elif inside in _SHELL_FENCES:
            rows.append(re.sub(r"^\s*\$ ", "", line) if inside == "console" else line)
        else:
            rows.append("")
    return "\n".join(rows) + "\n"

"""Requests to a queue as a script writes them.

These are #SBATCH, #PBS and #BSUB lines, and options of sbatch, qsub and bsub.
"""

import re
import shlex
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Directive:
    """One request to the queue."""

    queue: str
    """slurm, pbs or lsf."""
    name: str
    """Without dashes; of `-l select=2` the resource."""
    value: str
    line: int


def directives_of(code: str) -> list[Directive]:
    """Return the #SBATCH, #PBS and #BSUB lines.

    >>> script = "#PBS -l select=4:system=x,walltime=1:00:00"
    >>> [(directive.name, directive.value) for directive in directives_of(script)]
    [('select', '4:system=x'), ('walltime', '1:00:00')]
    """
    directives = []
    for line, text in enumerate(code.splitlines(), 1):
        match = re.match(r"#(SBATCH|PBS|BSUB)\s+(.*)", text)
        if match is None:
            continue
        try:
            options = shlex.split(match[2], comments=True)
        except ValueError:  # a quote that is not closed
            options = match[2].split()

        directives += options_of(_QUEUES[match[1]], options, line)

    return directives


_QUEUES = {"SBATCH": "slurm", "PBS": "pbs", "BSUB": "lsf"}


def options_of(queue: str, directive_words: Sequence[str], line: int) -> list[Directive]:
    """Requests given as options, of a directive or of sbatch and qsub themselves."""
    directives: list[Directive] = []
    remaining = deque(directive_words)
    # The next word is the script's own name
    while remaining and remaining[0].startswith("-"):
        word = remaining.popleft()
        name, equals, value = word.lstrip("-").partition("=")
        # LSF's long options have one dash
        if not word.startswith("--") and queue != "lsf":
            name = word[1:2]
            equals = word[2:]
            value = word[2:].removeprefix("=")

        if not equals and remaining and not remaining[0].startswith("-") and name not in _FLAGS:
            value = remaining.popleft()
        if queue == "slurm":
            directives.append(Directive(queue, _SHORT.get(name, name), value, line))
        elif name == "l":
            parts = (part.partition("=") for part in re.split(r",(?=[a-z_]+=)", value))
            directives += [
                Directive(queue, resource, amount.strip('"'), line) for resource, _, amount in parts
            ]
        else:
            directives.append(Directive(queue, name, value, line))

    return directives

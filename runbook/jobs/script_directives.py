"""Parses what a job script requests from its queue.

The requests are the directives for Slurm (#SBATCH), PBS (#PBS), LSF (#BSUB), Grid Engine (#$),
Fujitsu's queue (#PJM), OAR (#OAR), Cobalt (#COBALT), Moab and Bridge at CEA (#MSUB), Flux (#flux:)
and Donau (#DSUB), and options to sbatch, qsub and bsub.
"""

import re
import shlex
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

_FLAGS = (
    "exclusive",
    "requeue",
    "no-requeue",
    "overcommit",
    "V",
    "verbose",
    "wait",
    "parsable",
    "cwd",
    "notify",
)
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
    """A single request to the queue."""

    queue: str
    """slurm, pbs, lsf, sge (Grid Engine), pjm (Fujitsu's), oar, cobalt, msub, flux or dsub."""
    name: str
    """Name without dashes; for `-l select=2`, the name of the resource."""
    value: str
    line: int


def directives_of(code: str) -> list[Directive]:
    """Return those requests in a script's comments, such as #SBATCH lines, that its queue reads.

    >>> script = "#PBS -l select=4:system=x,walltime=1:00:00"
    >>> [(directive.name, directive.value) for directive in directives_of(script)]
    [('select', '4:system=x'), ('walltime', '1:00:00')]
    >>> script = "#$ -l rt_AF=16"
    >>> [(directive.name, directive.value) for directive in directives_of(script)]
    [('nodes', '16')]
    >>> script = "#OAR -l /nodes=2/gpu=4,walltime=1:30:00"
    >>> [(directive.name, directive.value) for directive in directives_of(script)]
    [('nodes', '2'), ('gpu', '4'), ('walltime', '1:30:00')]
    """
    end = _first_command(code)
    return [entry for entry in all_directives(code) if entry.line < end or not _has_end(entry)]


def late_directives(code: str) -> list[Directive]:
    r"""Return the requests after a script's first command, which its queue does not read.

    Requests in a here-document are left out, because they belong to a different script.

    >>> late_directives("#SBATCH -N 2\nmodule load x\n#SBATCH -N 8")[0].value
    '8'
    """
    end = _first_command(code)
    directives = all_directives(_without_here_documents(code))
    return [entry for entry in directives if entry.line > end and _has_end(entry)]


def _has_end(directive: Directive) -> bool:
    """Return whether the directive's queue stops reading at the first command."""
    return directive.queue in _STOP_AT_FIRST_COMMAND


_STOP_AT_FIRST_COMMAND = ("slurm", "pbs")
"""Queues that ignore everything after "the first non-comment non-whitespace line" (sbatch(1)), or
after the first line that is "not blank, not a directive line, nor a line whose first non white
space character is #" (qsub of PBS).

LSF and Grid Engine read the whole script.
"""


def _first_command(code: str) -> int:
    """Return the number of the first line that is neither blank nor a comment.

    If there is no such line, return the number of lines plus one.
    """
    lines = code.split("\n")
    for number, text in enumerate(lines, 1):
        if text.strip() and not text.lstrip().startswith("#"):
            return number
    return len(lines) + 1


def _without_here_documents(code: str) -> str:
    """Return a script in which here-documents are replaced by blank lines."""
    lines = []
    last_line = ""
    for text in code.split("\n"):
        if last_line:
            if text.strip() == last_line:
                last_line = ""
            lines.append("")
            continue
        lines.append(text)
        start = _HERE_DOCUMENT.search(text)
        if start and not text.lstrip().startswith("#"):
            last_line = start[1]
    return "\n".join(lines)


_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?\s*[\"'\\]?([A-Za-z_]\w*)")


def all_directives(code: str) -> list[Directive]:
    """Return the requests in all lines of a text, such as a page with several scripts."""
    directives = []
    for line, text in enumerate(code.split("\n"), 1):  # Count lines as bash does
        match = _DIRECTIVE.match(text)
        if match is None:
            continue
        try:
            options = shlex.split(match[3], comments=True)
        except ValueError:  # A quote is not closed
            options = match[3].split()

        queue = _QUEUES[(match[1] or match[2]).upper()]
        if queue == "oar":
            options = _with_whole_requests(options)
        directives += options_of(queue, options, line)

    return directives


def _with_whole_requests(options: Sequence[str]) -> list[str]:
    """Return the words of an OAR request. The value of -l is one word, even if it has spaces.

    >>> _with_whole_requests(["-l", "{mem_core", ">", "3000}/nodes=2", "-q", "x"])
    ['-l', '{mem_core > 3000}/nodes=2', '-q', 'x']
    """
    whole: list[str] = []
    for word in options:
        is_next = len(whole) > 1 and whole[-2] == "-l" and not re.match("-[A-Za-z-]", word)
        if is_next:
            whole[-1] += f" {word}"
        else:
            whole.append(word)
    return whole


# A comment that begins with #$ is a request only if an option follows. Flux allows spaces before
# #flux:, but not after it.
_DIRECTIVE = re.compile(
    r"#(?:(SBATCH|PBS|BSUB|PJM|OAR|COBALT|MSUB|DSUB|\$(?=\s+-))\s+|\s*(FLUX:|flux:)\s*)(.*)"
)
_QUEUES = {
    "SBATCH": "slurm",
    "PBS": "pbs",
    "BSUB": "lsf",
    "$": "sge",
    "PJM": "pjm",
    "OAR": "oar",
    "COBALT": "cobalt",
    "MSUB": "msub",
    "FLUX:": "flux",
    "DSUB": "dsub",
}
_LONG_WITH_ONE_DASH = ("lsf", "sge", "dsub")
"""Queues whose long options have a single dash: -nnodes, -cwd."""
_RESOURCES = ("l", "L", "rsc-list")
"""Options that request resources: -l in PBS and Grid Engine, -L and --rsc-list in Fujitsu's queue."""
_WHOLE_NODES = re.compile(r"node|nodes|node_f|f_node|rt_[A-Z]?F")
"""Resources that count whole nodes.

Fujitsu's queue calls this resource `node`. In Grid Engine, its name depends on the machine: node_f
on TSUBAME, rt_F and rt_AF on ABCI.
"""


def options_of(queue: str, directive_words: Sequence[str], line: int) -> list[Directive]:
    """Return the requests in directive options, or in options to sbatch, qsub and bsub."""
    directives: list[Directive] = []
    remaining = deque(directive_words)
    # The first word without a dash is the script name
    while remaining and remaining[0].startswith("-"):
        name, value = _take_option(queue, remaining)
        if queue == "slurm":
            directives.append(Directive(queue, _SHORT.get(name, name), value, line))
        elif name in _RESOURCES:
            directives += _resources(queue, value, line)
        else:
            directives.append(Directive(queue, name, value, line))

    return directives


def _take_option(queue: str, remaining: deque[str]) -> tuple[str, str]:
    """Remove the next option and its value, and return both; the value may be empty."""
    word = remaining.popleft()
    name, equals, value = word.lstrip("-").partition("=")
    if not word.startswith("--") and queue not in _LONG_WITH_ONE_DASH:
        name = word[1:2]
        equals = word[2:]
        value = word[2:].removeprefix("=")
    if equals or name in _FLAGS or not remaining or not _is_value(remaining[0]):
        return name, value
    value = remaining.popleft()
    if queue == "sge" and name == "pe" and remaining:  # -pe NAME SLOTS
        value = f"{value} {remaining.popleft()}"
    return name, value


def _is_value(word: str) -> bool:
    """Return whether the word after an option is the option value, not the next option."""
    return not word.startswith("-") or re.fullmatch(r"-\d+", word) is not None


def _resources(queue: str, value: str, line: int) -> list[Directive]:
    """Return the resources in a list such as `select=4,walltime=1:00:00`."""
    if queue == "oar":
        return _resources_of_oar(value, line)
    directives = []
    for part in re.split(r",(?=[A-Za-z_][\w.]*=)", value):
        name, _, amount = part.partition("=")
        if queue in ("sge", "pjm") and _WHOLE_NODES.fullmatch(name):
            name = "nodes"
        directives.append(Directive(queue, name, amount.strip('"'), line))
    return directives


def _resources_of_oar(value: str, line: int) -> list[Directive]:
    """Return the resources in a hierarchy such as /cluster=2/nodes=4/gpu=8, whose levels multiply.

    Nodes are counted over all clusters, and devices per node. If hierarchies are added, the number
    of nodes is left as text.

    >>> wanted = _resources_of_oar("{mem > 3000}/cluster=2/nodes=4/gpu=8,walltime=2", 1)
    >>> [(directive.name, directive.value) for directive in wanted]
    [('l', '{mem > 3000}'), ('cluster', '2'), ('nodes', '8'), ('gpu', '8'), ('walltime', '2')]
    """
    directives = []
    for condition in _CONDITION_OF_OAR.findall(value):
        directives.append(Directive("oar", "l", condition, line))
    hierarchy, comma, walltime = _CONDITION_OF_OAR.sub("", value).rpartition(",walltime=")
    if not comma:
        hierarchy = walltime
    if "+" in hierarchy:
        directives.append(Directive("oar", "nodes", hierarchy, line))
    else:
        directives += _levels_of_oar(hierarchy, line)
    if comma:
        directives.append(Directive("oar", "walltime", walltime.strip('"'), line))
    return directives


_CONDITION_OF_OAR = re.compile(r"\{[^{}]*\}")


def _levels_of_oar(hierarchy: str, line: int) -> list[Directive]:
    """Return the levels in a hierarchy, with nodes and devices multiplied by counts above them."""
    directives = []
    above = "1"
    for part in re.split(r"[,/](?=[A-Za-z_][\w.]*=)", hierarchy.strip().lstrip("/")):
        name, _, amount = part.partition("=")
        above = _product_of(above, amount.strip('"'))
        if name in ("nodes", "host", "gpu"):
            directives.append(Directive("oar", name, above, line))
        else:
            directives.append(Directive("oar", name, amount.strip('"'), line))
        if name in ("nodes", "host", "walltime"):
            above = "1"
    return directives


def _product_of(above: str, amount: str) -> str:
    """Multiply two counts.

    If a count is ALL or BEST instead of a number, return both counts as words.
    """
    if above == "1":
        return amount
    if re.fullmatch(r"[0-9]{1,9}", above) and re.fullmatch(r"[0-9]{1,9}", amount):
        return str(int(above) * int(amount))
    return f"{above} x {amount}"

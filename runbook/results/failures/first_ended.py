"""Finds the rank or node a log names as the first to end, or as the one that did not answer.

If a log shows only lost connections and waiting ranks, the cause is in the output from another
rank. These lines say which rank or node that is.
"""

import re
from dataclasses import dataclass

from runbook.results.failures.log_line import split_prefix

MAX_EVIDENCE = 300


@dataclass(frozen=True)
class LookNext:
    """The rank or node to read output from next, because it ended or went silent first."""

    line: int
    """Number of the line naming the rank or node, counted from 1."""
    evidence: str
    rank: int | None = None
    host: str = ""


_ENDED = tuple(
    re.compile(pattern)
    for pattern in (
        # Slurm. It terminates the other tasks in the step itself.
        r"srun: error: (?P<host>[^\s:]+): tasks? (?P<rank>\d+)[\d,-]*: (?!Terminated|Killed)[A-Z]",
        # Open MPI
        r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited",
        r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]",
        r"Remote daemon: \[\[\d+,\d+\],\d+\] on node (?P<host>\S+)",
        # Hydra, the launcher for MPICH and Intel MPI
        r"PID \d+ RUNNING AT (?P<host>\S+)",
        # Flux
        r"\brank (?P<rank>\d+) on host (?P<host>\S+) (?:exited|failed)",
        # Ray
        r"Node IP: (?P<host>[\d.]+), node ID",
    )
)
"""Lines in which launchers report the rank that ended first."""
_SILENT = tuple(
    re.compile(pattern)
    for pattern in (
        # Horovod, and the PyTorch monitored barrier
        r"\bmissing ranks?: (?P<rank>\d+)",
        r"[Rr]anks? \[?(?P<rank>\d+)[\d, ]*\]? (?:failed to (?:pass|reach)|did not (?:join|reach))",
        # JAX
        r"^/job:jax_worker/replica:\d+/task:(?P<rank>\d+)$",
        # NCCL and Gloo name only the address at the other end.
        r"\bpeer (?P<host>[A-Za-z\d][\w.-]*)<\d+>",
        r"[Cc]onnection (?:closed|reset) by (?:remote )?peer \[?(?P<host>[A-Za-z\d][\w.-]*)[\]<:]",
    )
)
"""Lines in which other ranks report a rank that does not answer."""
WORDS = (
    "srun: error: ",
    "process rank ",
    "process name: [[",
    "remote daemon: ",
    "running at ",
    " on host ",
    "node ip: ",
    "missing rank",
    "failed to pass",
    "failed to reach",
    "did not join",
    "did not reach",
    "/job:jax_worker/",
    "closed connection",
    "closed by",
    "reset by",
)
"""Every line that names such a rank contains one of these lower-case strings.

Healthy logs rarely contain them, so the search takes hardly any time.
"""


class FirstEndedFinder:
    """Stores the first launcher line naming a rank, or else the first such line from a rank."""

    def __init__(self) -> None:
        self._ended: LookNext | None = None
        self._silent: LookNext | None = None

    def look(self, line: str, number: int) -> None:
        """Examine a line containing one of `WORDS`."""
        if self._ended is None:
            self._ended = _named_in(line, number, _ENDED)
        if self._silent is None:
            self._silent = _named_in(line, number, _SILENT)

    def forget(self) -> None:
        """Forget everything, because training continued."""
        self._ended = None
        self._silent = None

    @property
    def first(self) -> LookNext | None:
        """Return the rank or node a launcher names, or else the one another rank names."""
        return self._ended or self._silent


def _named_in(line: str, number: int, patterns: tuple[re.Pattern[str], ...]) -> LookNext | None:
    text = split_prefix(line).text
    for pattern in patterns:
        match = pattern.search(text)
        if match is None:
            continue
        named = match.groupdict()
        rank = named.get("rank")
        return LookNext(
            line=number,
            evidence=text.strip()[:MAX_EVIDENCE],
            rank=None if rank is None else int(rank),
            host=named.get("host") or "",
        )
    return None

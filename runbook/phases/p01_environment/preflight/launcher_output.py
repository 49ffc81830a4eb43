"""Finds out from launcher output which process ended first.

Processes that ended later did so as a consequence.
"""

import re
from dataclasses import dataclass

from runbook.core import shell
from runbook.phases.messages import PhaseMessage
from runbook.plan_file.node_lists import expand_names

ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):.*?"
    r"host\s*: (?P<host>\S+).*?rank\s*: (?P<rank>\d+).*?exitcode\s*: (?P<code>-?\d+)",
    re.DOTALL,
)
"""The report that torchrun prints, which contains the rank."""
TASK_ENDED = re.compile(r"srun: error: (?P<node>\S+): tasks? (?P<task>\S+): (?P<words>.+)")
LAUNCH_FAILED = re.compile(
    r"srun: error: Task launch for \S+ failed on node (?P<node>\S+): (?P<words>.+)"
)
"""Slurm's message when the daemon on a node cannot start a program. Tasks on other nodes then
end."""
NOT_REACHED = "Communication"
"""Begins Slurm's words if srun on the job's first node does not reach a node's daemon."""
PYTHON_DID_NOT_START = re.compile(r"^Fatal Python error: (?P<words>init\w*: .+)$", re.MULTILINE)
PYTHON_HOME = re.compile(r"^\s*PYTHONHOME = '(?P<home>.+)'$", re.MULTILINE)
"""Python's own report when it cannot find its modules. Its last line only names an empty frame."""
OWN_LINES = re.compile(r"runbook: |srun: |slurmstepd|\s*$")
"""Lines from the launcher and from our own scripts."""
OWN_ERROR = re.compile(r"^srun: error: (?P<words>.+)$", re.MULTILINE)
NODE_LOST = re.compile(r"srun: error: Node failure on (?P<nodes>\S+)")
JOB_ENDED = re.compile(r"\*\*\* JOB \S+ ON \S+ CANCELLED AT [^*]*")
"""Slurm's message when a user or the queue ends a whole job, not just one of its steps."""
MAX_WORDS = 300


@dataclass(frozen=True)
class QueueEnd:
    """The reason why the queue ended a job."""

    words: str
    lost_nodes: tuple[str, ...] = ()


def queue_end(errors: str) -> QueueEnd | None:
    r"""Return why the queue ended a job, according to the job's stderr, or None.

    >>> queue_end("srun: error: Node failure on n2\nsrun: forcing job termination\n")
    QueueEnd(words='a node was lost: Node failure on n2', lost_nodes=('n2',))
    >>> queue_end("slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-27T04:40:30 ***\n")
    """
    lost = NODE_LOST.search(errors)
    if lost is not None:
        words = f"a node was lost: Node failure on {lost['nodes']}"
        return QueueEnd(words, tuple(expand_names(lost["nodes"])))
    ended = JOB_ENDED.search(errors)
    if ended is not None:
        return QueueEnd(f"the queue ended it: {ended[0].strip('* ')}")
    return None


def first_end(errors: str) -> str:
    r"""Return which process in a step ended first and how, according to stderr.

    Return an empty string if stderr does not show it.

    >>> first_end("python3: No module named x\nsrun: error: n2: task 1: Exited with exit code 1\n")
    'task 1 on n2: Exited with exit code 1: python3: No module named x'
    >>> first_end("srun: error: n2: task 1: Exited with exit code 1\npython3: No module named x\n")
    'task 1 on n2: Exited with exit code 1: python3: No module named x'
    >>> first_end("srun: error: n2: task 1: Exited with exit code 1\n")
    'task 1 on n2: Exited with exit code 1'
    """
    launch = LAUNCH_FAILED.search(errors)
    if launch is not None:
        reason = launch["words"].strip()
        is_unreached = reason.startswith(NOT_REACHED)
        message = PhaseMessage.LAUNCH_UNREACHED if is_unreached else PhaseMessage.LAUNCH_FAILED
        return message.fill(node=launch["node"], text=reason)
    report = ROOT_CAUSE.search(errors)
    if report is not None:
        ending = shell.how_it_ended(_exit_code(int(report["code"])))
        return PhaseMessage.RANK_ENDED_FIRST.fill(
            rank=report["rank"], host=report["host"], ending=ending
        )

    fatal_error = _why_python_did_not_start(errors)
    last_words = fatal_error
    ending = ""
    for line in errors.splitlines():
        ended = TASK_ENDED.match(line)
        if ended is not None and not ending:
            ending = PhaseMessage.TASK_ENDED.fill(
                task=ended["task"], node=ended["node"], text=ended["words"].strip()
            )

        if not fatal_error and not OWN_LINES.match(line):
            last_words = line.strip()[:MAX_WORDS]
        # Output from a task and the report that it has ended arrive separately, so the output may
        # come last.
        if ending and last_words:
            return f"{ending}: {last_words}"

    return ending or last_words or _launchers_own_error(errors)


def unreached_nodes(errors: str) -> list[str]:
    r"""Return the nodes that srun on the first node could not reach.

    >>> unreached_nodes("srun: error: Task launch for StepId=12.0 failed on node n2: Communication "
    ...     "connection failure\n")
    ['n2']
    """
    nodes = []
    for launch in LAUNCH_FAILED.finditer(errors):
        if launch["words"].startswith(NOT_REACHED):
            nodes.append(launch["node"])
    return nodes


def _launchers_own_error(errors: str) -> str:
    r"""Return why srun could start no task at all: its first and its last error.

    >>> _launchers_own_error("srun: error: Couldn't load plugin mpi/pmix\nsrun: error: Invalid MPI "
    ...     "type 'pmix', --mpi=list for acceptable types\n")
    "Couldn't load plugin mpi/pmix; Invalid MPI type 'pmix', --mpi=list for acceptable types"
    """
    texts = [text.strip() for text in OWN_ERROR.findall(errors)]
    if not texts:
        return ""
    first_and_last = dict.fromkeys((texts[0], texts[-1]))
    return "; ".join(first_and_last)[:MAX_WORDS]


def _why_python_did_not_start(errors: str) -> str:
    """Return the fatal error in Python, with the PYTHONHOME that caused it, or an empty string."""
    fatal = PYTHON_DID_NOT_START.search(errors)
    if fatal is None:
        return ""
    home = PYTHON_HOME.search(errors)
    if home is None:
        return fatal["words"]
    return PhaseMessage.PYTHON_HOME_MISLEADS.fill(words=fatal["words"], home=home["home"])


def _exit_code(code: int) -> int:
    """Return the exit code as a shell reports it; torchrun writes a signal as a negative number."""
    return 128 - code if code < 0 else code

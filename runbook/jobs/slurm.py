"""Slurm commands (sbatch, squeue, scontrol, sacct and scancel) and parsers for their output."""

import contextlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from runbook.core import shell
from runbook.core.errors import JobError
from runbook.core.locks import HOLDER_VARIABLE
from runbook.core.units import clock_seconds
from runbook.jobs.job_folder import WORST_FIRST, JobFolder, JobState
from runbook.jobs.job_request import (
    NodeCores,
    QueueLimits,
    Reservation,
    UnusableNodes,
    whole_number,
)
from runbook.jobs.messages import JobMessage
from runbook.jobs.queue import Queue, QueueJob, QueueSilentError
from runbook.jobs.script_directives import directives_of
from runbook.plan_file.node_lists import expand_names

SQUEUE_COLUMNS = ("job", "word", "token", "partition", "nodes", "reason")
"""Columns printed by `_SQUEUE`, as fields of a `QueueJob`.

The reason is last, because it is a sentence.
"""
SACCT_COLUMNS = ("job", "word", "code", "partition", "nodes", "token")
_SQUEUE = ("squeue", "--noheader", "--all", "--states=all", "--format=%i|%T|%k|%P|%N|%r")
_SACCT = (
    *("sacct", "--allocations", "--noheader", "--parsable2"),
    "--format=JobID,State,ExitCode,Partition,NodeList,Comment",
)
_SUBMIT_PREFIX = "SBATCH_"
_OPTION_OF_VARIABLE = {
    "TIMELIMIT": "time",
    "ARRAY_INX": "array",
    "MEM_PER_NODE": "mem",
    "MEM_PER_CPU": "mem",
    "MEM_PER_GPU": "mem",
    "NO_REQUEUE": "requeue",
}
"""The option set by an sbatch variable, where the two names differ.

See the section INPUT ENVIRONMENT VARIABLES of sbatch(1).
"""
_NOTHING = ("None", "(null)", "None assigned")

_STATES = {
    JobState.PENDING: (
        "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT"
    ),
    JobState.RUNNING: "RUNNING COMPLETING SUSPENDED STOPPED SIGNALING STAGE_OUT RESIZING",
    JobState.DONE: "COMPLETED",
    JobState.FAILED: "FAILED OUT_OF_MEMORY",
    JobState.CANCELLED: "CANCELLED",
    JobState.TIMEOUT: "TIMEOUT DEADLINE",
    JobState.LOST: "NODE_FAIL BOOT_FAIL PREEMPTED REVOKED",
}
_STATE_OF = {word: state for state, state_words in _STATES.items() for word in state_words.split()}

NEVER = frozenset(
    {
        "PartitionTimeLimit",
        "PartitionNodeLimit",
        "DependencyNeverSatisfied",
        "InvalidAccount",
        "InvalidQOS",
        "BadConstraints",
        "AccountNotAllowed",
        "QOSNotAllowed",
        "QOSMaxWallDurationPerJobLimit",
        "QOSMaxNodePerJobLimit",
        "QOSMaxCpuPerJobLimit",
        "QOSMaxGRESPerJob",
        "QOSTimeLimit",
        "AssocMaxWallDurationPerJobLimit",
        "AssocMaxNodePerJobLimit",
        "AssociationTimeLimit",
        "MaxWallDurationPerJobLimit",
        "MaxNodePerJobLimit",
        "ReservationDeleted",
    }
)
"""Reasons for waiting that do not go away by themselves."""


def state_of(word: str) -> JobState:
    """Convert a Slurm state to ours; UNKNOWN for any other word.

    >>> print(state_of("RUNNING"), state_of("CANCELLED by 1000"), state_of("NODE_FAIL"))
    running cancelled lost
    >>> print(state_of("FROZEN"))
    unknown
    """
    first_word = word.strip().partition(" ")[0]
    return _STATE_OF.get(first_word.rstrip("+"), JobState.UNKNOWN)


def never_starts(reason: str) -> bool:
    """Return whether a job is waiting for something that somebody must fix first.

    >>> never_starts("PartitionTimeLimit"), never_starts("Resources"), never_starts(
    ...     "Job's account not known, so it can't use this partition (paid allows physics)")
    (True, False, True)
    """
    return reason in NEVER or "account not" in reason or "QOS not" in reason


def parse_jobs(text: str, columns: Sequence[str]) -> list[QueueJob]:
    """Return one entry for each line of output from squeue or sacct.

    Malformed lines are left out.
    """
    jobs = []
    for line in text.splitlines():
        fields = line.split("|", len(columns) - 1)
        if len(fields) != len(columns) or not re.match(r"\d+", fields[0]):
            continue
        values = {}
        for name, field in zip(columns, fields, strict=True):
            values[name] = "" if field in _NOTHING else field
        values["token"] = values["token"].strip()
        exit_code = parse_exit_code(values.pop("code", ""))
        jobs.append(QueueJob(**values, state=state_of(values["word"]), exit_code=exit_code))

    return jobs


def parse_exit_code(text: str) -> int | None:
    """Return the exit code that a shell would show for Slurm's CODE:SIGNAL.

    `text` is such a pair, or output of `scontrol show job` that contains such a pair. Return None
    if there is no such pair.

    >>> parse_exit_code("1:0"), parse_exit_code("0:15"), parse_exit_code("strange")
    (1, 143, None)
    >>> parse_exit_code("A=1 ExitCode=3:0")
    3
    """
    match = re.search(r"(?:^|(?:^| )ExitCode=)(\d+):(\d+)(?: |$)", text.strip())
    if match is None:
        return None
    exit_code = int(match[1])
    signal = int(match[2])
    if exit_code == 0 and signal:
        return 128 + signal
    return exit_code


def _partition(line: str) -> QueueLimits:
    fields = line.split()
    values = dict(word.partition("=")[::2] for word in fields)
    limits_shown = [word for word in fields if word.partition("=")[0] in _SHOWN_LIMITS]
    return QueueLimits(
        name=values["PartitionName"],
        state=values.get("State", "UP"),
        default=values.get("Default") == "YES",
        max_seconds=clock_seconds(values.get("MaxTime", "")),
        max_nodes=whole_number(values.get("MaxNodes", "")),
        min_nodes=whole_number(values.get("MinNodes", "")),
        total_nodes=whole_number(values.get("TotalNodes", "")),
        accounts=_names(values.get("AllowAccounts", "ALL")),
        denied_accounts=_names(values.get("DenyAccounts", "ALL")),
        jobs_per_core=jobs_per_core(values.get("OverSubscribe", "")),
        default_node_memory=whole_number(values.get("DefMemPerNode", "")),
        default_core_memory=whole_number(values.get("DefMemPerCPU", "")),
        gives_whole_nodes=values.get("OverSubscribe", "").startswith("EXCLUSIVE"),
        words=" ".join(limits_shown),
    )


def jobs_per_core(oversubscribe: str) -> int:
    """Return how many jobs share each core in a partition, even without asking to share.

    >>> jobs_per_core("FORCE:2"), jobs_per_core("FORCE"), jobs_per_core("YES:4"), jobs_per_core("NO")
    (2, 4, 1, 1)
    """
    word, _, count = oversubscribe.partition(":")
    if word != "FORCE":
        return 1
    return int(count) if count.isdecimal() else _JOBS_PER_CORE


_JOBS_PER_CORE = 4
"""Slurm uses this number for a plain OverSubscribe=FORCE."""
_SHOWN_LIMITS = (
    "PartitionName",
    "AllowAccounts",
    "DenyAccounts",
    "MaxNodes",
    "MaxTime",
    "MinNodes",
    "State",
    "TotalNodes",
)
"""The limits in `scontrol show partition` that an error message quotes."""


def _names(text: str) -> tuple[str, ...]:
    if text in ("ALL", "(null)", ""):
        return ()
    return tuple(text.split(","))


def together(jobs: Sequence[QueueJob]) -> QueueJob | None:
    """Combine the entries for all elements of an array.

    The array is running while any element is running. After that, the worst final state counts.
    """
    order = (JobState.RUNNING, JobState.PENDING, JobState.UNKNOWN, *WORST_FIRST)
    return min(jobs, key=lambda job: order.index(job.state), default=None)


class Slurm(Queue):
    """Queries Slurm and submits jobs to it, using the commands installed on a login node."""

    kind = "slurm"
    name = "Slurm"
    speaker = "Slurm's controller"
    queue_word = "partition"
    end_word = "cancel"
    programs = ("sbatch", "squeue", "scontrol", "scancel")
    limits_question = ("scontrol", "--oneliner", "--all", "show", "partition")
    # Output from sbatch --parsable, possibly with the cluster name
    job_id_line = re.compile(r"(\d+)(?:;.*)?")
    # A user's start-up file may set another format, such as `relative`
    environment: ClassVar[Mapping[str, str]] = {"SLURM_TIME_FORMAT": "standard"}
    unknown_job = ("Invalid job id",)
    broken_off = (
        "Socket timed out",
        "Zero Bytes",
        "Transport endpoint",
        "Connection reset",
        "Unexpected message",
        # sbatch prints this if the controller's answer has no error code
        "Unspecified error",
    )
    unreached = ("Unable to contact slurm controller",)
    full = ("temporarily unable to accept job", "job queue full")
    no_history = ("accounting storage is disabled",)

    def parse_limits(self, text: str) -> list[QueueLimits]:
        """Return the partitions listed by `scontrol --oneliner --all show partition`."""
        lines = text.splitlines()
        limits: list[QueueLimits] = []
        for line in lines:
            if line.startswith("PartitionName="):
                limits.append(_partition(line))

        return limits

    def submission(
        self,
        token: str,
        after: Sequence[str],
        follows: str = "",
    ) -> tuple[list[str], dict[str, str | None]]:
        """Return the `sbatch` command, and the environment variables that it must not inherit.

        sbatch would take the variables (SLURM_*) of an outer allocation as options for the new job.
        """
        argv = ["sbatch", "--parsable", f"--comment={token}"]
        if after:
            argv += [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"]
        if follows:
            argv.append(f"--dependency=afterany:{follows}")
        slurm_variables = (name for name in os.environ if name.startswith("SLURM_"))
        removed = [HOLDER_VARIABLE, *slurm_variables]
        return argv, {name: None for name in removed if name != "SLURM_CONF"}

    def other_variables(self, environment: Mapping[str, str]) -> list[str]:
        """Return the sbatch variables in an environment, each with its value."""
        names = sorted(name for name in environment if name.startswith(_SUBMIT_PREFIX))
        return [f"{name}={environment[name]}" for name in names]

    def overriding_variables(self, script: str, environment: Mapping[str, str]) -> list[str]:
        r"""Return the sbatch variables whose options the script itself sets.

        For sbatch, its variables, which a shell start-up file may set, take precedence over script
        lines. A variable for an option that the script does not set, such as an account, is kept.

        >>> variables = {"SBATCH_PARTITION": "debug", "SBATCH_ACCOUNT": "me", "SBATCH_TIMELIMIT": "5"}
        >>> script = "#SBATCH --partition=main\n#SBATCH --time=1:00:00\n"
        >>> Slurm().overriding_variables(script, variables)
        ['SBATCH_PARTITION', 'SBATCH_TIMELIMIT']
        """
        options_set = {directive.name for directive in directives_of(script)}
        overriding = []
        for variable in environment:
            name = variable.removeprefix(_SUBMIT_PREFIX)
            option = _OPTION_OF_VARIABLE.get(name, name.lower().replace("_", "-"))
            if name != variable and option in options_set:
                overriding.append(variable)

        return overriding

    def submit(
        self,
        folder: JobFolder,
        token: str,
        after: Sequence[str],
        follows: str = "",
    ) -> str:
        """Submit job.sh from the job folder with sbatch.

        A job that can never start is cancelled immediately. sbatch accepts jobs beyond the
        partition limits on time, nodes and accounts, and they would wait forever.
        """
        number = super().submit(folder, token, after, follows)
        try:
            job = self.ask(number)
        except QueueSilentError:
            return number

        if job is None or job.state is not JobState.PENDING or not never_starts(job.reason):
            return number
        self.end(number)
        raise JobError(
            JobMessage.NEVER_STARTS,
            folder=folder.path,
            number=number,
            reason=job.reason,
            partition=job.partition,
        )

    def find(self, folder: JobFolder, token: str) -> str | None:
        """Find a job by its comment, in the queue and in the accounting database (if any)."""
        jobs = parse_jobs(self.answer(*_SQUEUE, f"--user={os.getuid()}"), SQUEUE_COLUMNS)
        with contextlib.suppress(QueueSilentError):
            jobs += parse_jobs(self.answer(*_SACCT, "--starttime=now-7days"), SACCT_COLUMNS)
        marked = (_whole(job.job) for job in jobs if token and job.token == token)
        return next(marked, None)

    def ask(self, job: str) -> QueueJob | None:
        """Ask squeue while the controller remembers the job, and sacct afterwards.

        squeue does not show exit codes, so the exit code comes from scontrol.
        """
        queued = self.answer(*_SQUEUE, "--array", f"--jobs={job}", accept=self.unknown_job)
        entry = together(_elements(job, parse_jobs(queued, SQUEUE_COLUMNS)))
        if entry is not None and entry.state in (JobState.FAILED, JobState.DONE):
            details = self.answer(
                "scontrol",
                "--oneliner",
                "show",
                "job",
                entry.job,
                accept=("",),
            )
            return replace(entry, exit_code=parse_exit_code(details))

        if entry is not None:
            return entry
        problem = "The controller no longer knows the job, and sacct does not answer."
        ended = self.answer(*_SACCT, f"--jobs={job}", accept=self.no_history, problem=problem)
        return together(_elements(job, parse_jobs(ended, SACCT_COLUMNS)))

    def queues(self, names: Sequence[str]) -> list[dict[str, str]]:
        """Ask `sinfo` how many nodes each partition has in each state."""
        text = self.answer(
            "sinfo", "--noheader", f"--partition={','.join(names)}", "--format=%R|%a|%l|%D|%T|%N"
        )
        columns = ("queue", "state", "time limit", "nodes", "are", "which")
        return [dict(zip(columns, line.split("|"), strict=True)) for line in text.splitlines()]

    def unusable_nodes(self, partition: str, names: Sequence[str] = ()) -> list[UnusableNodes]:
        """Return the nodes in a partition, or among these names, that do not accept jobs.

        Each entry has the reason that operators or Slurm gave.
        """
        selected = f"--nodes={','.join(names)}" if names else f"--partition={partition}"
        text = self.answer(
            "sinfo",
            "--noheader",
            "--list-reasons",
            selected,
            "--format=%D|%N|%T|%E",
        )
        return parse_unusable_nodes(text)

    def node_output(self, job: str, node: str, *argv: str) -> str:
        """Start a program on a node of a running job, and return its output.

        It is started from here, so it works even if the first node cannot reach the other node.
        """
        ended = self.run_once(
            "srun",
            "--overlap",
            f"--jobid={job}",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={node}",
            *argv,
        )
        if ended.exit_code:
            raise QueueSilentError(shell.last_lines(ended.err, 6))
        return ended.out

    def completing_jobs(self, partition: str) -> list[tuple[str, str]]:
        """Return the jobs that have ended but still hold nodes, with the nodes, in a partition.

        Slurm gives such nodes to no other job until the epilog and all processes have ended.
        """
        selected = [f"--partition={partition}"] if partition else []
        text = self.answer(
            *("squeue", "--noheader", "--all", "--states=COMPLETING"), *selected, "--format=%i|%N"
        )
        pairs = [line.partition("|")[::2] for line in text.splitlines()]
        return [(job.strip(), nodes.strip()) for job, nodes in pairs if nodes.strip()]

    def is_leaving(self, job: str) -> bool:
        """Return whether job nodes still run the last steps or the site epilog."""
        text = self.answer(
            "squeue",
            "--noheader",
            f"--jobs={job}",
            "--states=RUNNING,COMPLETING",
            "--format=%i",
            accept=self.unknown_job,
        )
        return bool(text.strip())

    def most_cores(self, partition: str) -> int:
        """Return the core count of a partition's largest node, or 0 if Slurm does not report it."""
        text = self.answer("sinfo", "--noheader", f"--partition={partition}", "--format=%c")
        counts = [whole_number(word.rstrip("+")) for word in text.split()]
        return max(counts, default=0)

    def configuration(self) -> dict[str, str]:
        """Return the settings in slurm.conf, with defaults for those that are not set there."""
        return parse_configuration(self.answer("scontrol", "show", "config"))

    def reservations(self) -> list[Reservation]:
        """Return the nodes reserved now or later."""
        return parse_reservations(self.answer("scontrol", "--oneliner", "show", "reservation"))

    def node_cores(self, partition: str) -> dict[str, NodeCores]:
        """Return the cores of each node in a partition."""
        text = self.answer(
            *("sinfo", "--noheader", f"--partition={partition}", "--Node"),
            "--format=%N|%X|%Y|%Z",
        )
        return parse_node_cores(text)


def parse_configuration(text: str) -> dict[str, str]:
    r"""Parse the settings from `scontrol show config` output.

    >>> parse_configuration("MaxArraySize            = 1001\nWaitTime = 0 sec\nHASH_VAL = Match\n")
    {'MaxArraySize': '1001', 'WaitTime': '0 sec', 'HASH_VAL': 'Match'}
    """
    settings = {}
    for line in text.splitlines():
        name, separator, value = line.partition(" = ")
        if separator:
            settings[name.strip()] = value.strip()

    return settings


def parse_reservations(text: str) -> list[Reservation]:
    r"""Return the reservations listed by `scontrol --oneliner show reservation`.

    >>> parse_reservations("ReservationName=maint StartTime=2026-11-29T12:00:00 "
    ...     "EndTime=2026-11-29T20:00:00 Nodes=n[1-2],n4 NodeCnt=3 Flags=MAINT\n")[0].nodes
    ('n1', 'n2', 'n4')
    """
    reservations = []
    for line in text.splitlines():
        values = dict(word.partition("=")[::2] for word in line.split())
        start = _seconds_of(values.get("StartTime", ""))
        end = _seconds_of(values.get("EndTime", ""))
        if "ReservationName" not in values or start is None or end is None:
            continue
        reservation = Reservation(
            name=values["ReservationName"],
            start=start,
            end=end,
            nodes=tuple(expand_names(values.get("Nodes", ""))),
            flags=frozenset(values.get("Flags", "").split(",")),
            users=_names(values.get("Users", "")),
            accounts=_names(values.get("Accounts", "")),
            num_cores=whole_number(values.get("CoreCnt", "")),
            cores_of=_reserved_cores(line),
        )
        reservations.append(reservation)

    return reservations


def _reserved_cores(line: str) -> dict[str, int]:
    """Return how many cores of each node a reservation has, if it lists them.

    >>> _reserved_cores("Nodes=n[1-2] CoreCnt=4 NodeName=n1 CoreIDs=0-1,7 NodeName=n2 CoreIDs=3")
    {'n1': 3, 'n2': 1}
    """
    counts = {}
    for name, identifiers in re.findall(r"NodeName=(\S+) CoreIDs=(\S+)", line):
        counts[name] = len(expand_names(f"[{identifiers}]"))

    return counts


def parse_node_cores(text: str) -> dict[str, NodeCores]:
    r"""Parse the output of `sinfo --Node --format=%N|%X|%Y|%Z`: sockets, cores of each, threads.

    >>> parse_node_cores("n1|2|16|2\nn2|1|8+|1\n")
    {'n1': NodeCores(cores=32, threads=2), 'n2': NodeCores(cores=8, threads=1)}
    """
    nodes = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != 4:
            continue
        sockets, cores, threads = (whole_number(field.strip()) for field in fields[1:])
        nodes[fields[0].strip()] = NodeCores(sockets * cores, max(1, threads))

    return nodes


def _seconds_of(text: str) -> float | None:
    """Convert a time printed by Slurm to seconds since 1970; None for `Unknown`."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


def parse_unusable_nodes(text: str) -> list[UnusableNodes]:
    r"""Return the nodes listed by `sinfo --list-reasons --format=%D|%N|%T|%E`.

    >>> parse_unusable_nodes("1|node2|drained|broken fan\n")
    [UnusableNodes(count=1, names='node2', state='drained', reason='broken fan')]
    """
    entries = []
    for line in text.splitlines():
        if line.count("|") >= 3:
            entries.append(line.split("|", 3))

    nodes: list[UnusableNodes] = []
    for count, names, state, reason in entries:
        nodes.append(UnusableNodes(int(count), names, state, reason.strip()))

    return nodes


def _elements(job: str, entries: Sequence[QueueJob]) -> list[QueueJob]:
    """Return the entries that belong to a job: a single one, or one per array element."""
    return [entry for entry in entries if _whole(entry.job) == job]


def _whole(job: str) -> str:
    """Return the job id, such as 12 for array element 12_3."""
    return job.partition("_")[0]

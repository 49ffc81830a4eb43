"""Slurm's answers as text, read: squeue, sbatch, scontrol, sacct; nothing here asks a machine."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.schedulers.asked import Limits, clock_seconds
from runbook.schedulers.base import State
from runbook.schedulers.queue_base import QueueJob

SQUEUE_FORMAT = "%i|%T|%k|%P|%N|%r"
"""Job, state, comment, partition, nodes, reason: the reason last, since it is a sentence."""

SACCT_FIELDS = "JobID,State,ExitCode,Partition,NodeList,Comment"

_STATES = {
    State.PENDING: "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT",
    State.RUNNING: "RUNNING COMPLETING SUSPENDED STOPPED SIGNALING STAGE_OUT RESIZING",
    State.DONE: "COMPLETED",
    State.FAILED: "FAILED OUT_OF_MEMORY",
    State.CANCELLED: "CANCELLED",
    State.TIMEOUT: "TIMEOUT DEADLINE",
    State.LOST: "NODE_FAIL BOOT_FAIL PREEMPTED REVOKED",
}
_STATE_OF = {word: state for state, words in _STATES.items() for word in words.split()}

NEVER = frozenset(
    [
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
    ]
)
"""Reasons of a waiting job that no time mends."""


def state_of(word: str) -> State:
    """Our state of Slurm's word; a word that is none of Slurm's is UNKNOWN.

    >>> print(state_of("RUNNING"), state_of("CANCELLED by 1000"), state_of("NODE_FAIL"), state_of("FROZEN"))
    running cancelled lost unknown
    """
    return _STATE_OF.get(word.split()[0].rstrip("+") if word.split() else "", State.UNKNOWN)


def parse_job_id(parsable: str) -> str:
    r"""The number that `sbatch --parsable` printed, without the cluster's name; empty where there is none.

    >>> parse_job_id("sbatch: warning of the site\n12;cluster\n"), parse_job_id("nothing")
    ('12', '')
    """
    for line in reversed(parsable.splitlines()):
        if match := re.fullmatch(r"(\d+)(;.*)?", line.strip()):
            return match[1]
    return ""


def never_starts(reason: str) -> bool:
    """Whether a waiting job's reason is one that waiting does not mend.

    >>> never_starts("PartitionTimeLimit"), never_starts("Resources"), never_starts(
    ...     "Job's account not known, so it can't use this partition (paid allows physics)")
    (True, False, True)
    """
    return reason in NEVER or "account not" in reason or "QOS not" in reason


def parse_squeue(text: str, format_fields: int = 6) -> list[QueueJob]:
    """One entry a line of `squeue --format=SQUEUE_FORMAT`; lines of another shape are left out."""
    found = []
    for line in text.splitlines():
        fields = line.split("|", format_fields - 1)
        if len(fields) != format_fields or not re.match(r"\d+", fields[0]):
            continue
        job, word, comment, partition, nodes, reason = fields
        found.append(
            QueueJob(
                job=job,
                state=state_of(word),
                word=word,
                reason="" if reason in ("None", "(null)") else reason,
                partition=partition,
                nodes=nodes,
                token="" if comment == "(null)" else comment.strip(),
            )
        )
    return found


def parse_sacct(text: str) -> list[QueueJob]:
    """One entry a job of `sacct --allocations --parsable2 --noheader --format=SACCT_FIELDS`."""
    found = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < 6 or not re.match(r"\d+", fields[0]):
            continue
        job, word, code, partition, nodes = fields[:5]
        found.append(
            QueueJob(
                job=job,
                state=state_of(word),
                word=word,
                reason="",
                exit_code=parse_exit_code(code),
                partition=partition,
                nodes="" if nodes == "None assigned" else nodes,
                token="|".join(fields[5:]).strip(),
            )
        )
    return found


def parse_exit_code(text: str) -> int | None:
    """The code a shell would show for Slurm's CODE:SIGNAL.

    >>> parse_exit_code("1:0"), parse_exit_code("0:15"), parse_exit_code("strange")
    (1, 143, None)
    """
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if match is None:
        return None
    return int(match[1]) or (128 + int(match[2]) if int(match[2]) else 0)


def parse_job_exit_code(scontrol: str) -> int | None:
    """ExitCode of `scontrol --oneliner show job`."""
    match = re.search(r"(?:^| )ExitCode=(\d+:\d+)(?: |$)", scontrol)
    return parse_exit_code(match[1]) if match else None


def parse_partitions(text: str) -> list[Limits]:
    """The partitions of `scontrol --oneliner --all show partition`."""
    found = []
    for line in text.splitlines():
        if not line.startswith("PartitionName="):
            continue
        values = dict(word.partition("=")[::2] for word in line.split())
        most = values.get("MaxNodes", "")
        found.append(
            Limits(
                name=values["PartitionName"],
                state=values.get("State", "UP"),
                default=values.get("Default") == "YES",
                max_seconds=clock_seconds(values.get("MaxTime", "")),
                max_nodes=int(most) if most.isdigit() else 0,
                min_nodes=_number(values.get("MinNodes", "")),
                total_nodes=_number(values.get("TotalNodes", "")),
                accounts=_names(values.get("AllowAccounts", "ALL")),
                denied_accounts=_names(values.get("DenyAccounts", "ALL")),
                words=_short(line),
            )
        )
    return found


def together(jobs: Sequence[QueueJob]) -> QueueJob | None:
    """One entry for all elements of an array: it runs while one does, and its end is the worst of theirs."""
    order = (
        State.RUNNING,
        State.PENDING,
        State.UNKNOWN,
        State.FAILED,
        State.TIMEOUT,
        State.LOST,
        State.CANCELLED,
        State.STOPPED,
        State.DONE,
    )
    return min(jobs, key=lambda job: order.index(job.state)) if jobs else None


def _short(line: str) -> str:
    """What limits a job, of a partition's long line."""
    names = ("PartitionName", "AllowAccounts", "DenyAccounts", "MaxNodes", "MaxTime", "MinNodes", "State", "TotalNodes")
    return " ".join(word for word in line.split() if word.startswith(tuple(f"{name}=" for name in names)))


def _names(text: str) -> tuple[str, ...]:
    return () if text in ("ALL", "(null)", "") else tuple(text.split(","))


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0

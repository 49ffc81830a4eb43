"""Which remedies were tried on one machine.

A drill makes the failure, and the job after it goes on by the remedy. A defect is made on a node, a preflight names
it, and sound nodes pass; the node was not asked again after each single defect was taken away.
"""

from dataclasses import dataclass

from runbook.results.failures import kinds
from runbook.results.failures.rule import FailureKind


@dataclass(frozen=True)
class Trial:
    """One remedy that was tried."""

    kind: FailureKind
    how: str
    place: str
    """A drill (`runbook drill NAME`), a test, or a defect of tests/slurm/defects.py, by which anyone can repeat it."""


TRIALS = (
    Trial(
        kinds.SHARED_MEMORY,
        "a node with /dev/shm of 16 MB fails a preflight; nodes with more pass",
        "defect shm",
    ),
    Trial(
        kinds.LIMITS,
        "a node with 300 open files fails a preflight; nodes with the usual limit pass",
        "defect nofile",
    ),
    Trial(
        kinds.RANK_HUNG,
        "the rank is ended with its stacks saved, and the next job resumes",
        "drill 08-hang",
    ),
    Trial(
        kinds.INTERFACE,
        "an interface that is not there fails a preflight; with the right one nodes pass",
        "defect no-interface",
    ),
    Trial(
        kinds.RENDEZVOUS,
        "a name that means this node itself fails a preflight; nodes with right names pass",
        "defect loopback-name",
    ),
    Trial(
        kinds.PORT,
        "ports held by a left-over program fail a preflight; nodes without it pass",
        "defect taken-port",
    ),
    Trial(
        kinds.DISK,
        "a training stops on a full disk and goes on when there is space",
        "drill 06-disk-full",
    ),
    Trial(
        kinds.STORAGE,
        "a run folder that is read-only on one node fails a preflight; where it is writable, nodes pass",
        "defect read-only",
    ),
    Trial(
        kinds.COMPILE_CACHE,
        "a cache that takes no libraries fails a preflight; nodes with their own disk pass",
        "defect noexec",
    ),
    Trial(
        kinds.STALE_LOCK,
        "the lock of a process that is gone is taken over",
        "drill 10-stale-lock",
    ),
    Trial(
        kinds.CHECKPOINT_DAMAGE,
        "a damaged checkpoint is left out and the one before it resumed",
        "drill 04-damaged-checkpoint",
    ),
    Trial(
        kinds.CHECKPOINT_FIT,
        "a checkpoint of another layout is resumed by the own trainer",
        "drill 13-other-layout",
    ),
    Trial(
        kinds.REFUSED_JOB,
        "a walltime over the partition's limit is refused; on another partition the job runs",
        "defect time-limit",
    ),
    Trial(
        kinds.PREEMPTED,
        "the job saves at the signal, and the next one resumes",
        "drill 07-preemption",
    ),
    Trial(
        kinds.KILLED,
        "a rank is killed, and the next job resumes",
        "drill 01-kill-rank",
    ),
)


def trial_of(kind: FailureKind) -> Trial | None:
    """Return how a remedy was tried. None if it was not."""
    return next((trial for trial in TRIALS if trial.kind == kind), None)

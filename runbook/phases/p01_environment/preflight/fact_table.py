"""What differences between nodes mean: a row for each kind of fact that needs its own rule.

A fact without a row must be the same on all nodes, and a difference is a warning.
"""

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from runbook.node_checks.fact_sheet.group_names import FactGroup


class Meaning(StrEnum):
    """What a difference of a fact between nodes means."""

    NATURAL = "natural"
    """The fact differs between sound nodes."""
    WARNING = "warning"
    DEFECT = "defect"
    """Training runs with this difference are known to fail, or to stop without a message."""


@dataclass(frozen=True)
class FactRow:
    """A pattern for facts in a group, and what a difference between nodes means."""

    group: FactGroup
    pattern: str
    meaning: Meaning
    source: str
    tolerance: float = 0.0
    """Two numbers count as equal if they differ by at most this share of the larger one."""


PROTOCOL_VARIABLES = (
    "ALGO",
    "BUFFSIZE",
    "COLLNET_ENABLE",
    "CROSS_NIC",
    "MAX_CTAS",
    "MAX_NCHANNELS",
    "MIN_CTAS",
    "MIN_NCHANNELS",
    "NET",
    "NTHREADS",
    "NVLS_ENABLE",
    "PROTO",
)
"""NCCL variables used to choose the protocol for a collective, without their prefix."""
NCCL_SOURCE = "NCCL user guide, environment variables: all ranks must choose the same protocol"
DETAIL_SOURCE = (
    "torch.distributed, TORCH_DISTRIBUTED_DEBUG: with DETAIL, a rank checks each collective with "
    "all other ranks, and waits for those that do not"
)
MEMORY_SOURCE = (
    "the kernel derives it from the size of main memory, which firmware changes a little"
)
JOB_SOURCE = "the scheduler gives each node, step and task its own"
FACT_TABLE = (
    *[
        FactRow(FactGroup.ENVIRONMENT, f"NCCL_{name}", Meaning.DEFECT, NCCL_SOURCE)
        for name in PROTOCOL_VARIABLES
    ],
    FactRow(FactGroup.ENVIRONMENT, "TORCH_DISTRIBUTED_DEBUG", Meaning.DEFECT, DETAIL_SOURCE),
    *[
        FactRow(FactGroup.ENVIRONMENT, pattern, Meaning.NATURAL, JOB_SOURCE)
        for pattern in ("SLURM*", "SRUN*", "PBS_*", "PMI*", "OMPI_*", "PRTE_*", "PALS_*", "*RANK*")
    ],
    *[
        FactRow(
            FactGroup.ENVIRONMENT, pattern, Meaning.NATURAL, "names the node or its login session"
        )
        for pattern in ("HOST", "HOSTNAME", "SSH_*", "XDG_SESSION_*", "KRB5CCNAME", "_", "SHLVL")
    ],
    *[
        FactRow(
            FactGroup.ENVIRONMENT, pattern, Meaning.NATURAL, "systemd gives each service its own"
        )
        for pattern in ("INVOCATION_ID", "JOURNAL_STREAM", "MEMORY_PRESSURE_*", "SYSTEMD_*")
    ],
    *[
        FactRow(FactGroup.ENVIRONMENT, pattern, Meaning.NATURAL, "the node's own devices")
        for pattern in ("*_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
    ],
    *[
        FactRow(FactGroup.KERNEL_SETTINGS, pattern, Meaning.WARNING, MEMORY_SOURCE, 0.1)
        for pattern in (
            "fs.file-max",
            "kernel.threads-max",
            "net.core.bpf_jit_limit",
            "net.ipv4.tcp_max_*",
            "net.ipv4.tcp_mem",
            "net.ipv4.tcp_*hash_entries",
            "user.max_*_namespaces",
            "vm.lowmem_reserve_ratio",
            "vm.min_free_kbytes",
            "vm.user_reserve_kbytes",
        )
    ],
    *[
        FactRow(
            FactGroup.KERNEL_SETTINGS, pattern, Meaning.NATURAL, "a new random number at each boot"
        )
        for pattern in ("net.core.netdev_rss_key", "net.ipv4.tcp_fastopen_key")
    ],
    FactRow(FactGroup.KERNEL_SETTINGS, "kernel.*_next_id", Meaning.NATURAL, "a counter"),
    FactRow(FactGroup.LIMITS, "RLIMIT_SIGPENDING", Meaning.WARNING, MEMORY_SOURCE, 0.1),
    FactRow(FactGroup.LIMITS, "RLIMIT_NPROC", Meaning.WARNING, MEMORY_SOURCE, 0.1),
    FactRow(
        FactGroup.SYSTEM, "largest frequency", Meaning.WARNING, "the chips of a series differ", 0.02
    ),
    FactRow(FactGroup.SYSTEM, "SwapTotal", Meaning.WARNING, "disks differ by some blocks", 0.1),
    FactRow(FactGroup.FOLDERS, "*: bytes", Meaning.WARNING, MEMORY_SOURCE, 0.1),
    FactRow(FactGroup.NETWORK, "firewall", Meaning.WARNING, "containers add rules", 0.5),
)
"""The first row that matches a fact applies."""


def row_of(group: FactGroup, fact: str) -> FactRow:
    """Return a fact's row. By default, a fact must be equal on all nodes, or there is a warning."""
    for row in FACT_TABLE:
        if row.group == group and fnmatchcase(fact, row.pattern):
            return row
    return FactRow(group, fact, Meaning.WARNING, "nodes of one job have the same set-up")

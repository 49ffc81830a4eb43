"""A check together with the nodes that it concerns."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from runbook.planning import Check


class PreflightCheck(StrEnum):
    """Names for the checks on the nodes in a job, as shown in records and tables."""

    ALL_REDUCE = "all-reduce"
    BANDWIDTH = "bandwidth between nodes"
    BOUND_CORES = "cores of the ranks"
    CLOCK = "clock of a node"
    COMPILERS = "compilers"
    CORES = "cores of a node"
    CUDA_COMPILER = "CUDA compiler"
    CUT_LIBRARIES = "complete libraries"
    DEVICE_FILES = "device files"
    EQUAL_MEMORY = "memory of the nodes"
    FOREIGN_PROGRAMS = "programs outside of the job"
    GPUS = "GPUs of a node"
    HOME_FOLDER = "home folder"
    HOST_MEMORY = "host memory"
    HOST_NAMES = "host names"
    KEPT_SHARED_MEMORY = "shared memory after a log-out"
    KERNEL_CACHES = "caches of kernels"
    KERNEL_SETTINGS = "settings of the kernel"
    LATENCY = "latency"
    LEFT_PROGRAMS = "programs of ended jobs"
    LINKS = "links between nodes"
    LINK_CLOCKS = "clocks between nodes"
    LOCALHOST = "localhost"
    LOCKED_MEMORY = "locked memory"
    LOST_PACKETS = "lost packets"
    MATRIX_PRODUCT = "matrix product"
    NAMED_FILES = "files that variables name"
    NETWORK_INTERFACE = "network interface"
    NODE_ADDRESSES = "addresses of the nodes"
    NODE_NAMES = "names of the nodes"
    NODE_SETUP = "node setup"
    OPENING_FILES = "opening files"
    OPEN_FILES = "open files"
    PACKAGES_FOLDER = "folder of packages"
    PACKAGE_SOURCES = "sources of packages"
    PACKET_SIZE = "size of packets"
    PORT = "port"
    PORT_RANGE = "port range"
    PRIORITY = "priority"
    PROCESSES = "processes"
    PROCESS_GROUPS = "process groups"
    PROCESS_LIMITS = "limits of a process"
    PYTHON_ON_PATH = "Python on PATH"
    QUEUE = "queue"
    RANKS = "ranks"
    RENDEZVOUS = "rendezvous"
    REPLACED_PACKAGES = "replaced packages"
    ROUTES = "routes to the nodes"
    SCHEDULER_SETTINGS = "settings of the scheduler"
    SHARED_FOLDER = "shared folder"
    SHARED_MEMORY = "shared memory"
    SHELL_PACKAGES = "packages in this shell"
    SHELL_VARIABLES = "variables of the shell"
    SLOW_CORE = "slow core"
    STEP_END = "end of a step"
    STORES = "folders for downloads"
    SYSTEM_FOLDERS = "folders of the kernel"
    TEMPORARY_FOLDER = "temporary folder"
    TEMPORARY_PATH = "path of the temporary folder"
    THREADS = "threads of the ranks"
    TIME_GRANTED = "time granted"
    TORCH_IMPORT = "import of torch"
    TORCH_LIBRARIES = "libraries of torch"
    TRANSPORT = "transport"
    USER_ACCOUNT = "user account"
    VARIABLES = "variables of the job"
    VERSIONS = "versions"


@dataclass(frozen=True)
class PlacedCheck(Check):
    """The result when a rule is applied to answers from nodes."""

    where: str = ""
    """The nodes that break the rule, or all nodes that were asked."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes to blame.

    Empty if no node breaks the rule, or if no node is to blame.
    """


@dataclass(frozen=True)
class PlacedRule:
    """The condition of a check, and the remedy if it does not hold."""

    name: str
    text: str
    remedy: str = ""

    def passed(self, value: str, where: str = "") -> PlacedCheck:
        """Return the check with the verdict `pass`."""
        return PlacedCheck(
            self.name,
            "pass",
            value,
            self.text,
            where=where,
        )

    def broken(
        self,
        value: str,
        nodes: Sequence[str] = (),
        *,
        remedy: str = "",
        verdict: str = "fail",
    ) -> PlacedCheck:
        """Return this check with the given verdict and the nodes to blame."""
        where = ", ".join(nodes)
        text = remedy or self.remedy
        return PlacedCheck(
            self.name,
            verdict,
            value,
            self.text,
            text,
            where=where,
            nodes=tuple(nodes),
        )

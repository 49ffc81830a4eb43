"""The thresholds for a healthy node, link or group, each with its source.

How long a process group may take is in runbook/plan_file/group_limits.py.
"""

from dataclasses import dataclass

from runbook.core.units import GIB

MIB = 1 << 20


@dataclass(frozen=True)
class Threshold:
    """A number used to decide the verdict for a check."""

    value: float
    unit: str
    source: str


SHM_GPU = Threshold(
    GIB,
    "bytes of /dev/shm on a node with GPUs",
    "NCCL user guide, troubleshooting, shared memory: --shm-size=1g",
)
SHM_CPU = Threshold(
    64 * MIB,
    "bytes of /dev/shm on a node that trains on its CPU",
    "Docker's own default; data loader workers need a few MiB each (PyTorch README, --shm-size)",
)
MEMLOCK_FABRIC = Threshold(
    GIB,
    "bytes that a process may lock if RDMA pins its buffers",
    "NCCL user guide, troubleshooting: --ulimit memlock=-1; ucx issue 8229",
)
MEMLOCK_PLAIN = Threshold(
    4 * MIB,
    "bytes that a process may lock if nothing pins memory",
    "half of the kernel's own default of 8 MiB (linux/resource.h since 5.16)",
)
OPEN_FILES = Threshold(
    1024,
    "open files of a process",
    "the kernel's own soft default; gloo and NCCL open sockets to each peer of each group",
)
THREADS_PER_CORE = Threshold(
    2,
    "OpenMP threads of a node's ranks for each core",
    "two hyper-threads; NeMo Speech issue 8141 (half of the speed), torchtitan issue 4031",
)
PROCESSES = Threshold(
    1024,
    "processes and threads of a user",
    "our choice: 8 ranks with their threads and loader workers",
)
STACK = Threshold(
    MIB,
    "bytes of stack, for the process and for each thread",
    "our choice: Linux has 8 MiB; threads of math libraries overflow a small stack (SIGSEGV)",
)
FILE_SIZE = Threshold(
    64 * GIB,
    "bytes of a file",
    "our choice: a rank's part of a large checkpoint, or a token file",
)
ADDRESS_SPACE = Threshold(
    64 * GIB,
    "bytes of address space on a node that trains on its CPU; GPUs need it unlimited",
    "CUDA C++ programming guide, unified addressing: all memory of host and devices is mapped",
)
PORTS = Threshold(
    1000,
    "ports that the kernel can choose from",
    "our choice: each pair of ranks uses one port per process group; Linux has 28,232 ports",
)
MEMORY_SHARE = Threshold(
    0.9,
    "of the memory that the site states, or that another node has",
    "our choice: the kernel and the firmware keep a few percent; a missing memory module is more "
    "than that",
)
NAME_SECONDS = Threshold(
    1.0,
    "seconds to resolve a node's name for the second time",
    "resolv.conf(5): a name server that does not answer costs 5 s for each name",
)
DATA_SEGMENT = Threshold(
    64 * GIB,
    "bytes of private memory (ulimit -d) on a node that trains on its CPU; GPUs need it unlimited",
    "getrlimit(2): since Linux 4.7 it limits all private maps that can be written",
)
KERNEL_SETTINGS = {
    "net.ipv4.tcp_rmem": Threshold(
        256 << 10,
        "bytes of a connection's largest receive buffer",
        "our choice: 1 Gbit/s over 1 ms fills 125 KiB; Linux has 6 MiB (tcp(7))",
    ),
    "net.ipv4.tcp_wmem": Threshold(
        256 << 10,
        "bytes of a connection's largest send buffer",
        "our choice, as for the receive buffer; Linux has 4 MiB (tcp(7))",
    ),
    "net.ipv4.tcp_window_scaling": Threshold(
        1, "on or off", "tcp(7): without it, a connection has at most 64 KiB in flight"
    ),
    "net.ipv4.tcp_retries2": Threshold(
        3,
        "attempts to send a segment again before the connection ends",
        "our choice: 2 attempts end it after 1.4 s without a network (ip-sysctl.rst: the default "
        "is 15, and RFC 1122 recommends 8)",
    ),
    "net.core.somaxconn": Threshold(
        128,
        "connections that wait to be accepted",
        "listen(2): Linux had 128 before 5.4; all ranks connect to the rendezvous at once",
    ),
    "net.netfilter.nf_conntrack_tcp_timeout_established": Threshold(
        7440,
        "seconds after which the firewall forgets a connection without traffic",
        "RFC 5382, REQ-5: at least 2 h 4 min; ranks are silent while one of them saves or compiles",
    ),
    "kernel.pid_max": Threshold(
        4096, "processes and threads of a node", "our choice: proc(5) names 32,768 as the default"
    ),
    "vm.max_map_count": Threshold(
        65530, "memory maps of a process", "sysctl/vm.rst of the kernel: the default"
    ),
}
"""The lowest value of each sysctl setting at which training still runs at full speed."""
SCRATCH = Threshold(
    256 * MIB,
    "free bytes of the node's temporary folder",
    "our choice: compiled kernels, sockets and unpacked archives",
)
FOLDER_INODES = Threshold(
    1000, "free inodes of a shared folder", "a checkpoint of 8 ranks and its log files"
)
FOLDER_WRITE = Threshold(
    2.0,
    "seconds to write a MiB to the shared folder, in the best of three attempts",
    "our choice: half the speed of 10 Mbit/s Ethernet, at which a GiB would take half an hour",
)
SEEN_SECONDS = Threshold(
    5.0,
    "seconds after which another node's file must be visible",
    "nfs(5): attributes of a changed folder are kept for 3 s or more (acregmin)",
)
FOLDER_STREAM = Threshold(
    0.08,
    "seconds for each further MiB of a file on a node that writes far slower than another",
    "100 Mbit/s Ethernet, the usual management port: 12.5 MB/s",
)
SLOW_WRITER = Threshold(
    5.0,
    "times slower than the node that writes fastest to the same folder",
    "our choice: nodes share a file server, and its load differs less between them",
)
OPEN_MILLISECONDS = Threshold(
    4.0,
    "milliseconds to open a file of Python's packages for the second time",
    "our choice: importing torch opens 4,000 files, which takes 16 s at this speed",
)
OPEN_FACTOR = Threshold(
    4.0,
    "times as long as on the quickest node",
    "our choice: nodes with the same path to a file system differ by less",
)
PACKET_BYTES = Threshold(
    1280, "bytes of the largest packet (MTU)", "RFC 8200, section 5: every IPv6 link supports it"
)
SLOW_CORE = Threshold(
    2.0,
    "times the usual processor time of a loop on one core",
    "our choice: far above the effect of hyper-threads and turbo on one core's processor time",
)
SLOW_NODE = Threshold(
    2.0,
    "times slower than the fastest node in a matrix product or copy",
    "nccl issue 349 and DeepSpeed issue 1617: one slow node halves the speed of all nodes",
)
CLOCK = Threshold(
    1.0,
    "seconds between the clocks of two nodes",
    "the logs of different nodes are merged by time; chrony is accurate to milliseconds",
)
WAIT_TIME = Threshold(
    30,
    "seconds that srun waits for the other tasks after the first one has ended",
    "our choice: some ranks write the last checkpoint or upload it while others have ended",
)
NETWORK_SHARE = Threshold(
    0.5,
    "of the bandwidth that the site states for a node's network",
    (
        "our choice: one TCP connection fills most of a 1 to 10 GbE link, so less than half "
        "means a fault"
    ),
)
FABRIC_SHARE = Threshold(
    0.25,
    "of the stated bandwidth, in an all-reduce of 16 MiB",
    (
        "our choice: 16 MiB is too small for the full bandwidth, but sockets in place of the "
        "fabric are far slower"
    ),
)
NETWORK_FLOOR = Threshold(
    12.5e6,
    "bytes per second between two nodes if the site states no bandwidth",
    "fast Ethernet of 1995: 100 Mbit/s",
)
ROUND_TRIP = Threshold(
    0.05,
    "seconds of the fastest round trip between two nodes",
    (
        "our choice: within a machine room it is below 0.001; more means another continent, or a "
        "link that loses packets"
    ),
)
LOST_PACKETS = Threshold(
    0.01,
    "of the segments of small messages that TCP retransmits",
    (
        "our choice: small messages fill no queue, so a healthy network loses none; 1 % loss "
        "costs TCP most of its bandwidth"
    ),
)
MATRIX_SHARE = Threshold(
    0.4,
    "of the datasheet's TFLOP/s in a matrix product of 8192 rows",
    "ML Engineering (Stas Bekman), achievable matmul: 60 to 87 % on MI300X, H100 and A100",
)
COPY_SHARE = Threshold(
    0.5,
    "of the datasheet's memory bandwidth in a copy of 1 GiB",
    "our choice: healthy GPUs copy at 80 to 95 % of their datasheet's bandwidth",
)

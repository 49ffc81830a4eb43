"""Cluster defects, each created for real on the Slurm test cluster, and the check that must report
each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from broken_node import BrokenNode

SITE_INTERFACE = "GLOO_SOCKET_IFNAME: eth0"
Break = Callable[[BrokenNode, "Place"], None]


@dataclass(frozen=True)
class Place:
    """Paths to the parts that defects break."""

    environment: str
    """The run folder that contains the answers from the nodes."""
    run: str
    packages: str
    """The folder of packages in which the trainer's Python finds torch."""
    package: str
    """The folder of `runbook` itself."""
    python: str
    """The interpreter that the job's `python3` finally resolves to."""
    work: str
    path: str
    """PATH with the cluster programs."""


@dataclass(frozen=True)
class Defect:
    """A defect, and the preflight check that reports it."""

    name: str
    text: str
    checks: tuple[str, ...]
    """One of these checks must be the first to report a defect."""
    words: tuple[str, ...] = ()
    """Text that the check reports if it finds the correct cause."""
    node: str = ""
    """The node that the check must name, among the suspects or in its value."""
    breaks: Break | None = None
    limits: str = ""
    """Shell commands before the program: limits that the queue passes on."""
    options: tuple[str, ...] = ()
    site: Mapping[str, str] = field(default_factory=dict)
    """Texts in the site file, and their replacements."""
    variables: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    """Other checks that must warn."""
    is_simulated: bool = False
    """Whether the defect is simulated by a library that gives wrong answers, because no machine
    here can be broken in this way.
    """
    during: tuple[str, str] = ("", "")
    """A stage, and the cluster command that runs when it begins."""
    program: str = ""
    """A program that creates the defect. The benchmark skips the defect where it is missing."""


def on_node(script: str) -> Break:
    """Run a shell command on the second node, with the {names} of `Place` filled in."""
    return lambda node, place: node.run(script.format(**vars(place)))


def on_first_node(script: str) -> Break:
    """Run a shell command on the first node."""
    return lambda node, place: node.peer("node1").run(script.format(**vars(place)))


def on_both_nodes(script: str) -> Break:
    """Run a shell command on both nodes."""

    def do(node: BrokenNode, place: Place) -> None:
        for name in ("node1", "node2"):
            node.peer(name).run(script.format(**vars(place)))

    return do


def preloaded(*macros: str) -> Break:
    """Preload node_shim.c with these macros, with the {names} of `Place` filled in."""
    return lambda node, place: node.preload(*[macro.format(**vars(place)) for macro in macros])


def old_numpy(node: BrokenNode, place: Place) -> None:
    """Create a folder with another numpy version, as `pip install --target` leaves it."""
    information = Path(place.work, "old", "numpy-1.26.4.dist-info")
    information.mkdir(parents=True, exist_ok=True)
    (information / "METADATA").write_text("Name: numpy\nVersion: 1.26.4\n")


def linked(*options: str) -> Break:
    """Put a bad link in front of the second node, with these bad_link.py options."""
    return lambda node, place: node.bad_link(*options)


def named(*lines: str) -> Break:
    """Write these lines to /etc/hosts on the second node."""
    return lambda node, place: node.hosts(*lines)


def limited(controller: str, first: tuple[str, str], second: tuple[str, str]) -> Break:
    """Limit a control group on the second node, in the format for version 1 or version 2."""

    def do(node: BrokenNode, place: Place) -> None:
        try:
            node.limit(controller, dict([first]))
        except OSError:
            node.limit(controller, dict([second]))

    return do


def failing_files(errno: int, *calls: str) -> Break:
    """Make calls on files in the run fail with this errno on the second node."""
    below = 'FAIL_BELOW="{environment}/preflight"'
    return preloaded(below, f"FAIL_ERRNO={errno}", *calls)


def blocked_data_ports(node: BrokenNode, place: Place) -> None:
    """Let the kernel choose ports from a range that the cable drops. Slurm has its own range."""
    node.run("echo 33000 40000 > /proc/sys/net/ipv4/ip_local_port_range")
    node.bad_link("--first-port=33000", "--last-port=40000")


OTHER_TORCH = """
sed 's/^Version: .*/Version: 2.12.0/' {packages}/torch-*.dist-info/METADATA > {work}/METADATA
mount --bind {work}/METADATA {packages}/torch-*.dist-info/METADATA
"""
EDITED_CHECKOUT = """
sed '1a # a local change' {package}/plan_file/trainer_requirements.py > {work}/changed.py
mount --bind {work}/changed.py {package}/plan_file/trainer_requirements.py
"""
EDITED_PACKAGE = """
sed '1a # a local change' {packages}/megatron/core/optimizer/clip_grads.py > {work}/clip_grads.py
mount --bind {work}/clip_grads.py {packages}/megatron/core/optimizer/clip_grads.py
"""
OTHER_NUMPY = """
sed 's/^Version: .*/Version: 1.21.0/' {packages}/numpy-*.dist-info/METADATA > {work}/NUMPY
mount --bind {work}/NUMPY {packages}/numpy-*.dist-info/METADATA
"""
EMPTY_LIBRARY = """
for library in {packages}/torch/lib/libgomp*; do mount --bind /dev/null $library; done
"""
EMPTY_EXTENSION = """
for library in {packages}/megatron/core/datasets/*.so; do mount --bind /dev/null $library; done
"""
CUT_LIBRARY = """
head -c 2000 {packages}/torch/lib/libshm.so > {work}/libshm.so
mount --bind {work}/libshm.so {packages}/torch/lib/libshm.so
"""
FULL_HOME = """
mkdir -p {work}/small
mount -t tmpfs -o size=1m tmpfs {work}/small
mkdir {work}/small/up {work}/small/work
head -c 2m /dev/zero > {work}/small/up/left || true
options=lowerdir={home},upperdir={work}/small/up,workdir={work}/small/work
mount -t overlay -o $options overlay {home}
"""
"""Files in the home folder can be read, and empty ones created, as with a full quota."""
TMP_WITHOUT_INODES = """
mount -t tmpfs -o nr_inodes=2 tmpfs /tmp
touch /tmp/left
"""
NO_INODES = """
mkdir -p /var/tmp/runbook-tests
mount -t tmpfs -o nr_inodes=2 tmpfs /var/tmp/runbook-tests
touch /var/tmp/runbook-tests/left
"""
NO_ACCOUNT = """
grep -v ^root: /etc/passwd > {work}/passwd
mount --bind {work}/passwd /etc/passwd
grep -v ^passwd: /etc/nsswitch.conf > {work}/nsswitch.conf
echo passwd: files >> {work}/nsswitch.conf
mount --bind {work}/nsswitch.conf /etc/nsswitch.conf
"""
READ_ONLY = "mount --bind {folder} {folder}; mount -o remount,ro,bind {folder}"
SMALL_BUFFERS = """
for name in tcp_rmem tcp_wmem; do echo 4096 4096 4096 > /proc/sys/net/ipv4/$name; done
"""
NOEXEC_ENVIRONMENT = """
environment=$(realpath {packages}/../../..)
mount --bind $environment $environment
mount -o remount,noexec,bind $environment
"""
FILE_FOR_DEVICE = "echo left > {work}/null; mount --bind {work}/null /dev/null"
HALF_MEMORY = """
awk '/^Mem/ {{$2=int($2/2)}} 1' /proc/meminfo > {work}/meminfo
mount --bind {work}/meminfo /proc/meminfo
"""
MEMORY_GIB = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
OLD_LOCK = """
mkdir -p /tmp/runbook-cache-0
mount -t tmpfs tmpfs /tmp/runbook-cache-0
mkdir -p /tmp/runbook-cache-0/extensions/py311_cpu/cpu_adam
touch -d '3 days ago' /tmp/runbook-cache-0/extensions/py311_cpu/cpu_adam/lock
"""
BUSY = "print('ready', flush=True)\nwhile True: pass"
SCRATCH = Path("/var/tmp/runbook-scratch")
NAME_SERVER = Path(__file__).with_name("name_server.py")
LIBSTDCXX = Path("/usr/lib/x86_64-linux-gnu/libstdc++.so.6")
TAKEN_PORTS = """
import socket, time
held = []
for port in range(49152, 49852):
    server = socket.socket()
    server.bind(("", port))
    server.listen()
    held.append(server)
print("ready", flush=True)
time.sleep(1e6)
"""
ODD_SET_UP = """
ip link set eth0 mtu 576
echo 0 > /proc/sys/net/ipv4/tcp_sack
echo left > {work}/gcc
chmod 755 {work}/gcc
mount --bind {work}/gcc $(realpath /usr/bin/gcc)
mount -t tmpfs tmpfs /sys
"""
EXTRA_INTERFACE = """
ip link add ext0 type veth peer name ext1
ip addr add 192.168.66.2/24 dev ext0
ip link set ext0 {state}
ip link set ext1 {state}
"""


def taken_memory(node: BrokenNode, place: Place) -> None:
    """Let a left-over program use most of the memory that the job may use."""
    limit = 1536 << 20
    first = ("memory.limit_in_bytes", str(limit))
    limited("memory", first, ("memory.max", str(limit)))(node, place)
    node.hold_memory(700 << 20)


def failing_prolog(node: BrokenNode, place: Place) -> None:
    """Make the Slurm prolog fail on the second node."""
    script = Path(place.work, "prolog.sh")
    script.write_text('#!/bin/bash\n[ "$SLURMD_NODENAME" != node2 ]\n')
    script.chmod(0o755)
    node.configure(f"Prolog={script}")


def maintenance(node: BrokenNode, place: Place) -> None:
    """Reserve the nodes for maintenance that begins before the job could end."""
    node.reserve("starttime=now+2minutes", "duration=60", "flags=maint,ignore_jobs")


def other_python(node: BrokenNode, place: Place) -> None:
    """Put the system `python` into a folder, as cluster modules do."""
    folder = Path(place.work, "other")
    folder.mkdir(exist_ok=True)
    (folder / "python").unlink(missing_ok=True)
    (folder / "python").symlink_to("/usr/bin/python3")


def older_library(folder_name: str, first_missing: int) -> Break:
    """Copy libstdc++ without the symbols from GLIBCXX_3.4.`first_missing` on, like an older
    release.
    """

    def do(node: BrokenNode, place: Place) -> None:
        folder = Path(place.work, folder_name)
        folder.mkdir(exist_ok=True)
        content = LIBSTDCXX.read_bytes()
        for number in range(first_missing, 40):
            same_length = b"GLIBCXX_3.4.0%c\0" % (ord("a") + number - first_missing)
            content = content.replace(b"GLIBCXX_3.4.%d\0" % number, same_length)
        (folder / LIBSTDCXX.name).write_bytes(content)

    return do


def foreign_torch(node: BrokenNode, place: Place) -> None:
    """Copy a torch library with an extra byte, so that it looks like a different build."""
    folder = Path(place.work, "libtorch")
    folder.mkdir(exist_ok=True)
    own = Path(place.packages, "torch", "lib", "libc10.so")
    (folder / own.name).write_bytes(own.read_bytes() + b"\0")


def taken_ports(node: BrokenNode, place: Place) -> None:
    """Let a leftover program occupy the ports."""
    node.start(place.python, "-c", TAKEN_PORTS)


def slow_names(node: BrokenNode, place: Place) -> None:
    """List a name server that does not answer before the one that knows the nodes."""
    node.hosts("10.66.0.254 head", "10.66.0.2 node2")
    file = Path(place.work, "resolv.conf")
    file.write_text("nameserver 10.66.0.77\nnameserver 10.66.0.2\n")
    node.run(f"mount --bind {file} /etc/resolv.conf")
    node.start(place.python, str(NAME_SERVER), "node1", "10.66.0.1")


def task_prolog(line: str) -> Break:
    """Let the Slurm TaskProlog print a line, such as a variable that each task gets."""

    def do(node: BrokenNode, place: Place) -> None:
        script = Path(place.work, "task_prolog.sh")
        script.write_text(f"#!/bin/bash\necho '{line}'\n")
        script.chmod(0o755)
        node.configure(f"TaskProlog={script}")

    return do


def own_module(node: BrokenNode, place: Place) -> None:
    """Write a user file that is named like a standard library module."""
    folder = Path(place.work, "mine")
    folder.mkdir(exist_ok=True)
    (folder / "random.py").write_text("numbers = [1, 2]\n")


def absent_scratch(node: BrokenNode, place: Place) -> None:
    """Create a folder with files that the second node does not see."""
    SCRATCH.joinpath("checkpoints").mkdir(parents=True, exist_ok=True)
    SCRATCH.joinpath("site.sh").write_text("export SITE=1\n")
    node.run(f"mount -t tmpfs tmpfs {SCRATCH}")


def scheduler_script(option: str, text: str) -> Break:
    """Let Slurm run a script at the point that an option in slurm.conf names."""

    def do(node: BrokenNode, place: Place) -> None:
        script = Path(place.work, f"{option.lower()}.sh")
        script.write_text(f"#!/bin/bash\n{text}\n")
        script.chmod(0o755)
        node.configure(f"{option}={script}")

    return do


def localhost_elsewhere(node: BrokenNode, place: Place) -> None:
    """Make localhost resolve to an address that no node has."""
    names = ("localhost 99", "head 254", "node1 1", "node2 2")
    lines = [f"10.66.0.{name.split()[1]} {name.split()[0]}\n" for name in names]
    file = Path(place.work, "hosts")
    file.write_text("".join(lines))
    node.run(f"mount --bind {file} /etc/hosts")


def odd_set_up(node: BrokenNode, place: Place) -> None:
    """Change settings that a training run tolerates, and make localhost resolve wrongly, which ends
    the preflight early."""
    # With a lower one, a busy machine would starve the node.
    node.set_priority(1)
    node.run(ODD_SET_UP.format(work=place.work))
    localhost_elsewhere(node, place)


def full_home(node: BrokenNode, place: Place) -> None:
    """Let the home folder accept only empty files on both nodes."""
    for name in ("node1", "node2"):
        node.peer(name).run(FULL_HOME.format(work=place.work, home=Path.home()))


def crowded_folder(node: BrokenNode, place: Place) -> None:
    """Put the folder for answers on a disk without free inodes, which both nodes and this machine
    share.
    """
    folder = Path(place.environment)
    node.mount_everywhere(folder, "nr_inodes=2")
    folder.joinpath("left").touch()


def awaited_reboot(node: BrokenNode, place: Place) -> None:
    """Let the second node wait for a reboot that does not come."""
    usual = "MinJobAge=86400"
    node.replace_settings({usual: f"{usual}\nRebootProgram=/bin/true\nResumeTimeout=3600"})
    node.reboot("new kernel")


def full_job_table(node: BrokenNode, place: Place) -> None:
    """Fill Slurm's table of jobs with jobs that are held."""
    usual = "MinJobAge=86400"
    node.replace_settings({usual: f"{usual}\nMaxJobCount=3"})
    node.hold_jobs(3)


def endless_epilog(node: BrokenNode, place: Place) -> None:
    """Let the epilog of an earlier job hang on the second node."""
    script = '[ "$SLURMD_NODENAME" != node2 ] || sleep 3600'
    scheduler_script("Epilog", script)(node, place)
    node.cluster.ask("srun", "--nodes=1", f"--nodelist={node.name}", "true")


def extra_interface(state: str) -> Break:
    """Give the second node a network device that leads nowhere, up or down."""
    return lambda node, place: node.run(EXTRA_INTERFACE.format(state=state))


REMOVED_SHARED_MEMORY = """
mount -t tmpfs -o size=2g,mode=1777 tmpfs /dev/shm
printf '[Login]\\nRemoveIPC=yes\\n' > {work}/logind.conf
[ ! -e /etc/systemd/logind.conf ] || mount --bind {work}/logind.conf /etc/systemd/logind.conf
(while sleep 10; do find /dev/shm -mindepth 1 -user root -delete; done) </dev/null >/dev/null 2>&1 &
"""
"""The loop imitates a user who logs out."""
SHORT_MEMORY_OF_FIREWALL = """
nft 'add table inet f; add chain inet f in {{ type filter hook input priority 0; }};
  add rule inet f in ct state invalid drop'
sysctl -q -w net.netfilter.nf_conntrack_tcp_timeout_established=120
sysctl -q -w net.netfilter.nf_conntrack_tcp_loose=0
"""
LOSSY_CABLE = """
nft 'add table inet f; add chain inet f in {{ type filter hook input priority 0; }};
  add rule inet f in iifname eth0 numgen random mod 100 < 5 drop;
  add chain inet f out {{ type filter hook output priority 0; }};
  add rule inet f out oifname eth0 numgen random mod 100 < 5 drop'
"""
OLDER_PROCESSOR = r"""
sed -e 's/ avx512[a-z0-9_]*//g; s/ avx2//g; s/ fma//g; s/ amx_[a-z0-9]*//g' /proc/cpuinfo |
  sed 's/^model name.*/model name\t: Intel(R) Xeon(R) CPU E5-2670 0 @ 2.60GHz/' > {work}/cpuinfo
mount --bind {work}/cpuinfo /proc/cpuinfo
"""
LONG_TEMPORARY_FOLDER = """
folder=/tmp/runbook-tests/projects/language-models/gpt3-pretraining-2026/users/root/jobs/$SLURM_JOB_ID
mkdir -p $folder
echo "export TMPDIR=$folder"
"""
NO_COMPILER = """
touch {work}/empty
chmod 644 {work}/empty
for name in gcc g++ c++ cc; do
  program=$(readlink -f /usr/bin/$name)
  mountpoint -q $program || mount --bind {work}/empty $program
done
"""
NAMES_BEFORE_FILES = """
sed 's/^hosts:.*/hosts: dns files/' /etc/nsswitch.conf > {work}/nsswitch.conf
mount --bind {work}/nsswitch.conf /etc/nsswitch.conf
echo 'nameserver 10.66.0.77' > {work}/resolv.conf
mount --bind {work}/resolv.conf /etc/resolv.conf
"""
WITHOUT_LOOPBACK = """
nft 'add table inet f; add chain inet f in {{ type filter hook input priority 0; }};
  add rule inet f in iifname lo drop'
"""
FIXED_NEIGHBOUR = "ip neigh replace 10.66.0.1 lladdr 02:00:00:00:00:99 nud permanent dev eth0"
FEW_NEW_CONNECTIONS = """
nft 'add table inet f; add chain inet f in {{ type filter hook input priority 0; }};
  add rule inet f in iifname eth0 tcp dport {{ 16817, 17000, 60001-63000 }} accept;
  add rule inet f in iifname eth0 tcp flags & (syn|ack) == syn ct state new \
    limit rate over 12/minute burst 6 packets drop'
"""
CLOSED_SRUN_PORTS = """
nft 'add table inet f; add chain inet f in {{ type filter hook input priority 0; }};
  add rule inet f in iifname eth0 ip saddr 10.66.0.2 tcp dport 60001-63000 \
    tcp flags & (syn|ack) == syn drop'
"""
FULL_SPOOL = """
mount -t tmpfs -o size=64k tmpfs {spool}
head -c 100k /dev/zero >{spool}/left || true
"""
EPILOG_THAT_KILLS = r"""
for process in /proc/[0-9]*; do
  job=$(tr '\0' '\n' <$process/environ 2>/dev/null | sed -n 's/^SLURM_JOB_ID=//p')
  [ -z "$job" ] || [ "$job" = "$SLURM_JOB_ID" ] || kill -9 ${process#/proc/}
done
exit 0
"""
OLD_TRAINER = """
import os, sys, time
os.chdir(sys.argv[1])
log = open("train-old.log", "a")
print("ready", flush=True)
while True:
    log.write("step\\n")
    log.flush()
    open("latest.tmp", "w").write("step 1200")
    time.sleep(5)
"""
BRIDGE_IN_THE_NETWORK = """
ip link add docker0 type bridge
ip addr add 10.66.0.3/30 dev docker0
ip link set docker0 up
"""


def left_trainer(node: BrokenNode, place: Place) -> None:
    """Keep a rank from an ended job alive on the first node, where it writes to the run folder."""
    words = ("env", "SLURM_JOB_ID=41", "SLURM_PROCID=1", place.python, "-c", OLD_TRAINER, place.run)
    node.peer("node1").start(*words)


def slow_path(node: BrokenNode, place: Place) -> None:
    """Limit the second node to 4 MB/s when it writes to the disk with the run folder."""
    device = Path(place.run).stat().st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    try:
        limits = {"blkio.throttle.write_bps_device": f"{numbers} 4194304"}
        node.limit("blkio", limits)
    except OSError:
        node.limit("io", {"io.max": f"{numbers} wbps=4194304"})


def over_memory_kill(node: BrokenNode, place: Place) -> None:
    """Let Slurm end steps that use more memory than they were given, and give jobs little of it."""
    ends = "JobAcctGatherFrequency=task=5\nJobAcctGatherParams=OverMemoryKill\nDefMemPerNode=300"
    node.replace_settings(
        {
            "JobAcctGatherType=jobacct_gather/none": f"JobAcctGatherType=jobacct_gather/linux\n{ends}",
            "SelectTypeParameters=CR_CPU\n": "SelectTypeParameters=CR_CPU_Memory\n",
        }
    )


NODE_DEFECTS = (
    Defect(
        "cpu-time",
        "10 min of processor time for a process (login node's limit)",
        ("limits of a process",),
        ("10 min",),
        "node2",
        limits="ulimit -t 600;",
    ),
    Defect(
        "cpu-time-of-daemon",
        "1 h of processor time for what a node's slurmd starts",
        ("limits of a process",),
        ("node2", "1 h"),
        "node2",
        lambda node, place: node.limit_processor_time(3600),
    ),
    Defect(
        "removed-shared-memory",
        "logind removes the user's files in /dev/shm at each log-out",
        ("shared memory after a log-out",),
        ("RemoveIPC=yes",),
        "node2",
        on_both_nodes(REMOVED_SHARED_MEMORY),
    ),
    Defect(
        "older-processor",
        "first node with an older processor, without AVX2",
        ("difference: system",),
        ("model name", "flags"),
        "node1",
        on_first_node(OLDER_PROCESSOR),
        is_simulated=True,
    ),
    Defect(
        "long-temporary-folder",
        "TaskProlog with a TMPDIR whose path is too long for sockets",
        ("path of the temporary folder",),
        ("characters",),
        "node2",
        scheduler_script("TaskProlog", LONG_TEMPORARY_FOLDER),
    ),
    Defect(
        "no-compiler",
        "compilers of the first node cannot be run",
        ("difference: programs",),
        ("g++: (not on PATH) on node1",),
        "node1",
        on_first_node(NO_COMPILER),
    ),
    Defect(
        "left-trainer",
        "rank of an ended job that still writes to the run's folder",
        ("programs of ended jobs",),
        ("job 41", "node1"),
        "node1",
        left_trainer,
    ),
    Defect(
        "file-size",
        "files of at most 2 MiB (login node's limit)",
        ("limits of a process",),
        ("file size",),
        "node2",
        limits="ulimit -f 2048;",
    ),
    Defect(
        "address-space",
        "8 GiB of address space (login node's limit)",
        ("limits of a process",),
        ("address space",),
        "node2",
        limits="ulimit -v 8388608;",
    ),
    Defect(
        "stack",
        "128 KiB of stack (login node's limit)",
        ("limits of a process",),
        ("stack",),
        "node2",
        limits="ulimit -s 128;",
    ),
    Defect(
        "shm",
        "/dev/shm of 16 MB",
        ("shared memory",),
        ("16.0 MiB",),
        "node2",
        on_node("mount -t tmpfs -o size=16m tmpfs /dev/shm"),
    ),
    Defect(
        "shm-full",
        "/dev/shm full of another job's files",
        ("shared memory",),
        ("free of",),
        "node2",
        on_node("mount -t tmpfs -o size=100m tmpfs /dev/shm; head -c 95M /dev/zero >/dev/shm/left"),
    ),
    Defect(
        "memlock",
        "64 KiB of locked memory",
        ("locked memory",),
        ("64.0 KiB",),
        limits="ulimit -l 64;",
    ),
    Defect(
        "nofile",
        "300 open files on one node",
        ("open files",),
        ("300",),
        "node2",
        preloaded("NOFILE=300"),
        is_simulated=True,
    ),
    Defect("nproc", "200 processes for a user", ("processes",), ("200",), limits="ulimit -u 200;"),
    Defect(
        "pids",
        "control group with 400 processes (TasksMax)",
        ("processes",),
        ("400",),
        "node2",
        limited("pids", ("pids.max", "400"), ("pids.max", "400")),
    ),
    Defect(
        "memory",
        "memory cgroup of 300 MiB",
        ("host memory",),
        ("300 MiB",),
        "node2",
        limited("memory", ("memory.limit_in_bytes", "300M"), ("memory.max", "300M")),
    ),
    Defect(
        "taken-memory",
        "left-over program in the job's control group that uses most of its memory",
        ("host memory",),
        ("1.50 GiB", "leave"),
        "node2",
        taken_memory,
    ),
    Defect(
        "shm-read-only",
        "/dev/shm read-only",
        ("shared memory",),
        ("/dev/shm", "Read-only"),
        "node2",
        on_node("mount -t tmpfs -o ro tmpfs /dev/shm"),
    ),
    Defect(
        "data-segment",
        "512 MiB of private memory (login node's limit)",
        ("limits of a process",),
        ("private memory", "512 MiB"),
        "node2",
        limits="ulimit -d 524288;",
    ),
    Defect(
        "no-account",
        "user database of a node without the user",
        # Slurm starts no program for a user that the node does not know.
        ("user account", "answers (hosts)"),
        ("node2", "does not know"),
        "node2",
        on_node(NO_ACCOUNT),
    ),
    Defect(
        "device-file",
        "/dev/null is a regular file",
        ("device files",),
        ("/dev/null",),
        "node2",
        on_node(FILE_FOR_DEVICE),
    ),
    Defect(
        "small-buffers",
        "buffers of TCP limited to 4 KiB (sysctl)",
        ("settings of the kernel",),
        ("tcp_rmem", "4.00 KiB"),
        "node2",
        on_node(SMALL_BUFFERS),
    ),
    Defect(
        "busy-program",
        "left-over program that computes",
        ("programs outside of the job",),
        ("print('ready'",),
        "node2",
        lambda node, place: node.start(place.python, "-c", BUSY),
    ),
    Defect(
        "own-module",
        "file of the user on PYTHONPATH that replaces a module of Python",
        ("(no answer)",),
        ("random.py replaces", "PYTHONPATH"),
        "",
        own_module,
        variables={"PYTHONPATH": "{work}/mine"},
    ),
    Defect(
        "home-read-only",
        "home folder read-only",
        ("home folder",),
        ("Read-only",),
        "node2",
        lambda node, place: node.run(READ_ONLY.format(folder=Path.home())),
    ),
    Defect(
        "full-home",
        "home folder that accepts only empty files (full quota)",
        ("home folder",),
        ("No space left",),
        "node2",
        lambda node, place: node.run(FULL_HOME.format(work=place.work, home=Path.home())),
    ),
    Defect(
        "tmp-inodes",
        "/tmp without free inodes",
        ("temporary folder",),
        ("/tmp", "no inodes"),
        "node2",
        on_node(TMP_WITHOUT_INODES),
    ),
    Defect(
        "tmp-read-only",
        "/tmp read-only",
        ("temporary folder",),
        ("/tmp", "Read-only"),
        "node2",
        lambda node, place: node.run(READ_ONLY.format(folder="/tmp")),
    ),
    Defect(
        "half-memory",
        "half of the memory that the site states",
        ("host memory",),
        ("the site states",),
        "node2",
        on_node(HALF_MEMORY),
        site={"cores_per_node: 1": f"cores_per_node: 1\n  node_memory: {MEMORY_GIB}GiB"},
        is_simulated=True,
    ),
    Defect(
        "old-lock",
        "lock that a killed build of an extension left",
        ("caches of kernels",),
        ("cpu_adam/lock",),
        "node2",
        on_node(OLD_LOCK),
    ),
    Defect(
        "node-setup",
        "node_setup reads a file that is not there",
        ("node setup",),
        ("site.sh", "node2"),
        "node2",
        absent_scratch,
        site={
            "launcher: torchrun": f"launcher: torchrun\nnode_setup:\n  - source {SCRATCH}/site.sh"
        },
    ),
    Defect(
        "debug-variable",
        "TaskProlog that exports TORCH_DISTRIBUTED_DEBUG=DETAIL on one node",
        ("difference: environment",),
        ("TORCH_DISTRIBUTED_DEBUG: ", "DETAIL on node2"),
        "node2",
        scheduler_script(
            "TaskProlog",
            '[ "$SLURMD_NODENAME" != node2 ] || echo export TORCH_DISTRIBUTED_DEBUG=DETAIL',
        ),
    ),
    Defect(
        "odd-set-up",
        "localhost at an address that no node has, and a set-up that slows a node down",
        ("localhost",),
        ("10.66.0.99",),
        "node2",
        odd_set_up,
        variables={"LD_PRELOAD": "/opt/gone/libgone.so", "CUDA_LAUNCH_BLOCKING": "1"},
        warnings=(
            "compilers",
            "difference: kernel settings",
            "difference: network",
            "difference: programs",
            "difference: system",
            "files that variables name",
            "folders of the kernel",
            "priority",
            "size of packets",
            "variables of the job",
        ),
    ),
    Defect(
        "one-core",
        "node's daemon bound to one core, site states 2",
        ("cores of a node",),
        ("1 core", "states 2"),
        "node2",
        lambda node, place: node.bind_to_core(0),
        site={"cores_per_node: 1": "cores_per_node: 2"},
    ),
    Defect(
        "quota",
        "cgroup with half a core",
        ("cores of a node",),
        ("0.5 cores",),
        "node2",
        limited("cpu", ("cpu.cfs_quota_us", "50000"), ("cpu.max", "50000 100000")),
    ),
    Defect(
        "cores",
        "site claims more cores than there are",
        ("cores of a node", "nodes of the queue"),
        ("64",),
        site={"cores_per_node: 1": "cores_per_node: 64"},
    ),
    Defect(
        "slow-core",
        "cores that need three times as long",
        ("slow core",),
        ("times as long",),
        "node2",
        preloaded("CPU_CLOCK=3"),
        is_simulated=True,
    ),
    Defect(
        "torch-version",
        "another version of torch",
        ("versions",),
        ("torch 2",),
        "node2",
        on_node(OTHER_TORCH),
    ),
    Defect(
        "numpy-version",
        "another version of numpy",
        ("versions",),
        ("numpy 2", "1.21.0"),
        "node2",
        on_node(OTHER_NUMPY),
    ),
    Defect(
        "empty-library",
        "library of torch that is empty (broken copy)",
        ("import of torch",),
        ("libgomp", "too short"),
        "node2",
        on_node(EMPTY_LIBRARY),
    ),
    Defect(
        "slow-opens",
        "file system that takes 20 ms to open a file, on one node",
        ("opening files",),
        ("opening a file takes 2",),
        "node2",
        lambda node, place: node.slow_opens(0.02),
    ),
    Defect(
        "cut-library",
        "library of torch that was cut short (interrupted copy)",
        ("complete libraries",),
        ("torch", "libshm.so"),
        "node2",
        on_node(CUT_LIBRARY),
    ),
    Defect(
        "old-numpy",
        "PYTHONPATH of the shell with an older numpy",
        ("packages in this shell",),
        ("numpy 1.26.4",),
        "",
        old_numpy,
        variables={"PYTHONPATH": "{work}/old"},
    ),
    Defect(
        "empty-extension",
        "Megatron's compiled helpers empty (broken build)",
        ("complete libraries",),
        ("megatron-core", "node2"),
        "node2",
        on_node(EMPTY_EXTENSION),
    ),
    Defect(
        "python-version",
        "another Python",
        ("versions",),
        ("python 3",),
        "node2",
        on_node("mount --bind /usr/bin/python3 {python}"),
    ),
    Defect(
        "edited-checkout",
        "checkout with a local change, under the same version",
        ("sources of packages",),
        ("gpt3-runbook", "node2"),
        "node2",
        on_node(EDITED_CHECKOUT),
    ),
    Defect(
        "edited-package",
        "installed package with an edited file, under the same version",
        ("sources of packages",),
        ("megatron-core", "node2"),
        "node2",
        on_node(EDITED_PACKAGE),
    ),
    Defect(
        "other-python",
        "another `python` in front on PATH",
        ("Python on PATH",),
        ("other/python",),
        "node2",
        other_python,
        variables={"PATH": "{work}/other:{path}"},
    ),
    Defect(
        "old-libstdc++",
        "LD_LIBRARY_PATH with a libstdc++ that is too old for torch",
        ("import of torch",),
        ("libstdc++", "GLIBCXX_3.4.22", "not found"),
        "node2",
        # torch's wheels need 3.4.22.
        older_library("old", first_missing=22),
        variables={"LD_LIBRARY_PATH": "{work}/old"},
        is_simulated=True,
    ),
    Defect(
        "foreign-torch",
        "LD_LIBRARY_PATH with another torch's libraries",
        ("libraries of torch", "import of torch"),
        ("libc10",),
        "node2",
        foreign_torch,
        variables={"LD_LIBRARY_PATH": "{work}/libtorch"},
        is_simulated=True,
    ),
    Defect(
        "clock",
        "clock 90 s ahead",
        ("clock of a node",),
        ("ahead",),
        "node2",
        preloaded("CLOCK_AHEAD=90"),
        is_simulated=True,
    ),
    Defect(
        "tmp-full",
        "temporary folder full",
        ("temporary folder",),
        (),
        "node2",
        on_node(
            "mkdir -p /var/tmp/runbook-tests; mount -t tmpfs -o size=1m tmpfs /var/tmp/runbook-tests"
        ),
        variables={"TMPDIR": "/var/tmp/runbook-tests"},
    ),
    Defect(
        "no-inodes",
        "temporary folder without free inodes",
        ("temporary folder",),
        ("TMPDIR",),
        "node2",
        on_node(NO_INODES),
        variables={"TMPDIR": "/var/tmp/runbook-tests"},
    ),
    Defect(
        "noexec",
        "folder of compiled kernels mounted noexec",
        ("caches of kernels",),
        ("noexec",),
        "node2",
        on_node(
            "mkdir -p /tmp/runbook-cache-0; mount -t tmpfs -o noexec tmpfs /tmp/runbook-cache-0"
        ),
    ),
    Defect(
        "no-torch",
        "torch half installed",
        ("import of torch",),
        (),
        "node2",
        on_node("mount -t tmpfs tmpfs {packages}/torch"),
    ),
    Defect(
        "sigill",
        "torch built for a newer processor",
        ("import of torch",),
        ("SIGILL",),
        "node2",
        preloaded('PROGRAM="--only-torch"', "END_BY=4", "END_AFTER=0"),
        is_simulated=True,
    ),
    Defect(
        "no-package",
        "runbook's own package not visible on one node",
        ("answers (hosts)",),
        ("No module named",),
        "node2",
        on_node("mount -t tmpfs tmpfs {package}"),
    ),
    Defect(
        "no-python",
        "site names a Python that is not there",
        ("answers (hosts)", "job (hosts)"),
        ("/opt/none/python3",),
        site={"launcher: torchrun": "launcher: torchrun\npython: /opt/none/python3"},
    ),
)
FILE_DEFECTS = (
    Defect(
        "tmp-noexec",
        "/tmp mounted noexec",
        ("caches of kernels",),
        ("/tmp/runbook-cache-0", "noexec"),
        "node2",
        on_node("mount -t tmpfs -o size=2g,noexec,mode=1777 tmpfs /tmp"),
    ),
    Defect(
        "full-home-everywhere",
        "home folder full on both nodes, and HF_HOME in it",
        ("folders for downloads",),
        ("HF_HOME", "No space left"),
        "node1",
        full_home,
        variables={"HF_HOME": "~/hf"},
    ),
    Defect(
        "run-without-inodes",
        "folder of the run on a disk without free inodes",
        ("shared folder",),
        ("no inodes are free",),
        breaks=crowded_folder,
    ),
    Defect(
        "retention",
        "volume that refuses to rename and delete files",
        ("job (hosts)", "shared folder"),
        ("Operation not permitted",),
        breaks=on_both_nodes("bindfs -o nonempty --rename-deny --delete-deny {run} {run}"),
        program="bindfs",
    ),
    Defect(
        "direct-io",
        "FUSE client with direct_io, without shared maps of files",
        ("shared folder",),
        ("map: ",),
        breaks=on_both_nodes("bindfs -o direct_io,nonempty {run} {run}"),
        program="bindfs",
    ),
    Defect(
        "slow-path",
        "node that writes 4 MB/s to the run's folder, the other one far more",
        ("shared folder",),
        ("node2", "fastest node"),
        "node2",
        slow_path,
    ),
    Defect(
        "absent-scratch",
        "folder of the checkpoints not mounted",
        ("shared folder",),
        (str(SCRATCH),),
        "node2",
        absent_scratch,
        site={"rehearses: true": f"rehearses: true\npaths:\n  checkpoints: {SCRATCH}/checkpoints"},
    ),
    Defect(
        "noexec-environment",
        "Python's environment mounted noexec",
        ("folder of packages",),
        ("noexec",),
        "node2",
        on_node(NOEXEC_ENVIRONMENT),
    ),
    Defect(
        "read-only",
        "run folder read-only",
        ("shared folder",),
        ("Read-only file system",),
        "node2",
        on_node("mount --bind {run} {run}; mount -o remount,ro,bind {run}"),
    ),
    Defect(
        "other-folder",
        "another folder under the run's name",
        ("answers (hosts)", "shared folder"),
        (),
        "node2",
        on_node("mount -t tmpfs tmpfs {run}"),
    ),
    Defect(
        "half-mounted",
        "part of the run's folder not mounted",
        ("shared folder",),
        ("No such file",),
        "node2",
        on_node("mount -t tmpfs tmpfs {environment}"),
    ),
    Defect(
        "hung-server",
        "file server that does not answer",
        ("shared folder",),
        ("hangs",),
        "node2",
        lambda node, place: node.hung_mount(place.environment, "never"),
    ),
    Defect(
        "dead-mount",
        "file server that is gone",
        ("shared folder",),
        ("Transport endpoint",),
        "node2",
        lambda node, place: node.hung_mount(place.environment, "gone"),
    ),
    Defect(
        "stale",
        "stale file handle",
        ("shared folder",),
        ("Stale file handle",),
        "node2",
        failing_files(116, "OPEN_FAILS"),
        is_simulated=True,
    ),
    Defect(
        "disk-quota",
        "quota used up",
        ("shared folder",),
        ("quota exceeded",),
        "node2",
        failing_files(122, "WRITE_FAILS"),
        is_simulated=True,
    ),
    Defect(
        "disk-full",
        "no space left",
        ("shared folder",),
        ("No space left",),
        "node2",
        failing_files(28, "WRITE_FAILS"),
        is_simulated=True,
    ),
    Defect(
        "input-output",
        "input/output error of the disk",
        ("shared folder",),
        ("Input/output error",),
        "node2",
        failing_files(5, "WRITE_FAILS"),
        is_simulated=True,
    ),
    Defect(
        "no-map",
        "file system without shared maps of files",
        ("shared folder",),
        ("map: ",),
        "node2",
        failing_files(19, "MAP_FAILS"),
        is_simulated=True,
    ),
    Defect(
        "slow-folder",
        "file server that writes 200 kB/s",
        ("shared folder",),
        ("to write a MiB",),
        "node2",
        failing_files(0, "WRITE_SPEED=200000"),
        is_simulated=True,
    ),
    Defect(
        "no-locks",
        "file system without locks",
        ("shared folder",),
        ("lock: ",),
        "node2",
        failing_files(37, "LOCK_FAILS"),
        is_simulated=True,
    ),
)
NETWORK_DEFECTS = (
    Defect(
        "no-loopback",
        "firewall that drops packets of the loopback interface",
        ("network interface",),
        ("127.0.0.1", "firewall"),
        "node2",
        on_node(WITHOUT_LOOPBACK),
        program="nft",
    ),
    Defect(
        "fixed-neighbour",
        "fixed entry in the table of neighbours, for a network card that was replaced",
        ("answers (hosts)",),
        ("10.66.0.1", "02:00:00:00:00:99"),
        "node2",
        on_node(FIXED_NEIGHBOUR),
    ),
    Defect(
        "few-new-connections",
        "firewall that allows six new connections in 30 s",
        ("links between nodes",),
        ("node1 to node2", "firewall"),
        "node2",
        on_node(FEW_NEW_CONNECTIONS),
        program="nft",
    ),
    Defect(
        "closed-srun-ports",
        "firewall on the first node for the ports of srun",
        ("answers (hosts)",),
        ("node2", "SrunPortRange", "firewall"),
        "node2",
        on_first_node(CLOSED_SRUN_PORTS),
        program="nft",
    ),
    Defect(
        "names-before-files",
        "first node asks a name server that is switched off before /etc/hosts",
        ("names of the nodes",),
        ("node1: ",),
        "node1",
        on_first_node(NAMES_BEFORE_FILES),
    ),
    Defect(
        "forgetful-firewall",
        "firewall that forgets connections after 2 min without traffic",
        ("settings of the kernel",),
        ("nf_conntrack_tcp_timeout_established is 120",),
        "node2",
        on_both_nodes(SHORT_MEMORY_OF_FIREWALL),
        program="nft",
    ),
    Defect(
        "lossy-cable",
        "first node loses 5 % of packets each way",
        ("lost packets",),
        ("%",),
        "node1",
        on_first_node(LOSSY_CABLE),
        program="nft",
    ),
    Defect(
        "bridge",
        "bridge of containers whose network covers the other node",
        ("answers (hosts)", "links between nodes"),
        ("docker0",),
        "node2",
        on_node(BRIDGE_IN_THE_NETWORK),
    ),
    Defect(
        "slow-names",
        "name server that does not answer before the one that does",
        ("names of the nodes",),
        ("node1 took",),
        "node2",
        slow_names,
    ),
    Defect(
        "double-address",
        "node has the other node's address as well",
        ("addresses of the nodes", "answers (hosts)"),
        ("10.66.0.1",),
        "node2",
        on_node("ip addr add 10.66.0.1/32 dev lo"),
    ),
    Defect(
        "one-way",
        "firewall that lets no connection to a node",
        ("links between nodes",),
        ("node1 to node2", "firewall"),
        "node2",
        linked("--drops-connections", "--inwards"),
    ),
    Defect(
        "task-prolog",
        "TaskProlog that exports another interface",
        ("network interface",),
        ("GLOO_SOCKET_IFNAME=lo",),
        "node2",
        task_prolog("export GLOO_SOCKET_IFNAME=lo"),
    ),
    Defect(
        "unknown-name",
        "the other node's name unknown",
        ("names of the nodes",),
        ("node1",),
        "node2",
        named("10.66.0.254 head", "10.66.0.2 node2"),
    ),
    Defect(
        "loopback-name",
        "the other node's name resolves to this node",
        ("names of the nodes",),
        ("127.0.1.1",),
        "node2",
        named("10.66.0.254 head", "127.0.1.1 node1", "10.66.0.2 node2"),
    ),
    Defect(
        "wrong-name",
        "the other node's name resolves to a third node",
        ("addresses of the nodes",),
        ("10.66.0.254",),
        "node2",
        named("10.66.0.254 head node1", "10.66.0.2 node2"),
    ),
    Defect(
        "unreached-name",
        "the other node's name has only an IPv6 address that no node has",
        ("addresses of the nodes",),
        ("fd00:66::1",),
        "node2",
        named("10.66.0.254 head", "fd00:66::1 node1", "10.66.0.2 node2"),
    ),
    Defect(
        "same-name",
        "node has the same name as the other one (copied image)",
        ("host names",),
        ("2 nodes",),
        "node2",
        on_node("hostname node1"),
    ),
    Defect(
        "localhost",
        "node calls itself localhost",
        ("host names",),
        ("localhost",),
        "node2",
        on_node("hostname localhost"),
    ),
    Defect(
        "no-interface",
        "site names an interface that is not there",
        ("network interface",),
        ("eth7",),
        site={SITE_INTERFACE: "GLOO_SOCKET_IFNAME: eth7"},
    ),
    Defect(
        "second-interface",
        "second interface of gloo's list is not there",
        ("network interface",),
        ("no interface ib0",),
        site={SITE_INTERFACE: "GLOO_SOCKET_IFNAME: eth0,ib0"},
    ),
    Defect(
        "interface-down",
        "named interface is down",
        ("network interface",),
        ("is down",),
        "node2",
        extra_interface("down"),
        site={SITE_INTERFACE: "GLOO_SOCKET_IFNAME: ext0"},
    ),
    Defect(
        "loopback-down",
        "loopback interface down",
        ("network interface",),
        ("lo is down",),
        "node2",
        on_node("ip link set lo down"),
    ),
    Defect(
        "wrong-interface",
        "named interface leads nowhere",
        ("links between nodes",),
        ("192.168.66.2", "interface"),
        "node2",
        extra_interface("up"),
        site={SITE_INTERFACE: f"{SITE_INTERFACE}\n    NCCL_SOCKET_IFNAME: ext,eth"},
    ),
    Defect(
        "few-connections",
        "firewall that allows three connections of a node at a time",
        ("links between nodes",),
        ("node2 to node1", "of 32 were opened"),
        "node2",
        linked("--connections=3", "--outwards"),
    ),
    Defect(
        "isolated",
        "switch that passes nothing between the nodes, while the head reaches both",
        ("answers (hosts)",),
        ("node2 can be reached from this machine, but not from node1",),
        "node2",
        lambda node, place: node.isolate(),
    ),
    Defect(
        "loss",
        "link that loses 5 % of packets",
        ("lost packets",),
        ("%",),
        "node2",
        linked("--loss=0.05"),
    ),
    Defect(
        "loss-outwards",
        "link that loses 5 % of packets in one direction",
        ("lost packets",),
        ("node2 to node1",),
        "node2",
        linked("--loss=0.05", "--outwards"),
    ),
    Defect(
        "slow-outwards",
        "link of 10 Mbit/s in one direction",
        ("bandwidth between nodes",),
        ("node2 to node1",),
        "node2",
        linked("--rate=1250000", "--outwards"),
    ),
    Defect("latency", "80 ms each way", ("latency",), (), "node2", linked("--delay=0.08")),
    Defect(
        "slow-link",
        "link of 10 Mbit/s",
        ("bandwidth between nodes",),
        (),
        "node2",
        linked("--rate=1250000"),
    ),
    Defect(
        "mtu",
        "path that drops packets above 1,400 bytes",
        ("links between nodes",),
        ("MTU",),
        "node2",
        linked("--largest=1400"),
    ),
    Defect(
        "flapping",
        "link that is dead every other 3 s",
        ("lost packets", "links between nodes", "latency", "bandwidth between nodes"),
        (),
        "node2",
        linked("--flap=3"),
    ),
    Defect(
        "data-ports",
        "firewall: ports that the kernel chooses",
        ("links between nodes",),
        ("firewall",),
        "node2",
        blocked_data_ports,
    ),
    Defect(
        "meeting-port",
        "firewall: the port where ranks meet",
        ("links between nodes",),
        ("the rendezvous port cannot be reached",),
        "node2",
        linked("--first-port=49152", "--last-port=60000"),
    ),
    Defect(
        "taken-port",
        "port held by a left-over program",
        ("port",),
        ("in use",),
        "node2",
        taken_ports,
    ),
    Defect(
        "few-ports",
        "kernel has three ports to choose from",
        ("port", "links between nodes", "rendezvous", "port range"),
        (),
        "node2",
        on_node("echo 50000 50002 > /proc/sys/net/ipv4/ip_local_port_range"),
    ),
    Defect(
        "claimed-network",
        "site claims 12.5 GB/s",
        ("bandwidth between nodes",),
        (),
        site={"cores_per_node: 1": "cores_per_node: 1\n  network: 12.5"},
    ),
)
RANK_DEFECTS = (
    Defect(
        "many-threads",
        "TaskProlog that exports OMP_NUM_THREADS=64",
        ("threads of the ranks",),
        ("OMP_NUM_THREADS=64",),
        "node2",
        task_prolog("export OMP_NUM_THREADS=64"),
    ),
    Defect(
        "python-home",
        "TaskProlog that exports PYTHONHOME of another Python",
        ("answers (hosts)",),
        ("PYTHONHOME=/apps/python/3.7",),
        "node2",
        task_prolog("export PYTHONHOME=/apps/python/3.7"),
    ),
    Defect(
        "bound-threads",
        "TaskProlog that exports OMP_PROC_BIND=close, two ranks on each node",
        ("cores of the ranks",),
        ("OMP_PROC_BIND=close",),
        "node2",
        task_prolog("export OMP_PROC_BIND=close"),
        options=("--set", "training.global_batch=16", "--set", "training.smoke.global_batch=16"),
        site={
            "devices_per_node: 1": "devices_per_node: 2",
            "cores_per_node: 1": "cores_per_node: 2",
        },
    ),
    Defect(
        "second-group",
        "process group that hangs after others passed",
        ("process groups",),
        ("GROUP", "node2"),
        "node2",
        preloaded('PROGRAM="training.probe --out"', "CONNECTIONS=5"),
        is_simulated=True,
    ),
    Defect(
        "killed-rank",
        "rank killed while it starts",
        ("ranks",),
        ("killed by signal 9",),
        "node2",
        preloaded('PROGRAM="training.probe --out"', "END_BY=9", "END_AFTER=1500"),
    ),
    Defect(
        "absent-rank",
        "rank that never starts",
        ("ranks",),
        ("rank 1",),
        "node2",
        preloaded('PROGRAM="training.probe --out"', "NEVER_BEGINS"),
    ),
    Defect(
        "warnings-as-errors",
        "PYTHONWARNINGS=error in the user's shell",
        ("rendezvous", "process groups"),
        ("importing megatron-core", "DeprecationWarning"),
        variables={"PYTHONWARNINGS": "error"},
    ),
    Defect(
        "gpus",
        "site claims GPUs",
        ("queue",),
        ("Invalid generic resource",),
        site={"device: cpu": "device: a100"},
    ),
)
QUEUE_DEFECTS = (
    Defect(
        "few-nodes",
        "partition for jobs of at least three nodes",
        ("limits of jobs.training",),
        ("at least 3",),
        breaks=lambda node, place: node.configure(
            "PartitionName=large Nodes=ALL MinNodes=3 MaxTime=01:00:00 State=UP"
        ),
        options=("--set", "jobs.training.partition=large"),
    ),
    Defect(
        "awaited-reboot",
        "node that waits for a reboot",
        ("nodes of the queue",),
        ("node2", "reboot"),
        "node2",
        awaited_reboot,
    ),
    Defect(
        "full-spool",
        "folder of slurmd on a full disk",
        ("job (after the job)",),
        ("SlurmdSpoolDir is full",),
        "node2",
        lambda node, place: node.run(
            FULL_SPOOL.format(spool=node.cluster.folder / "spool" / node.name)
        ),
    ),
    Defect(
        "old-reservation",
        "SBATCH_RESERVATION of the shell with a reservation that is over",
        ("queue",),
        ("SBATCH_RESERVATION=workshop", "reservation is invalid"),
        variables={"SBATCH_RESERVATION": "workshop"},
    ),
    Defect(
        "full-job-table",
        "as many jobs as Slurm may hold (MaxJobCount)",
        ("queue",),
        ("MaxJobCount",),
        breaks=full_job_table,
    ),
    Defect(
        "endless-epilog",
        "node on which the epilog of an earlier job hangs",
        ("queue",),
        ("node2", "completing"),
        "node2",
        endless_epilog,
        options=("--wait", "0.15"),
    ),
    Defect(
        "wait-time",
        "WaitTime of 5 s in slurm.conf",
        ("end of the first task",),
        ("5 s", "WaitTime"),
        breaks=lambda node, place: node.configure("WaitTime=5"),
    ),
    Defect(
        "killing-epilog",
        "epilog that kills the user's other jobs on the node",
        ("epilog of Slurm",),
        ("other jobs",),
        breaks=scheduler_script("Epilog", EPILOG_THAT_KILLS),
    ),
    Defect(
        "coming-maintenance",
        "reservation for maintenance in two hours, and a training job of a day",
        ("reservations of jobs.training",),
        ("runbook-tests is reserved",),
        breaks=lambda node, place: node.reserve(
            "starttime=now+2hours", "duration=480", "flags=maint,ignore_jobs", users="root"
        ),
        options=("--set", "jobs.training.walltime=24:00:00"),
    ),
    Defect(
        "older-slurm-conf",
        "node with an older slurm.conf than the controller",
        ("settings of the scheduler",),
        ("node2",),
        "node2",
        lambda node, place: node.configure_others("TaskPluginParam=None"),
    ),
    Defect(
        "default-memory",
        "OverMemoryKill, and 300 MiB for a job that requests no memory",
        ("memory of jobs.training",),
        ("300 MiB",),
        breaks=over_memory_kill,
    ),
    Defect(
        "array-size",
        "no array jobs (MaxArraySize)",
        ("array of jobs.data",),
        ("2 elements", "MaxArraySize"),
        breaks=lambda node, place: node.configure("MaxArraySize=1"),
    ),
    Defect(
        "dead-daemon",
        "node's slurmd killed",
        ("nodes of the queue",),
        ("node2 down", "Not responding"),
        "node2",
        lambda node, place: node.kill_daemon(),
    ),
    Defect(
        "time-limit",
        "partition with a shorter time limit",
        ("limits of jobs.training",),
        options=("--set", "jobs.training.partition=short", "--set", "jobs.training.nodes=1"),
    ),
    Defect(
        "too-many-nodes",
        "more nodes than the partition has",
        ("limits of jobs.training", "queue of jobs.training"),
        options=("--set", "jobs.training.nodes=8", "--set", "training.global_batch=32"),
    ),
    Defect(
        "account",
        "account that the partition does not admit",
        ("limits of jobs.training", "queue of jobs.training"),
        options=("--set", "jobs.training.partition=paid"),
    ),
    Defect(
        "inactive",
        "partition that is shut",
        ("queue of jobs.environment",),
        options=("--set", "jobs.environment.partition=shut"),
    ),
    Defect(
        "no-partition",
        "partition that does not exist",
        ("queue of jobs.environment",),
        options=("--set", "jobs.environment.partition=gone"),
    ),
    Defect(
        "drained",
        "node drained by its operators",
        ("nodes of the queue",),
        ("node2 drained: broken fan",),
        "node2",
        lambda node, place: node.drain("broken fan"),
        options=("--wait", "0.15"),
    ),
    Defect(
        "prolog",
        "prolog that fails on one node",
        ("job (hosts)",),
        ("node2", "drained", "rolog"),
        "node2",
        failing_prolog,
    ),
    Defect(
        "epilog",
        "epilog that fails on one node",
        ("job (after the job)",),
        ("node2", "pilog"),
        "node2",
        scheduler_script("Epilog", '[ "$SLURMD_NODENAME" != node2 ]'),
    ),
    Defect(
        "maintenance",
        "reservation for maintenance that begins before the job could end",
        ("reservations of jobs.training",),
        ("is reserved",),
        breaks=maintenance,
        options=("--wait", "0.15"),
    ),
    Defect(
        "lost-node",
        "node loses power under the job",
        ("job (torch)",),
        ("a node was lost",),
        "node2",
        during=("torch", "crash node2"),
    ),
    Defect(
        "cancelled",
        "somebody cancels the job",
        ("job (torch)",),
        ("CANCELLED",),
        during=("torch", "exec scancel --partition=main --state=RUNNING"),
    ),
    Defect(
        "task-epilog",
        "TaskEpilog that takes 70 s",
        ("end of a step",),
        ("stage hosts", "1 min"),
        breaks=scheduler_script("TaskEpilog", "sleep 70"),
    ),
    Defect(
        "no-mpi",
        "default MPI plug-in without its library",
        ("answers (hosts)",),
        ("pmix",),
        breaks=lambda node, place: node.configure("MpiDefault=pmix"),
    ),
    Defect(
        "no-controller",
        "scheduler's controller does not answer",
        ("scheduler",),
        (),
        breaks=lambda node, place: node.cluster.do("ctld-stop"),
    ),
)
DEFECTS = (*NODE_DEFECTS, *FILE_DEFECTS, *NETWORK_DEFECTS, *RANK_DEFECTS, *QUEUE_DEFECTS)

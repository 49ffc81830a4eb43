"""The second node in the test cluster, which can be made to behave like a broken one and repaired
again.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from two_nodes import Cluster

HERE = Path(__file__).parent
FULL_TABLE_SECONDS = 4.0
"""sbatch waits longer than this only if Slurm's table of jobs is full."""
CGROUPS = Path("/sys/fs/cgroup")
HUNG_MOUNT = """\
import ctypes, os, sys, time
target, answers = sys.argv[1:]
device = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
if ctypes.CDLL(None, use_errno=True).mount(b"server:/runs", target.encode(), b"fuse", 0, options):
    raise OSError(ctypes.get_errno(), "mount")
print("ready", flush=True)
if answers == "never":
    time.sleep(1e6)
"""
"""A file server that does not answer, or that is gone: FUSE without a process that reads its
requests.
"""


HELD_MEMORY = """\
import sys, time
held = b"x" * int(sys.argv[1])
print("ready", flush=True)
time.sleep(1e6)
"""


class BrokenNode:
    """Ways to break a node; `heal` undoes all of them."""

    def __init__(self, cluster: Cluster, folder: Path, name: str = "node2") -> None:
        self.cluster = cluster
        self.name = name
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._groups: list[Path] = []
        self._helpers: list[subprocess.Popen[str]] = []
        self._is_touched = False
        self._repairs: list[Callable[[], None]] = []
        self._peers: dict[str, BrokenNode] = {}

    def peer(self, name: str) -> BrokenNode:
        """Return the ways to break another node. `heal` repairs that node too."""
        if name == self.name:
            return self
        if name not in self._peers:
            self._peers[name] = BrokenNode(self.cluster, self.folder, name)
        return self._peers[name]

    def first_process(self) -> int:
        """Return the process that has id 1 inside the node."""
        starter = (self.cluster.folder / "run" / f"{self.name}.pid").read_text().strip()
        children = Path(f"/proc/{starter}/task/{starter}/children").read_text().split()
        return int(children[0])

    def _entered(self) -> list[str]:
        self._is_touched = True
        return ["nsenter", "-t", str(self.first_process()), "-m", "-n", "-u", "-p", "--"]

    def run(self, script: str) -> None:
        """Run a shell command inside the node, with its own mounts, network and processes."""
        subprocess.run([*self._entered(), "bash", "-ec", script], check=True)

    def start(self, *words: str) -> None:
        """Start a program on the node that prints `ready` when it is ready, and ends with the node."""
        helper = subprocess.Popen([*self._entered(), *words], stdout=subprocess.PIPE, text=True)
        assert helper.stdout is not None
        self._helpers.append(helper)
        assert helper.stdout.readline() == "ready\n", words

    def preload(self, *macros: str) -> None:
        """Preload a library in every program that starts on the node. node_shim.c explains the
        macros.
        """
        library = self.folder / "node_shim.so"
        library.unlink(missing_ok=True)
        source = str(HERE / "node_shim.c")
        options = [f"-D{macro}" for macro in macros]
        argv = ["gcc", "-shared", "-fPIC", "-O1", *options, "-o", str(library), source]
        subprocess.run(argv, check=True)
        # The file goes to a copy of /etc, because /etc on this machine must not change.
        self.run(
            f"""
            rm -rf '{self.folder}/etc'
            cp -a /etc '{self.folder}/etc'
            echo '{library}' >'{self.folder}/etc/ld.so.preload'
            mount --bind '{self.folder}/etc' /etc
            """
        )

    def bad_link(self, *options: str) -> None:
        """Put bad_link.py between the node network device and its cable."""
        self.start(sys.executable, str(HERE / "bad_link.py"), *options)

    def isolate(self) -> None:
        """Stop the switch from passing anything between the nodes. The head still reaches them."""
        self._is_touched = True
        for number in range(1, self.cluster.nodes + 1):
            port = ("ip", "link", "set", f"vnode{number}", "type", "bridge_slave", "isolated")
            self.cluster.do("exec", *port, "on")
            self._repairs.append(lambda port=port: self.cluster.do("exec", *port, "off"))  # type: ignore[misc]

    def slow_opens(self, seconds: float) -> None:
        """Delay every attempt to open a file by this many seconds."""
        self.start(sys.executable, str(HERE / "slow_opens.py"), str(seconds))

    def hosts(self, *lines: str) -> None:
        """Give the node a different /etc/hosts."""
        file = self.folder / "hosts"
        file.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
        self.run(f"mount --bind '{file}' /etc/hosts")

    def hung_mount(self, target: Path, answers: str) -> None:
        """Mount a file server that does not answer (`never`), or that is gone (`gone`)."""
        self.start(sys.executable, "-c", HUNG_MOUNT, str(target), answers)

    def drain(self, reason: str) -> None:
        """Keep the scheduler from giving the node to more jobs."""
        self._is_touched = True
        update = ("scontrol", "update", f"nodename={self.name}", f"reason={reason}")
        self.cluster.do("exec", *update, "state=drain")

    def kill_daemon(self) -> None:
        """Kill the node's slurmd, so that the node no longer answers the controller."""
        self._is_touched = True
        self.cluster.do("slurmd-kill", self.name)

    def configure(self, line: str) -> None:
        """Add a line to slurm.conf, which every daemon reads again."""
        sound = self._settings_file.read_text()
        self._repairs.append(lambda: self._write_settings(sound))
        self._write_settings(f"{sound}{line}\n")

    def configure_others(self, line: str) -> None:
        """Add a line to slurm.conf, which every daemon reads, except the one on this node."""
        older = self.folder / "older-slurm.conf"
        older.write_text(self._settings_file.read_text())
        self.run(f"mount --bind '{older}' '{self._settings_file}'")
        self.configure(line)

    def replace_settings(self, changes: dict[str, str]) -> None:
        """Replace strings in slurm.conf, and restart every daemon."""
        sound = self._settings_file.read_text()
        changed = sound
        for text, other_text in changes.items():
            assert text in changed, text
            changed = changed.replace(text, other_text)
        names = [f"node{number + 1}" for number in range(self.cluster.nodes)]

        def start_with(content: str) -> None:
            self._settings_file.write_text(content)
            for words in (("ctld-stop",), ("ctld-start",)):
                self.cluster.do(*words)
            for name in names:
                self.cluster.do("crash", name)
                self.cluster.do("boot", name)
            self.cluster.wait_idle()

        self._is_touched = True
        self._repairs.append(lambda: start_with(sound))
        start_with(changed)

    @property
    def _settings_file(self) -> Path:
        return self.cluster.folder / "slurm.conf"

    def _write_settings(self, text: str) -> None:
        self._is_touched = True
        self._settings_file.write_text(text)
        self.cluster.do("exec", "scontrol", "reconfigure")

    def mount_everywhere(self, folder: Path, options: str) -> None:
        """Mount a file system in memory on this machine and on all nodes, which start again."""
        self._is_touched = True
        self._repairs.append(lambda: self._restart_all("umount", str(folder)))
        self._restart_all("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))

    def _restart_all(self, *first: str) -> None:
        """Run a command on this machine, and start all nodes again, which inherit its mounts."""
        names = [f"node{number + 1}" for number in range(self.cluster.nodes)]
        for name in names:
            self.cluster.do("crash", name)
        subprocess.run(first, check=True)
        for name in names:
            self.cluster.do("boot", name)
        self.cluster.wait_idle()

    def reboot(self, reason: str) -> None:
        """Ask Slurm to reboot the node."""
        self._is_touched = True
        self.cluster.do("exec", "scontrol", "reboot", "ASAP", f"reason={reason}", self.name)

    def hold_jobs(self, most: int) -> None:
        """Submit jobs that are held, until Slurm accepts no more."""
        self._repairs.append(lambda: self.cluster.do("exec", "scancel", "--user=root"))
        argv = ["sbatch", "--hold", "--output=/dev/null", "--wrap=true"]
        for _ in range(most):
            try:
                subprocess.run(
                    argv,
                    env=self.cluster.environment,
                    check=True,
                    capture_output=True,
                    timeout=FULL_TABLE_SECONDS,
                )
            except subprocess.TimeoutExpired:
                return

    def reserve(self, *options: str, users: str = "nobody", nodes: str = "ALL") -> None:
        """Reserve the cluster nodes for somebody else."""
        self._is_touched = True
        name = "reservationname=runbook-tests"
        self._repairs.append(lambda: self.cluster.do("exec", "scontrol", "delete", name))
        create = ("scontrol", "create", "reservation", name, f"users={users}", f"nodes={nodes}")
        self.cluster.do("exec", *create, *options)

    def bind_to_core(self, core: int) -> None:
        """Bind the daemon on the node, and everything it starts, to one core."""
        self._is_touched = True
        for each in self._processes_below(self.first_process()):
            argv = ["taskset", "--all-tasks", "--pid", "--cpu-list", str(core), str(each)]
            subprocess.run(argv, check=True, capture_output=True)

    def limit_processor_time(self, seconds: int) -> None:
        """Limit the processor time for the daemon on the node, and for each job process."""
        self._is_touched = True
        for each in self._processes_below(self.first_process()):
            resource.prlimit(each, resource.RLIMIT_CPU, (seconds, seconds))

    def set_priority(self, nice: int) -> None:
        """Set the priority for the daemon on the node, and for everything it starts."""
        self._is_touched = True
        for each in self._processes_below(self.first_process()):
            os.setpriority(os.PRIO_PROCESS, each, nice)

    def hold_memory(self, num_bytes: int) -> None:
        """Let a left-over program occupy memory in the control group that `limit` created."""
        group = self._groups[-1]
        enter = f"echo $$ >'{group}/cgroup.procs'; exec \"$@\""
        words = [*self._entered(), sys.executable, "-c", HELD_MEMORY, str(num_bytes)]
        argv = ["bash", "-c", enter, "held", *words]
        helper = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert helper.stdout is not None
        self._helpers.append(helper)
        assert helper.stdout.readline() == "ready\n"

    def limit(self, controller: str, values: dict[str, str]) -> None:
        """Put the daemon on the node, and everything it starts, into a control group with limits."""
        process = self.first_process()
        self._is_touched = True
        is_first_version = (CGROUPS / controller).is_dir()
        group = CGROUPS / (controller if is_first_version else "") / f"runbook-tests-{os.getpid()}"
        group.mkdir()
        self._groups.append(group)
        for name, value in values.items():
            (group / name).write_text(value)
        for each in self._processes_below(process):
            (group / "cgroup.procs").write_text(str(each))

    def _processes_below(self, process: int) -> list[int]:
        found = [process]
        for each in found:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{each}/task/{each}/children").read_text().split()
                found += [int(child) for child in children]
        return found

    def heal(self) -> None:
        """Restart the node. Its mounts, network and processes are gone."""
        for peer in self._peers.values():
            peer.heal()
        if not self._is_touched:
            return
        while self._repairs:
            self._repairs.pop()()
        self.cluster.do("crash", self.name)
        for helper in self._helpers:
            with helper:  # it ended with the node
                helper.wait()
        for group in self._groups:
            group.rmdir()
        self._helpers.clear()
        self._groups.clear()
        self.cluster.do("boot", self.name)
        with contextlib.suppress(AssertionError):  # only a drained node can be resumed
            self.cluster.do("exec", "scontrol", "update", f"nodename={self.name}", "state=resume")
        self.cluster.wait_idle()
        self._is_touched = False

"""A two-node Slurm cluster on this machine, and a project that runs on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
BIN = Path(sys.executable).parent
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "unshare", "nsenter", "gcc")
PARTITIONS = """\
PartitionName=short Nodes=ALL MaxTime=00:05:00 MaxNodes=1 State=UP
PartitionName=paid Nodes=ALL MaxTime=01:00:00 AllowAccounts=physics State=UP
PartitionName=shut Nodes=ALL MaxTime=01:00:00 State=INACTIVE"""
IMAGE = "env=MASTER_ADDR=image env=PYTORCH_VERSION=2.7.0a0 env=CUDA_DEVICE_MAX_CONNECTIONS=32 env=LANG=C.UTF-8"
"""Variables that an image sets, as NGC images do. They must not affect the rendezvous."""
RUN_FILE = """\
run: queued
site: two-nodes
model: tiny
data:
  dataset: corpus
training:
  precision: bf16
  iterations: 60
  micro_batch: 4
  global_batch: 8
  learning_rate: 6.0e-4
  min_learning_rate: 6.0e-5
  warmup_iterations: 2
  save_interval: 10
  eval_interval: 30
  eval_iterations: 1
  rehearsal_waived_by: the tests
  smoke:
    model: tiny
    iterations: 6
    global_batch: 8
    warmup_iterations: 2
jobs:
  smoke:
    nodes: 2
  training:
    nodes: 2
"""


def what_is_missing() -> str:
    """Return why Slurm cannot run here, or an empty string."""
    missing = [
        program
        for program in PROGRAMS
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None
    ]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge iproute2 libslurm-dev)"
    if os.geteuid() != 0:
        return "only root can make the nodes' networks"
    tried = subprocess.run(
        ["unshare", "--mount", "--uts", "--net", "ip", "link", "add", "x0", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        return f"this machine gives no network namespaces: {tried.stderr.strip()}"
    return ""


class Cluster:
    """The tests' Slurm cluster; see cluster.sh."""

    def __init__(self, folder: Path, nodes: int = 2) -> None:
        self.folder = folder
        self.nodes = nodes
        folder.mkdir(parents=True, exist_ok=True)
        stub = folder / "stub.so"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-o", str(stub), str(HERE / "container_stub.c")], check=True
        )
        path = f"{folder / 'bin'}:{BIN}:{os.environ['PATH']}:/usr/sbin:/sbin"
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("RUNBOOK_", "SLURM"))
        }
        self.environment = {
            **own,
            "PATH": path,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "CLUSTER_DIR": str(folder),
            "CLUSTER_OWNER": str(os.getpid()),
            "CLUSTER_NODES": str(nodes),
            "CLUSTER_CONF": PARTITIONS,
            "CLUSTER_PLUGSTACK": f"required {stub} {IMAGE} cleanup=1",
        }

    def do(self, *words: str) -> None:
        """Run a cluster.sh command."""
        done = subprocess.run(
            ["bash", str(HERE / "cluster.sh"), *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, f"cluster.sh {' '.join(words)}: {done.stderr}"

    def ask(self, *words: str) -> str:
        """Run a Slurm program and return its output."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def wait_idle(self) -> None:
        """Wait until all nodes can take a job again."""
        all_idle = ["idle"] * self.nodes
        wait_until(
            lambda: self.ask("sinfo", "-h", "-N", "-p", "main", "-o", "%t").split() == all_idle,
            "idle nodes",
            120,
        )

    def processes(self) -> list[int]:
        """Return all processes in the cluster: they have its folder in their environment or
        command.
        """
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                ended = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            except OSError:
                continue
            if str(self.folder).encode() in text and not ended and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        return found


class Project:
    """Parameters and notebooks with the test site and a run file, and the folder for runs."""

    def __init__(self, root: Path, cluster: Cluster) -> None:
        self.root = root
        self.cluster = cluster
        self.runs = root / "runs"
        for name in ("params", "notebooks"):
            shutil.copytree(
                PROJECT / name, root / name, ignore=shutil.ignore_patterns(".ipynb_checkpoints")
            )
        for site in HERE.glob("*.yaml"):
            shutil.copy(site, root / "params" / "sites")
        (root / "params" / "queued.yaml").write_text(RUN_FILE)

    def start(self, *words: object, **environment: str) -> subprocess.Popen[str]:
        """Start `runbook` with these arguments, with standard output and standard error in one
        stream.
        """
        return subprocess.Popen(
            [str(BIN / "runbook"), *map(str, words), "--runs", str(self.runs)],
            cwd=self.root,
            env=self.cluster.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def call(self, *words: object, timeout: float = 900, code: int = 0, **environment: str) -> str:
        """Run `runbook` like `start`, wait for its end, and check that its exit code is `code`."""
        process = self.start(*words, **environment)
        try:
            text, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            text, _ = process.communicate()
            raise AssertionError(
                f"runbook {' '.join(map(str, words))} did not end in {timeout} s:\n{text}"
            ) from None
        assert process.returncode == code, f"exit code {process.returncode}:\n{text}{self.logs()}"
        return text

    def logs(self) -> str:
        """Return the output from every job, to be shown when a test fails."""
        found = [
            path for path in self.runs.glob("*/jobs/**/*") if path.name in ("out", "err", "reason")
        ]
        return "".join(
            f"\n--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(found)
        )


def wait_until(true: Callable[[], Any], what: str, seconds: float = 400) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.05)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Read a JSON lines file, without an incomplete last line."""
    if not path.exists():
        return []
    return [
        json.loads(line)
        for line in path.read_text().splitlines(keepends=True)
        if line.endswith("\n")
    ]

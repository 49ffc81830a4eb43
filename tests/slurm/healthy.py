"""Settings found on healthy clusters that differ from those on the test cluster. A preflight finds
no defect with any of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from broken_node import BrokenNode
from defects import (
    LIBSTDCXX,
    Break,
    Defect,
    Place,
    extra_interface,
    limited,
    named,
    older_library,
    on_both_nodes,
    on_node,
    preloaded,
    scheduler_script,
)

CONTAINER = """\
container:
  kind: pyxis
  image: "registry.example.org#nothing:1"  # the stub takes any name and starts nothing
  home: true
"""


BRIDGE = """
ip link add docker0 type bridge
ip addr add 172.17.0.1/16 dev docker0
ip link set docker0 up
printf '[Login]\\nRemoveIPC=no\\n' > {work}/logind.conf
[ ! -e /etc/systemd/logind.conf ] || mount --bind {work}/logind.conf /etc/systemd/logind.conf
"""
"""The default Docker network."""


def newer_library(node: BrokenNode, place: Place) -> None:
    """Copy libstdc++ with an extra byte, as if a module provided a build of the same or a newer
    version.
    """
    folder = Path(place.work, "newer")
    folder.mkdir(exist_ok=True)
    (folder / LIBSTDCXX.name).write_bytes(LIBSTDCXX.read_bytes() + b"\0")


def system_python(node: BrokenNode, place: Place) -> None:
    """Put the system Python into a folder, as modules and shell start-up files do."""
    folder = Path(place.work, "system")
    folder.mkdir(exist_ok=True)
    for name in ("python", "python3"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("/usr/bin/python3")


def own_python(node: BrokenNode, place: Place) -> None:
    """Put a script first on PATH that starts the Python in the environment."""
    folder = Path(place.work, "wrapped")
    folder.mkdir(exist_ok=True)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec {Path(place.packages).parents[2]}/bin/python "$@"\n')
    script.chmod(0o755)


def all_of(*breaks: Break) -> Break:
    """Make several changes, one after another."""

    def do(node: BrokenNode, place: Place) -> None:
        for change in breaks:
            change(node, place)

    return do


LIMITS = "ulimit -c 0; ulimit -s {stack}; ulimit -l 8192; ulimit -n 1024; ulimit -u 4096;"
"""Limits that login nodes set: no core files, 8 MiB of locked memory, 1,024 files, 4,096 processes.
"""
HEALTHY = (
    Defect("plain", "the tests' own cluster", ()),
    Defect(
        "limits",
        "limits of a login node, files of 2 TiB, 1 TiB of address space; /dev/shm of 1 GiB; TMPDIR "
        "in memory; caches on a local disk; other environments active in the shell, and variables of "
        "sbatch",
        (),
        limits=LIMITS.format(stack=8192) + "ulimit -f 2147483648; ulimit -v 1073741824;",
        breaks=on_node(
            "mount -t tmpfs -o size=1g tmpfs /dev/shm;"
            "mkdir -p {work}/tmp; mount -t tmpfs -o size=4g tmpfs {work}/tmp"
        ),
        variables={
            "TMPDIR": "{work}/tmp",
            "TRITON_CACHE_DIR": "/var/tmp/runbook-healthy",
            # sbatch would prefer these variables to the lines in the script
            "SBATCH_PARTITION": "shut",
            "SBATCH_TIMELIMIT": "1",
            "VIRTUAL_ENV": "/opt/other",
            "CONDA_PREFIX": "/opt/conda",
        },
    ),
    Defect(
        "network",
        "own name at 127.0.1.1 (Debian), a device more that is up and leads nowhere, a bridge of "
        "containers; RemoveIPC=no; maintenance after the job's end",
        (),
        breaks=all_of(
            on_both_nodes(BRIDGE),
            lambda node, place: node.reserve("starttime=now+1days", "duration=60", "flags=maint"),
            named("10.66.0.254 head", "10.66.0.1 node1", "127.0.1.1 node2", "10.66.0.2 node2"),
            extra_interface("up"),
        ),
    ),
    Defect(
        "groups",
        "a control group of 6 GiB; unlimited stack; a device that is down",
        (),
        limits="ulimit -s unlimited;",
        breaks=all_of(
            extra_interface("down"),
            limited("memory", ("memory.limit_in_bytes", "6G"), ("memory.max", "6G")),
        ),
    ),
    Defect(
        "programs",
        "LD_LIBRARY_PATH with a folder that is missing, torch's own folder, and a library of the "
        "same version; a script in front on PATH that starts the same Python, the system's Python "
        "behind; other compiled files beside the same sources",
        (),
        breaks=all_of(
            newer_library,
            system_python,
            own_python,
            on_node(
                "mkdir -p {package}/plan_file/__pycache__;"
                "mount -t tmpfs tmpfs {package}/plan_file/__pycache__"
            ),
        ),
        variables={
            "LD_LIBRARY_PATH": "/opt/gone:{work}/newer:{packages}/torch/lib",
            "PATH": "{work}/wrapped:{path}:{work}/system",
        },
    ),
    Defect(
        "older-library",
        "LD_LIBRARY_PATH with an older libstdc++ that torch can be imported with, as gcc's modules do",
        (),
        breaks=older_library("older", first_missing=29),
        variables={"LD_LIBRARY_PATH": "{work}/older"},
        is_simulated=True,
    ),
    Defect(
        "launcher",
        "no container, ranks started by srun, a node_setup that passes, a preloaded library",
        (),
        breaks=preloaded("CLOCK_AHEAD=0"),
        site={
            CONTAINER: "",
            "launcher: torchrun": "launcher: srun\nnode_setup:\n  - 'true'",
        },
        is_simulated=True,
    ),
    Defect(
        "reserved-cores",
        "two cores of each node reserved for others; an epilog that asks Slurm",
        (),
        breaks=all_of(
            scheduler_script("Epilog", "squeue --noheader | grep -q . || pkill -u nobody; true"),
            lambda node, place: node.reserve(
                "starttime=now",
                "duration=60",
                "corecnt=2,2",
                "flags=ignore_jobs",
                nodes="node1,node2",
            ),
        ),
    ),
    Defect(
        "magnetic",
        "all nodes in a magnetic reservation of the user",
        (),
        breaks=lambda node, place: node.reserve(
            "starttime=now", "duration=60", "flags=magnetic,ignore_jobs", users="root"
        ),
    ),
    Defect(
        "one-node",
        "a job of one node, which inherits no variable of the shell; the site names its Python",
        (),
        options=("--set", "jobs.environment.nodes=1", "--set", "jobs.training.nodes=1"),
        variables={"SBATCH_EXPORT": "NONE"},
        site={"launcher: torchrun": f"launcher: torchrun\npython: {sys.executable}"},
    ),
)
"""`checks` is empty, because a preflight reports no defect.

Each row changes several settings together.
"""

"""Translates options for torchrun, deepspeed, srun, mpiexec and jsrun to keys in the run file."""

from collections.abc import Sequence

from runbook.tools.adopt.container_images import take_singularity, take_srun_container
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.launches import Launch, option
from runbook.tools.adopt.script import Script, Word, is_count

_LAUNCHERS = ("deepspeed", "torchrun", "mpiexec", "mpirun", "aprun", "srun")
"""Launchers by precedence. If more than one of them starts a training run, the first in this list
applies.
"""
_OUR_NAME = {"mpirun": "mpiexec", "aprun": "mpiexec"}
_COUNTS = (
    (("torchrun",), ("nnodes",), "jobs.training.nodes"),
    (("torchrun",), ("nproc-per-node",), "jobs.training.devices_per_node"),
    (("deepspeed",), ("num-gpus",), "jobs.training.devices_per_node"),
    (("deepspeed",), ("num-nodes",), "jobs.training.nodes"),
    (("srun",), ("nodes", "N"), "jobs.training.nodes"),
)
"""For each program, the options for node and device counts, and the keys that they set."""
_STARTERS = ("torchrun", "deepspeed")
"""Programs that start one process per device on a node, no matter which launcher started them."""
_COUNTS_OF_RANKS = ((("mpiexec", "mpirun"), ("ppn", "npernode"), "jobs.training.devices_per_node"),)
"""Options that count devices, unless one of `_STARTERS` runs between the launcher and the training."""


def take_launch(script: Script, launch: Launch, findings: Findings) -> None:
    """Adopt the launcher, container image, mounts, nodes and devices in a launch."""
    outermost = next((name for name in _LAUNCHERS if name in launch.programs), "")
    launcher = _OUR_NAME.get(outermost, outermost)
    if launcher and launcher != findings.site.launcher:
        findings.take("jobs.launcher", launcher, launch.command.line, " ".join(launch.programs))
    has_starter = any(name in launch.programs for name in _STARTERS)
    for programs, names, key in _COUNTS if has_starter else (*_COUNTS, *_COUNTS_OF_RANKS):
        value = option(launch.part(*programs), *names)
        if value and _is_count(value.text) and not script.assumed(value, key):
            findings.take(
                key,
                int(value.text),
                value.line,
                f"--{names[0]}",
                over=False,
            )

    _take_resource_sets(launch.part("jsrun"), findings)
    take_srun_container(launch.part("srun"), findings)
    take_singularity(launch.part("singularity"), findings)


def _take_resource_sets(jsrun: Sequence[Word], findings: Findings) -> None:
    """Adopt the devices per node from jsrun in LSF: resource sets per host x devices per set."""
    sets_per_host = option(jsrun, "rs-per-host", "r")
    devices_per_set = option(jsrun, "gpu-per-rs", "g")
    if sets_per_host is None or devices_per_set is None:
        return
    if _is_count(sets_per_host.text) and _is_count(devices_per_set.text):
        devices = int(sets_per_host.text) * int(devices_per_set.text)
        source = "--rs_per_host x --gpu_per_rs"
        findings.take(
            "jobs.training.devices_per_node", devices, sets_per_host.line, source, over=False
        )


def _is_count(text: str) -> bool:
    """Return whether text is a whole number above zero."""
    return is_count(text) and int(text) > 0


def drop_ssh(findings: Findings) -> None:
    """Replace the DeepSpeed launcher on multiple nodes with torchrun, or under PBS with mpiexec.

    The DeepSpeed launcher needs ssh, which compute nodes rarely allow.
    """
    carried = findings.carried.get("jobs.launcher")
    if carried is None:
        return
    if findings.site.scheduler == "pbs" and carried.value in ("deepspeed", "torchrun"):
        source = f"{carried.source}: PBS has no other way to start processes on the nodes"
        findings.take("jobs.launcher", "mpiexec", carried.line, source)
    elif carried.value == "deepspeed" and findings.number("jobs.training.nodes", 1) > 1:
        source = "deepspeed on several nodes needs ssh between them"
        findings.take("jobs.launcher", "torchrun", carried.line, source)

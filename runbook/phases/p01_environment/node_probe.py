"""Probes the nodes with ranks that start in the same way as the trainer, and checks the answers."""

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from runbook.core import shell
from runbook.core.checks import counted
from runbook.core.units import show_bytes, show_duration
from runbook.node_checks.networks import GLOO_VARIABLE
from runbook.params.schema.site import Site
from runbook.params.schema.value_types import Framework
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight.software_rules import different_versions
from runbook.plan_file.phase_names import FULL
from runbook.planning import Check, Plan

ProbeAnswer = Mapping[str, Any]
"""What one rank in the probe reported, written by training/probe.py."""
PROBE_LIMIT_SECONDS = 600
MEASURED = (
    "all-reduce",
    "clocks",
    "writing",
    "host memory",
    "temporary folder",
    "shared memory",
    "shared folder",
    "speed of products",
    "speed of memory",
    "process groups",
    "clocks between nodes",
    "latency",
    "bandwidth between nodes",
    "time granted",
    "port",
)
"""Checks whose value is a speed or a time, and therefore differs from call to call."""
NEEDED = ("torch", "megatron-core", "numpy")
LIBRARIES = {"cuda": "CUDA", "hip": "ROCm", "nccl": "NCCL"}
"""Libraries that torch may be built with: the key in the answer, and the name to show."""
SKEW_SECONDS = 1.0
"""Clock difference above which file times and logs from different nodes contradict each other."""
IDLE_BYTES = 2 << 30
"""A GPU counts as busy if it has more than this much memory in use."""
NETWORK_VARIABLES = {
    *("NCCL_SOCKET_IFNAME", GLOO_VARIABLE, "NCCL_IB_HCA"),
    *("UCX_NET_DEVICES", "SHARP_SMX_UCX_INTERFACE"),
}


def probe_alone() -> list[ProbeAnswer]:
    """Start a single probe process with this Python, and return its answer.

    The probe runs without a launcher, even if this process is a step of a job.
    """
    with tempfile.TemporaryDirectory(prefix="runbook-doctor-") as out:
        argv = [sys.executable, "-m", "runbook.training.probe", "--out", out]
        shell.run(
            argv,
            timeout=PROBE_LIMIT_SECONDS,
            env={"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
        )
        return read_facts(Path(out))


def read_facts(out: Path) -> list[ProbeAnswer]:
    """Read the answers from all ranks, in rank order."""
    facts = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("probe-*.json")]
    return sorted(facts, key=lambda rank_facts: int(rank_facts["rank"]))


def probe_checks(
    facts: Sequence[ProbeAnswer],
    site: Site,
    plan: Plan,
    framework: Framework,
) -> list[Check]:
    """Return a check for every rule; its verdict is `unknown` if no node could answer."""
    if not facts:
        remedy = (
            "Set a partition or a walltime in jobs.environment: the checks then run there, "
            "on jobs.environment.nodes."
        )
        names = ("software", "GPUs", "network devices", "all-reduce", "clocks", "writing")
        rule = "checked on the nodes of the job"
        return [Check(name, "unknown", "no node was checked", rule, remedy) for name in names]

    return [
        software_check(facts, framework),
        devices_check(facts, site),
        networks_check(facts, site.environment),
        clocks_check(facts),
        write_check(facts, plan),
    ]


def software_check(facts: Sequence[ProbeAnswer], framework: Framework) -> Check:
    """Check that packages for training can be imported, with the same versions on all nodes."""
    rule = (
        f"{', '.join(NEEDED)} can be imported, with the same versions everywhere, including CUDA "
        "or ROCm and NCCL"
    )
    check = partial(Check, "software", rule=rule)
    versions_by_node = {}
    for rank_facts in facts:
        node = rank_facts.get("host", "here")
        versions_by_node[node] = {"Python": rank_facts["python"], **_versions_of(rank_facts)}

    differences, _ = different_versions(versions_by_node)
    if differences:
        remedy = "Use the same image or environment on all nodes."
        return check("fail", "; ".join(differences), remedy=remedy)

    versions = _versions_of(facts[0])
    fault = _import_fault(versions, facts[0]["errors"])
    if fault and framework == "runbook":
        return check("fail", fault, remedy=PhaseMessage.MAKE_SETUP_INSTALLS.fill())
    if fault:
        remedy = (
            f"{framework} has its own versions in the site's image; these are for our own trainer."
        )
        return check("unknown", fault, remedy=remedy)

    installed = []
    for package, version in versions.items():
        if version:
            installed.append(f"{package} {version}")

    return check("pass", ", ".join(installed))


def _versions_of(rank_facts: ProbeAnswer) -> dict[str, str | None]:
    """Return versions for the packages and GPU libraries that a rank has; None if one is missing."""
    torch = _torch_of(rank_facts)
    versions: dict[str, str | None] = dict(rank_facts["packages"])
    for key, library in LIBRARIES.items():
        versions[library] = torch.get(key)
    return versions


def _import_fault(versions: Mapping[str, str | None], errors: Mapping[str, str]) -> str:
    """Return why packages for training cannot be imported, or an empty string if they can."""
    # If torch is installed but cannot be imported, its error explains more than the package list.
    if versions.get("torch") and errors.get("torch"):
        return errors["torch"]
    missing = [package for package in NEEDED if not versions.get(package)]
    if not missing:
        return ""
    return f"missing: {', '.join(missing)}"


def devices_check(facts: Sequence[ProbeAnswer], site: Site) -> Check:
    """Check that each node has as many GPUs as the site states, none of them busy."""
    if site.hardware.device == "cpu":
        return _hidden_gpus_check(facts)
    devices_per_node = site.hardware.devices_per_node
    check = partial(Check, "GPUs", rule=f"{devices_per_node} devices on each node, idle")
    if any(rank_facts.get("torch") is None for rank_facts in facts):
        remedy = "nvidia-smi or rocm-smi on a node shows them."
        return check("unknown", "torch cannot be queried there", remedy=remedy)

    num_gpus = {rank_facts["host"]: len(gpus_of(rank_facts)) for rank_facts in facts}
    short_nodes = []
    for host, count in sorted(num_gpus.items()):
        if count < devices_per_node:
            short_nodes.append(f"{host}: {count}")

    if short_nodes:
        return _missing_gpus_check(check, short_nodes, facts)
    busy = _busy_gpus(facts)
    if busy:
        remedy = "Another program is using them: request whole nodes (exclusive)."
        return check("warn", "; ".join(busy[:4]), remedy=remedy)

    return check("pass", f"{devices_per_node} on each of {len(num_gpus)} nodes, idle")


def _hidden_gpus_check(facts: Sequence[ProbeAnswer]) -> Check:
    """Check that processes on a CPU site see no GPU."""
    check = partial(Check, "GPUs", rule=PhaseMessage.GPUS_HIDDEN.fill())
    num_visible = max(len(gpus_of(rank_facts)) for rank_facts in facts)
    if num_visible:
        value = f"{num_visible} visible on a site that computes on CPUs"
        return check("fail", value, remedy="This is a bug in runbook: report it.")

    return check("pass", "none seen; the site computes on CPUs")


def _missing_gpus_check(
    check: Callable[..., Check],
    short_nodes: Sequence[str],
    facts: Sequence[ProbeAnswer],
) -> Check:
    """Return the failed check for nodes with too few GPUs; the remedy fits the torch build."""
    value = ", ".join(short_nodes)
    cpu_build = _cpu_build_of_torch(facts)
    if cpu_build:
        value += f"; torch {cpu_build} is built for the CPU alone"
        remedy = (
            "Install the build for this GPU (make setup GPU=1; docs/trainer.md), or the "
            "site's image."
        )
    else:
        remedy = "Exclude these nodes, or set jobs.<phase>.devices_per_node."

    return check("fail", value, remedy=remedy)


def _cpu_build_of_torch(facts: Sequence[ProbeAnswer]) -> str:
    """Return the first torch version built without CUDA and ROCm.

    Return an empty string if every torch supports CUDA or ROCm.
    """
    for rank_facts in facts:
        torch = _torch_of(rank_facts)
        if not torch.get("cuda") and not torch.get("hip"):
            return str(torch["version"])

    return ""


def _busy_gpus(facts: Sequence[ProbeAnswer]) -> list[str]:
    """Return each GPU whose memory is in use, and how much is used."""
    busy = []
    for rank_facts in facts:
        for number, device in enumerate(gpus_of(rank_facts)):
            used_bytes = device["total"] - device["free"]
            if used_bytes > IDLE_BYTES:
                busy.append(
                    PhaseMessage.GPU_MEMORY_IN_USE.fill(
                        host=rank_facts["host"], number=number, memory=show_bytes(used_bytes)
                    )
                )

    return busy


def networks_check(
    facts: Sequence[ProbeAnswer], groups: Mapping[str, Mapping[str, str | None]]
) -> Check:
    """Check that each node has the network devices named in environment variables."""
    rule = "every device that the site's environment names exists on every node"
    check = partial(Check, "network devices", rule=rule)
    named = named_devices(groups)
    if not named:
        return check("pass", "the environment names no device")
    absent = set()
    offered = {}
    for rank_facts in facts:
        present = (*rank_facts["networks"], *rank_facts["infiniband"])
        for variable, device in named:
            if not _is_present(variable, device, present):
                node = rank_facts["host"]
                absent.add(
                    PhaseMessage.ABSENT_DEVICE.fill(variable=variable, device=device, node=node)
                )
                offered[rank_facts["host"]] = ", ".join(present)

    if absent:
        devices = "; ".join(f"{host} has {names}" for host, names in sorted(offered.items()))
        remedy = PhaseMessage.NAME_PRESENT_DEVICES.fill(devices=devices)
        return check("fail", "; ".join(sorted(absent)[:4]), remedy=remedy)

    return check("pass", ", ".join(device for _, device in named))


def _is_present(variable: str, device: str, present: Sequence[str]) -> bool:
    """Return whether a named device exists. Except for Gloo, the name is treated as a prefix."""
    if variable == GLOO_VARIABLE:
        return device in present
    return any(name.startswith(device) for name in present)


def named_devices(groups: Mapping[str, Mapping[str, str | None]]) -> list[tuple[str, str]]:
    """Return (variable, device) for each network device named by an environment variable.

    Patterns that exclude devices are skipped.

    >>> named_devices({"rccl": {"NCCL_SOCKET_IFNAME": "hsn0,hsn1"},
    ... "x": {"UCX_NET_DEVICES": "mlx5_ib0:1"}})
    [('NCCL_SOCKET_IFNAME', 'hsn0'), ('NCCL_SOCKET_IFNAME', 'hsn1'), ('UCX_NET_DEVICES', 'mlx5_ib0')]
    >>> named_devices({"x": {"NCCL_SOCKET_IFNAME": "^docker,lo"}})
    []
    """
    devices = []
    for values in groups.values():
        for variable, value in values.items():
            if variable not in NETWORK_VARIABLES or not value or value.startswith("^"):
                continue
            for device in value.split(","):
                # NCCL reads "=" as an exact name; UCX reads ":1" as a port number.
                devices.append((variable, device.lstrip("=").partition(":")[0]))

    return devices


def clocks_check(facts: Sequence[ProbeAnswer]) -> Check:
    """Compare the node clocks with each other and with the clock on the file server."""
    check = partial(Check, "clocks", rule=f"nodes and file server agree to {SKEW_SECONDS:g} s")
    between_ranks = []
    to_files = []
    for rank_facts in facts:
        if rank_facts.get("group"):
            between_ranks.append(rank_facts["group"]["clock_spread"])
        if rank_facts.get("write"):
            to_files.append(abs(rank_facts["write"]["clock_of_files"]))

    if not between_ranks and not to_files:
        return check("unknown", "no node reported a clock")
    rank_skew = show_duration(max(between_ranks, default=0.0))
    file_skew = show_duration(max(to_files, default=0.0))
    value = f"{rank_skew} between ranks, {file_skew} to the files"
    if max([*between_ranks, *to_files]) > SKEW_SECONDS:
        remedy = "Start a time service (chrony) there: heartbeats are compared with the clock."
        return check("warn", value, remedy=remedy)

    return check("pass", value)


def write_check(facts: Sequence[ProbeAnswer], plan: Plan) -> Check:
    """Compare the measured write speed with the time planned for a checkpoint."""
    rule = "a checkpoint is written in the planned time"
    check = partial(Check, "writing", rule=rule)
    writes = []
    for rank_facts in facts:
        if rank_facts.get("write"):
            writes.append(rank_facts["write"])

    errors = []
    for rank_facts in facts:
        if "write" in rank_facts["errors"]:
            errors.append(rank_facts["errors"]["write"])

    if not writes and errors:
        return check("fail", errors[0])
    if not writes:
        return check("unknown", "no node wrote a file")
    bytes_per_second = sum(write["bytes_per_second"] for write in writes)
    checkpoint_bytes = plan.checkpoint[FULL].checkpoint_bytes
    seconds = checkpoint_bytes / bytes_per_second
    value = (
        f"{counted(len(writes), 'writer')}, {bytes_per_second / 1e9:.2f} GB/s: "
        f"{show_bytes(checkpoint_bytes)} in {show_duration(seconds)}"
    )
    promised = [save.write_seconds for save in plan.endurance.saves]
    if promised and seconds > 2 * max(promised):
        num_devices = plan.phases[FULL].parallel.world_size
        remedy = (
            f"The plan expects {show_duration(min(promised))} to "
            f"{show_duration(max(promised))}, all {num_devices} "
            "devices writing; check stripes and tier, or save less often."
        )
        return check("warn", value, remedy=remedy)

    return check("pass", value)


def gpus_of(rank_facts: ProbeAnswer) -> Sequence[ProbeAnswer]:
    """Return the GPUs that torch sees on a rank."""
    gpus: Sequence[ProbeAnswer] = _torch_of(rank_facts).get("devices", [])
    return gpus


def _torch_of(rank_facts: ProbeAnswer) -> ProbeAnswer:
    """Return what torch reports about devices on a rank; empty if torch could not be queried."""
    return rank_facts.get("torch") or {}

"""What the ranks of a probe found, held against the site and the plan; nothing here asks a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runbook.params.catalogue import Site
from runbook.params.schema import Framework
from runbook.plan import Check
from runbook.units import show_bytes, show_duration

Facts = Mapping[str, Any]
MEASURED = ("all-reduce", "clocks", "writing")
"""Checks whose value is a speed or a moment: different each time it is asked."""
NEEDED = ("torch", "megatron-core", "numpy")
SKEW_SECONDS = 1.0
"""Clocks further apart make file times and logs of nodes contradict each other."""
IDLE_BYTES = 2 << 30
"""A GPU that somebody computes on holds more than this."""


def probe_checks(facts: Sequence[Facts], site: Site, plan: Mapping[str, Any], framework: Framework) -> list[Check]:
    """Every rule, `unknown` where nobody could be asked."""
    if not facts:
        why = "no node was asked"
        remedy = (
            "Give jobs.environment a partition or a walltime: the checks then run there, on jobs.environment.nodes."
        )
        names = ("software", "GPUs", "network devices", "all-reduce", "clocks", "writing")
        return [Check(name, "unknown", why, "asked on the nodes of the job", remedy) for name in names]
    return [
        software_check(facts, framework),
        devices_check(facts, site),
        drivers_check(facts),
        networks_check(facts, site.environment),
        reduce_check(facts, site),
        clocks_check(facts),
        write_check(facts, plan),
    ]


def software_check(facts: Sequence[Facts], framework: Framework) -> Check:
    """What the trainer's Python can import, and whether all nodes have the same."""
    name, rule = "software", f"{', '.join(NEEDED)} can be imported, the same versions everywhere"
    found = {_versions(one) for one in facts}
    first = facts[0]["packages"]
    missing = [package for package in NEEDED if not first.get(package)]
    broken = first.get("torch") and facts[0]["errors"].get("torch")
    value = ", ".join(f"{package} {version}" for package, version in first.items() if version) or "none of them"
    if len(found) > 1:
        return Check(name, "fail", f"{len(found)} different sets of versions", rule, "Give all nodes one environment.")
    if missing or broken:
        own = framework is Framework.RUNBOOK
        what = broken or f"missing: {', '.join(missing)}"
        remedy = (
            "make setup installs what requirements.lock pins."
            if own
            else (f"{framework} brings its own with the site's image; these are for our own trainer.")
        )
        return Check(name, "fail" if own else "unknown", what, rule, remedy)
    return Check(name, "pass", value, rule)


def devices_check(facts: Sequence[Facts], site: Site) -> Check:
    """As many GPUs as the site says, and nobody computing on them."""
    wanted = site.hardware.devices_per_node
    name, rule = "GPUs", f"{wanted} devices on each node, idle"
    if site.hardware.device == "cpu":
        seen = max(len(_devices(one)) for one in facts)
        return Check(name, "pass", f"{seen} seen; the site trains on CPUs", "none are needed")
    if any(one.get("torch") is None for one in facts):
        return Check(
            name, "unknown", "torch cannot be asked there", rule, "nvidia-smi or rocm-smi on a node shows them."
        )
    counts = {one["host"]: len(_devices(one)) for one in facts}
    few = {host: count for host, count in counts.items() if count < wanted}
    if few:
        value = ", ".join(f"{host}: {count}" for host, count in sorted(few.items()))
        return Check(name, "fail", value, rule, "Leave these nodes out, or set jobs.<phase>.devices_per_node.")
    busy = [
        f"{one['host']} {number}: {show_bytes(device['total'] - device['free'])} in use"
        for one in facts
        for number, device in enumerate(_devices(one))
        if device["total"] - device["free"] > IDLE_BYTES
    ]
    if busy:
        return Check(
            name, "warn", "; ".join(busy[:4]), rule, "Somebody computes there: ask for whole nodes (exclusive)."
        )
    return Check(name, "pass", f"{wanted} on each of {len(counts)} nodes, idle", rule)


def drivers_check(facts: Sequence[Facts]) -> Check:
    """Versions of CUDA or ROCm and NCCL, the same everywhere."""
    name, rule = "libraries", "CUDA or ROCm, and NCCL, of one version everywhere"
    sets = {
        tuple(str((one.get("torch") or {}).get(key)) for key in ("version", "cuda", "hip", "nccl")) for one in facts
    }
    if any(one.get("torch") is None for one in facts):
        return Check(name, "unknown", "torch cannot be asked there", rule)
    if len(sets) > 1:
        return Check(name, "fail", f"{len(sets)} different sets", rule, "Give all nodes one image or environment.")
    version, cuda, hip, nccl = next(iter(sets))
    words = [f"torch {version}"] + [
        f"{name} {value}" for name, value in (("CUDA", cuda), ("ROCm", hip), ("NCCL", nccl)) if value != "None"
    ]
    return Check(name, "pass", ", ".join(words), rule)


def networks_check(facts: Sequence[Facts], groups: Mapping[str, Mapping[str, str | None]]) -> Check:
    """Devices that the environment names are there on each node."""
    name, rule = "network devices", "every device that the site's environment names is there on every node"
    named = named_devices(groups)
    if not named:
        return Check(name, "pass", "the environment names none", rule)
    absent = sorted(
        {
            f"{variable}={device} on {one['host']}"
            for one in facts
            for variable, device in named
            if not _has(one, device)
        }
    )
    if absent:
        there = ", ".join([*facts[0]["networks"], *facts[0]["infiniband"]])
        return Check(name, "fail", "; ".join(absent[:4]), rule, f"Name devices that are there: {there}.")
    return Check(name, "pass", ", ".join(device for _, device in named), rule)


def named_devices(groups: Mapping[str, Mapping[str, str | None]]) -> list[tuple[str, str]]:
    """Variables that name network devices, with each device; patterns that exclude some name none.

    >>> named_devices({"rccl": {"NCCL_SOCKET_IFNAME": "hsn0,hsn1"}, "x": {"UCX_NET_DEVICES": "mlx5_ib0:1"}})
    [('NCCL_SOCKET_IFNAME', 'hsn0'), ('NCCL_SOCKET_IFNAME', 'hsn1'), ('UCX_NET_DEVICES', 'mlx5_ib0')]
    >>> named_devices({"x": {"NCCL_SOCKET_IFNAME": "^docker,lo"}})
    []
    """
    found = []
    for values in groups.values():
        for variable, value in values.items():
            if variable not in _VARIABLES or not value or value.startswith("^"):
                continue
            found += [(variable, device.lstrip("=").partition(":")[0]) for device in value.split(",")]
    return found


_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES", "NCCL_IB_HCA", "SHARP_SMX_UCX_INTERFACE")


def reduce_check(facts: Sequence[Facts], site: Site) -> Check:
    """The ranks add numbers up over the network, rightly, at a speed that is shown."""
    name, rule = "all-reduce", "a sum over all ranks is right; its bus bandwidth is shown"
    errors = [f"rank {one['rank']}: {one['errors']['group']}" for one in facts if "group" in one["errors"]]
    if errors:
        return Check(name, "fail", errors[0], rule, "The ranks cannot reach each other: look at the network variables.")
    groups = [one["group"] for one in facts if one.get("group")]
    if len(groups) < int(facts[0]["world_size"]):
        return Check(name, "unknown", f"{len(groups)} of {facts[0]['world_size']} ranks answered", rule)
    if not all(group["sum_is_right"] for group in groups):
        return Check(
            name, "fail", "the sum is wrong", rule, "Report it: a device or adapter computes or carries wrongly."
        )
    slowest = max(group["seconds"] for group in groups)
    speed = groups[0]["bus_bytes_per_second"]
    if speed is None:
        return Check(name, "pass", "one rank, nothing to carry", rule)
    value = (
        f"{len(groups)} ranks, {show_bytes(groups[0]['bytes'])} in {show_duration(slowest)}: "
        f"{speed / 1e9:.2f} GB/s bus bandwidth ({groups[0]['backend']})"
    )
    link = site.hardware.network
    if link and len({one["host"] for one in facts}) > 1:
        value += f", of {link:g} GB/s that a node's adapters carry"
    return Check(name, "pass", value, rule)


def clocks_check(facts: Sequence[Facts]) -> Check:
    """Clocks of the nodes, and of the file server, against each other."""
    name, rule = "clocks", f"nodes and file server agree to {SKEW_SECONDS:g} s"
    spreads = [one["group"]["clock_spread"] for one in facts if one.get("group")]
    files = [abs(one["write"]["clock_of_files"]) for one in facts if one.get("write")]
    if not spreads and not files:
        return Check(name, "unknown", "nobody could be asked", rule)
    worst = max([*spreads, *files])
    between, to_files = (show_duration(max(seconds, default=0.0)) for seconds in (spreads, files))
    value = f"{between} between ranks, {to_files} to the files"
    if worst > SKEW_SECONDS:
        return Check(name, "warn", value, rule, "Ask for a time service (chrony) there: heartbeats are compared by it.")
    return Check(name, "pass", value, rule)


def write_check(facts: Sequence[Facts], plan: Mapping[str, Any]) -> Check:
    """How fast files are written, against the time the plan promises for a checkpoint."""
    name, rule = "writing", "a checkpoint is written in the time that the plan promises"
    writes = [one["write"] for one in facts if one.get("write")]
    if not writes:
        errors = [one["errors"]["write"] for one in facts if "write" in one["errors"]]
        return Check(name, "fail" if errors else "unknown", errors[0] if errors else "nobody wrote", rule)
    speed = sum(write["bytes_per_second"] for write in writes)
    size = plan["checkpoint"]["04-training"]["checkpoint_bytes"]
    seconds = size / speed
    value = f"{len(writes)} writers, {speed / 1e9:.2f} GB/s: {show_bytes(size)} in {show_duration(seconds)}"
    promised = [save["write_seconds"] for save in plan["endurance"]["saves"]]
    if promised and seconds > 2 * max(promised):
        nodes = plan["phases"]["04-training"]["parallel"]["world_size"]
        remedy = (
            f"The plan promises {show_duration(min(promised))} to {show_duration(max(promised))}, all {nodes} devices "
            "writing; look at stripes and tier, or save less often."
        )
        return Check(name, "warn", value, rule, remedy)
    return Check(name, "pass", value, rule)


def _devices(one: Facts) -> list[dict[str, Any]]:
    return list((one.get("torch") or {}).get("devices", []))


def _versions(one: Facts) -> tuple[tuple[str, str | None], ...]:
    return (("python", one["python"]), *sorted(one["packages"].items()))


def _has(one: Facts, device: str) -> bool:
    names = [*one["networks"], *one["infiniband"]]
    return any(name == device or name.startswith(device) for name in names)

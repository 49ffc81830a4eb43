"""The probe of the nodes: started as the trainer is, its answers compared with the site and the plan."""

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from runbook.core import processes, shell
from runbook.core.errors import JobError, ProgramError
from runbook.core.units import show_bytes, show_duration
from runbook.jobs import get_scheduler
from runbook.jobs.job_folder import JobFolder, JobState, next_job_folder
from runbook.jobs.render.task_job import Task, asks_for_queue, render_task
from runbook.jobs.render.training_job import PACKAGE, RenderedJob, render_local, write_job
from runbook.params import Settings
from runbook.params.schema.site import Site
from runbook.params.schema.value_types import Framework
from runbook.params.settings import missing_values
from runbook.phases.job_control import task_jobs
from runbook.phases.open_phase import OpenPhase
from runbook.planning import FULL, SMOKE, Check, Plan
from runbook.runs.run_folder import hold_run, runs_folder

ProbeAnswer = Mapping[str, Any]
"""What a rank of the probe wrote; training/probe.py makes it."""
PROBE_LIMIT_SECONDS = 600
PHASE = "01-environment"
MEASURED = ("all-reduce", "clocks", "writing")
"""Checks whose value is a speed or a moment: different each time it is asked."""
NEEDED = ("torch", "megatron-core", "numpy")
LIBRARIES = {"cuda": "CUDA", "hip": "ROCm", "nccl": "NCCL"}
"""What a rank's torch is built for or with, and its name for people."""
SKEW_SECONDS = 1.0
"""Clocks further apart make file times and logs of nodes contradict each other."""
IDLE_BYTES = 2 << 30
"""A GPU that somebody computes on holds more than this."""
NETWORK_VARIABLES = {
    *("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA"),
    *("UCX_NET_DEVICES", "SHARP_SMX_UCX_INTERFACE"),
}


def probe_phase(open_phase: OpenPhase) -> list[ProbeAnswer]:
    """What each rank found; on a queue one a node, where jobs.environment names a partition or a limit, else none."""
    if open_phase.settings.site.scheduler == "local":
        with open_phase.hold("checking the machine"):
            return _probe_here(open_phase.settings, open_phase.plan, open_phase.folder)
    out, task = _probe_task(open_phase.settings, open_phase.plan, open_phase.folder)
    if asks_for_queue(open_phase.settings, PHASE):
        task_jobs.run_tasks(open_phase, [task])
    return read_facts(out)


def probe_run(settings: Settings, plan: Plan) -> list[ProbeAnswer]:
    """The probe without a record: here in a folder that is removed again, or as a short job in the run's own folder.

    A job that the queue does not start in time is cancelled; then nobody was asked.
    """
    if settings.site.scheduler == "local":
        with tempfile.TemporaryDirectory(prefix="runbook-doctor-") as place:
            return _probe_here(settings, plan, Path(place))
    if not asks_for_queue(settings, PHASE) or missing_values(settings):
        return []
    folder = runs_folder(settings.project) / settings.name
    out, task = _probe_task(settings, plan, folder)
    with hold_run(folder, "checking the nodes"):
        job = next_job_folder(folder, f"{PHASE}-{task.part}")
        write_job(job, render_task(settings, PHASE, task, PACKAGE))
        # What the nodes said before it failed is still an answer; the scheduler's own check tells why it failed.
        with contextlib.suppress(JobError, ProgramError):
            _do_probe(settings, job)
    return read_facts(out)


def probe_alone() -> list[ProbeAnswer]:
    """The probe as one process of this Python, which no launcher started even where we are a job's step ourselves."""
    with tempfile.TemporaryDirectory(prefix="runbook-doctor-") as out:
        words = [sys.executable, "-m", "runbook.training.probe", "--out", out]
        shell.run(
            words,
            timeout=PROBE_LIMIT_SECONDS,
            env={"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
        )
        return read_facts(Path(out))


def read_facts(out: Path) -> list[ProbeAnswer]:
    """The files of all ranks, in their order."""
    facts = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("probe-*.json")]
    return sorted(facts, key=lambda one: int(one["rank"]))


def _probe_task(settings: Settings, plan: Plan, folder: Path) -> tuple[Path, Task]:
    """An empty place for the ranks' files, and the probe that writes them; it also writes where the training saves."""
    out = folder / "environment" / "probe"
    training = plan.phases[FULL]
    shutil.rmtree(out, ignore_errors=True)
    saves = folder / training.checkpoint.folder
    near = next(one for one in (saves, *saves.parents) if one.is_dir())
    words = ["--out", str(out), "--device", str(training.device), "--write-folder", str(near)]
    argv = (settings.site.python or sys.executable, "-m", "runbook.training.probe", *words)
    return out, Task("the checks of each node", argv, on_each_node=True, part="nodes")


def _probe_here(settings: Settings, plan: Plan, folder: Path) -> list[ProbeAnswer]:
    """By the local scheduler, in the place of the smoke test's trainer: the same launcher, ranks and environment."""
    out, task = _probe_task(settings, plan, folder)
    script = render_local(settings, replace(plan.phases[SMOKE], phase=PHASE), task.argv)
    place = JobFolder(
        folder / "environment" / "job"
    )  # not under jobs/: it is a question, not a part of the run
    shutil.rmtree(place.path, ignore_errors=True)
    write_job(place, RenderedJob(script, list(task.argv)))
    _do_probe(settings, place)
    return read_facts(out)


def _do_probe(settings: Settings, folder: JobFolder) -> None:
    """Submit the probe and wait for its end; one that does not answer in time is cancelled."""
    scheduler = get_scheduler(settings.site)
    scheduler.submit(folder)
    if not processes.wait_until(
        lambda: scheduler.state(folder).final, PROBE_LIMIT_SECONDS, interval=0.2
    ):
        scheduler.cancel(folder)
        raise ProgramError(
            f"the ranks of {folder.path} did not answer within {PROBE_LIMIT_SECONDS} s"
        )
    if (status := scheduler.state(folder)).state is not JobState.DONE:
        raise JobError(task_jobs.end_text(str(folder.path), status, [folder], num_lines=6))


def probe_checks(
    facts: Sequence[ProbeAnswer], site: Site, plan: Plan, framework: Framework
) -> list[Check]:
    """Every rule, `unknown` where nobody could be asked."""
    if not facts:
        remedy = "Give jobs.environment a partition or a walltime: the checks then run there, on jobs.environment.nodes."
        names = ("software", "GPUs", "network devices", "all-reduce", "clocks", "writing")
        asked = "asked on the nodes of the job"
        return [Check(name, "unknown", "no node was asked", asked, remedy) for name in names]
    return [
        software_check(facts, framework),
        devices_check(facts, site),
        networks_check(facts, site.environment),
        reduce_check(facts, site),
        clocks_check(facts),
        write_check(facts, plan),
    ]


def software_check(facts: Sequence[ProbeAnswer], framework: Framework) -> Check:
    """What the trainer's Python can import, and whether all nodes have the same, with CUDA or ROCm and NCCL."""
    rule = f"{', '.join(NEEDED)} can be imported, the same versions everywhere, also of CUDA or ROCm and NCCL"
    check = partial(Check, "software", rule=rule)
    sets = [
        one["packages"] | {name: _torch_of(one).get(key) for key, name in LIBRARIES.items()}
        for one in facts
    ]
    num_sets = len(
        {(one["python"], *sorted(found.items())) for one, found in zip(facts, sets, strict=True)}
    )
    if num_sets > 1:
        remedy = "Give all nodes one image or environment."
        return check("fail", f"{num_sets} different sets of versions", remedy=remedy)
    first = sets[0]
    missing = [package for package in NEEDED if not first.get(package)]
    broken = first.get("torch") and facts[0]["errors"].get("torch")
    if missing or broken:
        value = broken or f"missing: {', '.join(missing)}"
        if framework == "runbook":
            return check("fail", value, remedy="make setup installs what requirements.lock pins.")
        remedy = f"{framework} brings its own with the site's image; these are for our own trainer."
        return check("unknown", value, remedy=remedy)
    return check(
        "pass", ", ".join(f"{package} {version}" for package, version in first.items() if version)
    )


def devices_check(facts: Sequence[ProbeAnswer], site: Site) -> Check:
    """As many GPUs as the site says, and nobody computing on them."""
    wanted = site.hardware.devices_per_node
    devices = [(one["host"], gpus_of(one)) for one in facts]
    if site.hardware.device == "cpu":
        check = partial(Check, "GPUs", rule="GPUs of a node are hidden from its processes")
        if seen := max(len(found) for _, found in devices):
            return check(
                "fail", f"{seen} seen on a site that computes on CPUs", remedy="Report it: a fault."
            )
        return check("pass", "none seen; the site computes on CPUs")
    check = partial(Check, "GPUs", rule=f"{wanted} devices on each node, idle")
    if any(one.get("torch") is None for one in facts):
        return check(
            "unknown",
            "torch cannot be asked there",
            remedy="nvidia-smi or rocm-smi on a node shows them.",
        )
    counts = {host: len(found) for host, found in devices}
    if few := ", ".join(
        f"{host}: {count}" for host, count in sorted(counts.items()) if count < wanted
    ):
        built = (
            torch["version"]
            for torch in map(_torch_of, facts)
            if not torch.get("cuda") and not torch.get("hip")
        )
        if blind := next(built, None):
            remedy = "Install the build for this GPU (make setup GPU=1; docs/trainer.md), or the site's image."
            return check("fail", f"{few}; torch {blind} is built for the CPU alone", remedy=remedy)
        return check(
            "fail", few, remedy="Leave these nodes out, or set jobs.<phase>.devices_per_node."
        )
    in_use = [
        (f"{host} {number}", device["total"] - device["free"])
        for host, found in devices
        for number, device in enumerate(found)
    ]
    if busy := [f"{name}: {show_bytes(size)} in use" for name, size in in_use if size > IDLE_BYTES]:
        return check(
            "warn",
            "; ".join(busy[:4]),
            remedy="Somebody computes there: ask for whole nodes (exclusive).",
        )
    return check("pass", f"{wanted} on each of {len(counts)} nodes, idle")


def networks_check(
    facts: Sequence[ProbeAnswer], groups: Mapping[str, Mapping[str, str | None]]
) -> Check:
    """Devices that the environment names are there on each node."""
    rule = "every device that the site's environment names is there on every node"
    check = partial(Check, "network devices", rule=rule)
    if not (named := named_devices(groups)):
        return check("pass", "the environment names none")
    absent = sorted(
        {
            f"{variable}={device} on {one['host']}"
            for one in facts
            for variable, device in named
            if not any(name.startswith(device) for name in (*one["networks"], *one["infiniband"]))
        }
    )
    if absent:
        there = ", ".join([*facts[0]["networks"], *facts[0]["infiniband"]])
        return check("fail", "; ".join(absent[:4]), remedy=f"Name devices that are there: {there}.")
    return check("pass", ", ".join(device for _, device in named))


def named_devices(groups: Mapping[str, Mapping[str, str | None]]) -> list[tuple[str, str]]:
    """Variables that name network devices, with each device; patterns that exclude some name none.

    >>> named_devices({"rccl": {"NCCL_SOCKET_IFNAME": "hsn0,hsn1"}, "x": {"UCX_NET_DEVICES": "mlx5_ib0:1"}})
    [('NCCL_SOCKET_IFNAME', 'hsn0'), ('NCCL_SOCKET_IFNAME', 'hsn1'), ('UCX_NET_DEVICES', 'mlx5_ib0')]
    >>> named_devices({"x": {"NCCL_SOCKET_IFNAME": "^docker,lo"}})
    []
    """
    return [
        (variable, device.lstrip("=").partition(":")[0])
        for values in groups.values()
        for variable, value in values.items()
        if variable in NETWORK_VARIABLES and value and not value.startswith("^")
        for device in value.split(",")
    ]


def reduce_check(facts: Sequence[ProbeAnswer], site: Site) -> Check:
    """The ranks add numbers up over the network, rightly, at a speed that is shown."""
    check = partial(
        Check, "all-reduce", rule="a sum over all ranks is right; its bus bandwidth is shown"
    )
    if errors := [
        f"rank {one['rank']}: {one['errors']['group']}" for one in facts if "group" in one["errors"]
    ]:
        return check(
            "fail",
            errors[0],
            remedy="The ranks cannot reach each other: look at the network variables.",
        )
    groups = [one["group"] for one in facts if one.get("group")]
    if len(groups) < int(facts[0]["world_size"]):
        return check("unknown", f"{len(groups)} of {facts[0]['world_size']} ranks answered")
    if not all(group["sum_is_right"] for group in groups):
        return check(
            "fail",
            "the sum is wrong",
            remedy="Report it: a device or adapter computes or carries wrongly.",
        )
    if (speed := groups[0]["bus_bytes_per_second"]) is None:
        return check("pass", "one rank, nothing to carry")
    slowest = max(group["seconds"] for group in groups)
    value = (
        f"{len(groups)} ranks, {show_bytes(groups[0]['bytes'])} in {show_duration(slowest)}: "
        f"{speed / 1e9:.2f} GB/s bus bandwidth ({groups[0]['backend']})"
    )
    link = site.hardware.network
    if link and len({one["host"] for one in facts}) > 1:
        value += f", of {link:g} GB/s that a node's adapters carry"
    return check("pass", value)


def clocks_check(facts: Sequence[ProbeAnswer]) -> Check:
    """Clocks of the nodes, and of the file server, against each other."""
    check = partial(Check, "clocks", rule=f"nodes and file server agree to {SKEW_SECONDS:g} s")
    spreads = [one["group"]["clock_spread"] for one in facts if one.get("group")]
    files = [abs(one["write"]["clock_of_files"]) for one in facts if one.get("write")]
    if not spreads and not files:
        return check("unknown", "nobody could be asked")
    between, to_files = (show_duration(max(seconds, default=0.0)) for seconds in (spreads, files))
    value = f"{between} between ranks, {to_files} to the files"
    if max([*spreads, *files]) > SKEW_SECONDS:
        return check(
            "warn",
            value,
            remedy="Ask for a time service (chrony) there: heartbeats are compared by it.",
        )
    return check("pass", value)


def write_check(facts: Sequence[ProbeAnswer], plan: Plan) -> Check:
    """How fast files are written, against the time the plan promises for a checkpoint."""
    check = partial(
        Check, "writing", rule="a checkpoint is written in the time that the plan promises"
    )
    if not (writes := [one["write"] for one in facts if one.get("write")]):
        errors = [one["errors"]["write"] for one in facts if "write" in one["errors"]]
        return check("fail", errors[0]) if errors else check("unknown", "nobody wrote")
    speed = sum(write["bytes_per_second"] for write in writes)
    size = plan.checkpoint[FULL].checkpoint_bytes
    value = f"{len(writes)} writers, {speed / 1e9:.2f} GB/s: {show_bytes(size)} in {show_duration(size / speed)}"
    promised = [save.write_seconds for save in plan.endurance.saves]
    if promised and size / speed > 2 * max(promised):
        num_devices = plan.phases[FULL].parallel.world_size
        remedy = (
            f"The plan promises {show_duration(min(promised))} to {show_duration(max(promised))}, all {num_devices} "
            "devices writing; look at stripes and tier, or save less often."
        )
        return check("warn", value, remedy=remedy)
    return check("pass", value)


def gpus_of(one: ProbeAnswer) -> Sequence[ProbeAnswer]:
    """The GPUs that a rank's torch sees."""
    gpus: Sequence[ProbeAnswer] = _torch_of(one).get("devices", [])
    return gpus


def _torch_of(one: ProbeAnswer) -> ProbeAnswer:
    """What torch said of a rank's devices; empty where it could not be asked."""
    return one.get("torch") or {}

"""The probe of the nodes: started as the trainer is, its answers compared with the site and the plan."""

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
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
        with tempfile.TemporaryDirectory(prefix="runbook-doctor-") as temporary:
            return _probe_here(settings, plan, Path(temporary))
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
        argv = [sys.executable, "-m", "runbook.training.probe", "--out", out]
        shell.run(
            argv,
            timeout=PROBE_LIMIT_SECONDS,
            env={"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
        )
        return read_facts(Path(out))


def read_facts(out: Path) -> list[ProbeAnswer]:
    """Read the answers of all ranks, in the order of the ranks."""
    facts = [json.loads(path.read_text(encoding="utf-8")) for path in out.glob("probe-*.json")]
    return sorted(facts, key=lambda answer: int(answer["rank"]))


def _probe_task(settings: Settings, plan: Plan, folder: Path) -> tuple[Path, Task]:
    """An empty place for the ranks' files, and the probe that writes them; it also writes where the training saves."""
    out = folder / "environment" / "probe"
    training = plan.phases[FULL]
    shutil.rmtree(out, ignore_errors=True)
    saves = folder / training.checkpoint.folder
    existing_folder = next(path for path in (saves, *saves.parents) if path.is_dir())
    options = [
        *("--out", str(out)),
        *("--device", str(training.device)),
        *("--write-folder", str(existing_folder)),
    ]
    python = settings.site.python or sys.executable
    argv = (python, "-m", "runbook.training.probe", *options)
    return out, Task("the checks of each node", argv, on_each_node=True, part="nodes")


def _probe_here(settings: Settings, plan: Plan, folder: Path) -> list[ProbeAnswer]:
    """By the local scheduler, in the place of the smoke test's trainer: the same launcher, ranks and environment."""
    out, task = _probe_task(settings, plan, folder)
    script = render_local(settings, replace(plan.phases[SMOKE], phase=PHASE), task.argv)
    # Not under jobs/: the probe is a question, not a part of the run.
    job = JobFolder(folder / "environment" / "job")
    shutil.rmtree(job.path, ignore_errors=True)
    write_job(job, RenderedJob(script, list(task.argv)))
    _do_probe(settings, job)
    return read_facts(out)


def _do_probe(settings: Settings, folder: JobFolder) -> None:
    """Submit the probe and wait for its end; one that does not answer in time is cancelled."""
    scheduler = get_scheduler(settings.site)
    scheduler.submit(folder)
    has_ended = processes.wait_until(
        lambda: scheduler.state(folder).final, PROBE_LIMIT_SECONDS, interval=0.2
    )
    if not has_ended:
        scheduler.cancel(folder)
        raise ProgramError(
            f"the ranks of {folder.path} did not answer within {PROBE_LIMIT_SECONDS} s"
        )
    status = scheduler.state(folder)
    if status.state is not JobState.DONE:
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
    """Judge what the trainer's Python can import, and whether all nodes have the same versions."""
    rule = f"{', '.join(NEEDED)} can be imported, the same versions everywhere, also of CUDA or ROCm and NCCL"
    check = partial(Check, "software", rule=rule)
    versions_of_ranks = [_versions_of(answer) for answer in facts]
    pythons = [answer["python"] for answer in facts]
    distinct = {
        (python, *sorted(versions.items()))
        for python, versions in zip(pythons, versions_of_ranks, strict=True)
    }
    if len(distinct) > 1:
        remedy = "Give all nodes one image or environment."
        return check("fail", f"{len(distinct)} different sets of versions", remedy=remedy)
    versions = versions_of_ranks[0]
    fault = _import_fault(versions, facts[0]["errors"])
    if fault and framework == "runbook":
        return check("fail", fault, remedy="make setup installs what requirements.lock pins.")
    if fault:
        remedy = f"{framework} brings its own with the site's image; these are for our own trainer."
        return check("unknown", fault, remedy=remedy)
    installed = [f"{package} {version}" for package, version in versions.items() if version]
    return check("pass", ", ".join(installed))


def _versions_of(answer: ProbeAnswer) -> dict[str, str | None]:
    """Return the version of each package and GPU library of a rank. None where there is none."""
    torch = _torch_of(answer)
    versions: dict[str, str | None] = dict(answer["packages"])
    for key, library in LIBRARIES.items():
        versions[library] = torch.get(key)
    return versions


def _import_fault(versions: Mapping[str, str | None], errors: Mapping[str, str]) -> str:
    """Return why the trainer's packages cannot be imported. Empty where they can."""
    # A torch that is installed and cannot be imported says more than the list of packages does.
    if versions.get("torch") and errors.get("torch"):
        return errors["torch"]
    missing = [package for package in NEEDED if not versions.get(package)]
    return f"missing: {', '.join(missing)}" if missing else ""


def devices_check(facts: Sequence[ProbeAnswer], site: Site) -> Check:
    """Judge whether each node has as many GPUs as the site says, and nobody computes on them."""
    if site.hardware.device == "cpu":
        return _hidden_gpus_check(facts)
    devices_per_node = site.hardware.devices_per_node
    check = partial(Check, "GPUs", rule=f"{devices_per_node} devices on each node, idle")
    if any(answer.get("torch") is None for answer in facts):
        remedy = "nvidia-smi or rocm-smi on a node shows them."
        return check("unknown", "torch cannot be asked there", remedy=remedy)
    num_gpus = {answer["host"]: len(gpus_of(answer)) for answer in facts}
    short_nodes = [
        f"{host}: {count}" for host, count in sorted(num_gpus.items()) if count < devices_per_node
    ]
    if short_nodes:
        return _missing_gpus_check(check, short_nodes, facts)
    busy = _busy_gpus(facts)
    if busy:
        remedy = "Somebody computes there: ask for whole nodes (exclusive)."
        return check("warn", "; ".join(busy[:4]), remedy=remedy)
    return check("pass", f"{devices_per_node} on each of {len(num_gpus)} nodes, idle")


def _hidden_gpus_check(facts: Sequence[ProbeAnswer]) -> Check:
    """Judge whether the processes of a site that computes on CPUs see no GPU."""
    check = partial(Check, "GPUs", rule="GPUs of a node are hidden from its processes")
    num_visible = max(len(gpus_of(answer)) for answer in facts)
    if num_visible:
        value = f"{num_visible} seen on a site that computes on CPUs"
        return check("fail", value, remedy="Report it: a fault.")
    return check("pass", "none seen; the site computes on CPUs")


def _missing_gpus_check(
    check: Callable[..., Check], short_nodes: Sequence[str], facts: Sequence[ProbeAnswer]
) -> Check:
    """Return the failed check of nodes with too few GPUs, with the remedy that fits their torch."""
    value = ", ".join(short_nodes)
    cpu_build = _cpu_build_of_torch(facts)
    if cpu_build:
        value += f"; torch {cpu_build} is built for the CPU alone"
        remedy = "Install the build for this GPU (make setup GPU=1; docs/trainer.md), or the site's image."
    else:
        remedy = "Leave these nodes out, or set jobs.<phase>.devices_per_node."
    return check("fail", value, remedy=remedy)


def _cpu_build_of_torch(facts: Sequence[ProbeAnswer]) -> str:
    """Return the version of the first torch built without CUDA and ROCm. Empty where there is none."""
    for answer in facts:
        torch = _torch_of(answer)
        if not torch.get("cuda") and not torch.get("hip"):
            return str(torch["version"])
    return ""


def _busy_gpus(facts: Sequence[ProbeAnswer]) -> list[str]:
    """Return each GPU whose memory somebody uses, with how much."""
    busy = []
    for answer in facts:
        for number, device in enumerate(gpus_of(answer)):
            used_bytes = device["total"] - device["free"]
            if used_bytes > IDLE_BYTES:
                busy.append(f"{answer['host']} {number}: {show_bytes(used_bytes)} in use")
    return busy


def networks_check(
    facts: Sequence[ProbeAnswer], groups: Mapping[str, Mapping[str, str | None]]
) -> Check:
    """Judge whether each node has the network devices that the environment names."""
    rule = "every device that the site's environment names is there on every node"
    check = partial(Check, "network devices", rule=rule)
    named = named_devices(groups)
    if not named:
        return check("pass", "the environment names none")
    absent = set()
    for answer in facts:
        present = (*answer["networks"], *answer["infiniband"])
        for variable, device in named:
            if not any(name.startswith(device) for name in present):
                absent.add(f"{variable}={device} on {answer['host']}")
    if absent:
        first_node = ", ".join([*facts[0]["networks"], *facts[0]["infiniband"]])
        remedy = f"Name devices that are there: {first_node}."
        return check("fail", "; ".join(sorted(absent)[:4]), remedy=remedy)
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
    """Judge whether the ranks' all-reduce gives the right sum, and show its bandwidth."""
    rule = "a sum over all ranks is right; its bus bandwidth is shown"
    check = partial(Check, "all-reduce", rule=rule)
    for answer in facts:
        if "group" in answer["errors"]:
            value = f"rank {answer['rank']}: {answer['errors']['group']}"
            remedy = "The ranks cannot reach each other: look at the network variables."
            return check("fail", value, remedy=remedy)
    groups = [answer["group"] for answer in facts if answer.get("group")]
    world_size = int(facts[0]["world_size"])
    if len(groups) < world_size:
        return check("unknown", f"{len(groups)} of {facts[0]['world_size']} ranks answered")
    if not all(group["sum_is_right"] for group in groups):
        remedy = "Report it: a device or adapter computes or carries wrongly."
        return check("fail", "the sum is wrong", remedy=remedy)
    if groups[0]["bus_bytes_per_second"] is None:
        return check("pass", "one rank, nothing to carry")
    value = _bandwidth_text(groups)
    num_hosts = len({answer["host"] for answer in facts})
    network_gb_per_second = site.hardware.network
    if network_gb_per_second and num_hosts > 1:
        value += f", of {network_gb_per_second:g} GB/s that a node's adapters carry"
    return check("pass", value)


def _bandwidth_text(groups: Sequence[ProbeAnswer]) -> str:
    """Return the size, the slowest rank's time and the bus bandwidth of the all-reduce."""
    first = groups[0]
    slowest_seconds = max(group["seconds"] for group in groups)
    bus_gb_per_second = first["bus_bytes_per_second"] / 1e9
    return (
        f"{len(groups)} ranks, {show_bytes(first['bytes'])} in {show_duration(slowest_seconds)}: "
        f"{bus_gb_per_second:.2f} GB/s bus bandwidth ({first['backend']})"
    )


def clocks_check(facts: Sequence[ProbeAnswer]) -> Check:
    """Compare the clocks of the nodes, and of the file server, with each other."""
    check = partial(Check, "clocks", rule=f"nodes and file server agree to {SKEW_SECONDS:g} s")
    between_ranks = [answer["group"]["clock_spread"] for answer in facts if answer.get("group")]
    to_files = [abs(answer["write"]["clock_of_files"]) for answer in facts if answer.get("write")]
    if not between_ranks and not to_files:
        return check("unknown", "nobody could be asked")
    rank_skew = show_duration(max(between_ranks, default=0.0))
    file_skew = show_duration(max(to_files, default=0.0))
    value = f"{rank_skew} between ranks, {file_skew} to the files"
    if max([*between_ranks, *to_files]) > SKEW_SECONDS:
        remedy = "Ask for a time service (chrony) there: heartbeats are compared by it."
        return check("warn", value, remedy=remedy)
    return check("pass", value)


def write_check(facts: Sequence[ProbeAnswer], plan: Plan) -> Check:
    """Compare how fast files are written with the time that the plan promises for a checkpoint."""
    rule = "a checkpoint is written in the time that the plan promises"
    check = partial(Check, "writing", rule=rule)
    writes = [answer["write"] for answer in facts if answer.get("write")]
    errors = [answer["errors"]["write"] for answer in facts if "write" in answer["errors"]]
    if not writes and errors:
        return check("fail", errors[0])
    if not writes:
        return check("unknown", "nobody wrote")
    bytes_per_second = sum(write["bytes_per_second"] for write in writes)
    checkpoint_bytes = plan.checkpoint[FULL].checkpoint_bytes
    seconds = checkpoint_bytes / bytes_per_second
    value = (
        f"{len(writes)} writers, {bytes_per_second / 1e9:.2f} GB/s: "
        f"{show_bytes(checkpoint_bytes)} in {show_duration(seconds)}"
    )
    promised = [save.write_seconds for save in plan.endurance.saves]
    if promised and seconds > 2 * max(promised):
        num_devices = plan.phases[FULL].parallel.world_size
        remedy = (
            f"The plan promises {show_duration(min(promised))} to {show_duration(max(promised))}, all {num_devices} "
            "devices writing; look at stripes and tier, or save less often."
        )
        return check("warn", value, remedy=remedy)
    return check("pass", value)


def gpus_of(answer: ProbeAnswer) -> Sequence[ProbeAnswer]:
    """Return the GPUs that a rank's torch sees."""
    gpus: Sequence[ProbeAnswer] = _torch_of(answer).get("devices", [])
    return gpus


def _torch_of(answer: ProbeAnswer) -> ProbeAnswer:
    """Return what torch said of a rank's devices. Empty where it could not be asked."""
    return answer.get("torch") or {}

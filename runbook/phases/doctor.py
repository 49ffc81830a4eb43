"""What this machine has and lacks, whatever is run on it; and what a run finds on its site."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from runbook import params
from runbook.errors import ParamsError, ProgramError
from runbook.params.catalogue import SchedulerKind
from runbook.phases.campaign import runs_folder
from runbook.phases.doctor_site import site_checks
from runbook.phases.environment import ask_software, writable_check
from runbook.phases.environment_checks import probe_checks
from runbook.phases.environment_probe import probe_run
from runbook.phases.machine import cpu_flags, measure
from runbook.plan import Check, make_plan
from runbook.units import show_bytes

NEEDED = ("torch", "megatron-core", "numpy")


def all_checks() -> list[Check]:
    """Python, the trainer's software, cores, memory, disk, and the tools that are used where they exist."""
    checks = [
        Check("python", "pass", platform.python_version(), "3.11 or newer; the trainer alone runs on 3.10"),
        *software_checks(),
        *machine_checks(),
        *place_checks(),
    ]
    for program, use in (("git", "the commit in every record"), ("shellcheck", "the tests of job scripts")):
        found = shutil.which(program)
        state = "found" if found else "not found"
        checks.append(Check(program, "pass" if found else "warn", state, f"for {use}", f"Install {program}."))
    return checks


def run_checks(run: str, set_words: Sequence[str]) -> list[Check]:
    """Everything that a run needs of its site; the probe works in a folder that is removed again."""
    settings = params.load(run, set_words=set_words)
    plan = make_plan(settings, measure(settings.site))
    folder = runs_folder(settings.project) / settings.name
    near = next(path for path in (folder, *folder.parents) if path.is_dir())
    own = machine_checks() if settings.site.scheduler is SchedulerKind.LOCAL else []
    checks = [*own, writable_check(near), *site_checks(settings, plan, folder)]
    framework = settings.run.training.framework
    return [*checks, *probe_checks(probe_run(settings, plan), settings.site, plan.as_dict(), framework)]


def software_checks() -> list[Check]:
    """What the trainer's Python can import, asked of a process."""
    remedy = "make setup installs what requirements.lock pins"
    try:
        found = ask_software()
    except ProgramError as error:
        return [Check("trainer", "fail", str(error).splitlines()[-1], f"torch can be imported; {remedy}", remedy)]
    checks = [
        Check(
            name,
            "pass" if found.get(name) else "fail",
            found.get(name) or "missing",
            f"the trainer imports it; {remedy}",
            remedy,
        )
        for name in NEEDED
    ]
    devices = found["cuda devices"]
    checks.append(
        Check("GPUs", "pass" if devices else "warn", str(devices), "without one, training runs on the CPU with gloo")
    )
    return checks


def machine_checks() -> list[Check]:
    """Cores, memory and matrix instructions."""
    flags = cpu_flags(Path("/proc/cpuinfo"))
    fast = sorted(flags & {"avx512_bf16", "amx_bf16"})
    memory = psutil.virtual_memory()
    return [
        Check(
            "cores", "pass", str(psutil.cpu_count(logical=False) or psutil.cpu_count()), "each process takes its share"
        ),
        Check(
            "memory",
            "pass" if memory.available > 6 * 2**30 else "warn",
            f"{show_bytes(memory.available)} of {show_bytes(memory.total)} free",
            "about 3 GiB for each process of the 12 x 512 smoke test",
            "End what else runs here, or choose a smaller model (training.smoke.model).",
        ),
        Check(
            "matrix instructions",
            "pass" if fast else "warn",
            ", ".join(fast) or "neither avx512_bf16 nor amx_bf16",
            "bf16 on a CPU is fast only with them",
            "Set training.precision to fp32 here, which is then faster.",
        ),
    ]


def place_checks() -> list[Check]:
    """The project folder, and where runs go."""
    try:
        runs = runs_folder(params.project_root())
    except ParamsError as error:
        rule = f"{sys.argv[0]} is started inside the project's folder"
        return [Check("project", "fail", str(error), rule, "cd into the clone, or runbook init DIR.")]
    near = next(path for path in (runs, *runs.parents) if path.exists())
    free = shutil.disk_usage(near).free
    enough = "pass" if free > 8 * 2**30 else "warn"
    return [
        writable_check(near),
        Check("disk", enough, f"{show_bytes(free)} free", "8 GiB for params/local.yaml", "Free space."),
    ]

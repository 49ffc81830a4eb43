"""What a run needs of its site, asked on the machine that submits: values, modules, queue, image, space, locks."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from runbook import shell
from runbook.errors import ParamsError, ProgramError
from runbook.params import Settings, resolve_secret
from runbook.params.catalogue import ContainerKind, SchedulerKind
from runbook.params.stage import STAGE, missing
from runbook.plan import Check, Plan
from runbook.units import show_bytes

MAGIC = {b"hsqs": "SquashFS", b"!<ar": "archive"}
STALE_SECONDS = 600


def site_checks(settings: Settings, plan: Plan, folder: Path) -> list[Check]:
    """One row a question; what cannot be known on this machine is unknown."""
    return [
        values_check(settings),
        *secret_checks(settings),
        modules_check(settings),
        *queue_checks(settings),
        image_check(settings),
        *space_checks(settings, plan, folder),
        locks_check(settings),
    ]


def values_check(settings: Settings) -> Check:
    """Accounts, folders and buckets that nobody has a default for."""
    lacking = missing(settings)
    value = ", ".join(lacking) if lacking else "all given"
    remedy = "; ".join(f"--set {key}=VALUE ({what})" for key, what in lacking.items())
    return Check("required values", "fail" if lacking else "pass", value, "what the site requires is given", remedy)


def secret_checks(settings: Settings) -> list[Check]:
    """Passwords that the set-up and the text's source ask for; no value is shown."""
    references = {step.secret: step.title for step in settings.site.preparation if step.secret}
    references |= {text.dataset.token: f"the text {text.name}" for text in settings.texts if text.dataset.token}
    checks = []
    for reference, use in references.items():
        try:
            resolve_secret(reference)
            checks.append(secret_check(reference, use))
        except ParamsError as error:
            checks.append(Check(f"secret {reference}", "warn", "not there", f"for {use}", str(error)))
    return checks


def secret_check(reference: str, use: str) -> Check:
    """A secret that is there; where it is a file, nobody else may read it."""
    kind, _, place = reference.partition(":")
    mode = Path(place).expanduser().stat().st_mode if kind == "file" else 0
    name, rule = f"secret {reference}", f"for {use}; a file is readable by you alone"
    if mode & 0o077:
        return Check(
            name, "warn", f"there, and others can read it (mode {mode & 0o777:04o})", rule, f"chmod 600 {place}"
        )
    return Check(name, "pass", "there", rule if kind == "file" else f"for {use}")


def modules_check(settings: Settings) -> Check:
    """The environment modules that jobs load."""
    wanted, name, rule = settings.site.modules, "modules", "every module that jobs load can be loaded"
    if not wanted:
        return Check(name, "pass", "none are loaded", rule)
    script = 'type module >/dev/null 2>&1 || exit 3; for one in "$@"; do module load "$one" || exit 1; done'
    said = shell.run(["bash", "-lc", script, "modules", *wanted], check=False, timeout=120)
    if said.exit_code == 3:
        remedy = f"This is not a login node of {settings.site.site}, or its module system is not set up here."
        return Check(name, "unknown", "there is no module command here", rule, remedy)
    if said.exit_code:
        words = shell.last_lines(said.err or said.out, 2).replace("\n", " ")
        remedy = "module avail shows what is there; params/sites names what is loaded."
        return Check(name, "fail", words or "a module cannot be loaded", rule, remedy)
    return Check(name, "pass", f"{len(wanted)} load", rule)


def queue_checks(settings: Settings) -> list[Check]:
    """Whether the scheduler answers, and knows the partitions that the run's jobs ask for."""
    kind = settings.site.scheduler
    if kind is SchedulerKind.LOCAL:
        return [Check("scheduler", "pass", "this machine runs the jobs itself", "the scheduler answers")]
    question = ["sinfo", "-h", "-o", "%R|%a|%D|%l"] if kind is SchedulerKind.SLURM else ["qstat", "-Q"]
    remedy = f"This is not a login node of {settings.site.site}, or its scheduler is down."
    try:
        said = shell.run(question, timeout=30)
    except ProgramError as error:
        there = shutil.which(question[0]) is not None
        verdict = "fail" if there else "unknown"
        return [Check("scheduler", verdict, str(error).splitlines()[0], "the scheduler answers", remedy)]
    checks = [Check("scheduler", "pass", f"{question[0]} answers", "the scheduler answers")]
    names = {line.split("|")[0].split()[0] for line in said.out.splitlines() if line.strip()}
    jobs = settings.run.jobs
    for section in ("environment", "data", "smoke", "training"):
        partition = getattr(jobs, section).partition
        if partition:
            rule = "the queue that the job asks for is there"
            remedy = f"Set jobs.{section}.partition to one of {', '.join(sorted(names))}."
            verdict = "pass" if partition in names else "fail"
            checks.append(Check(f"queue of jobs.{section}", verdict, partition, rule, remedy))
    return checks


def image_check(settings: Settings) -> Check:
    """The container image: there, readable, and of a kind that can be started."""
    container, name, rule = settings.site.container, "image", "the image of the jobs can be read"
    if container.kind is ContainerKind.NONE:
        return Check(name, "pass", "the site uses no container", rule)
    image = container.image or os.environ.get(container.variable, "")
    if not image:
        remedy = f"Load the site's module that sets {container.variable}." if container.variable else "Set jobs.image."
        return Check(name, "unknown", "no image is named here", rule, remedy)
    if STAGE in image:
        return Check(name, "unknown", image, rule, "Give jobs.stage, the folder that it lies in.")
    if not image.startswith("/"):
        return Check(name, "unknown", f"{image} lies in a registry", rule, "The first job that starts it will tell.")
    path = Path(image)
    try:
        with path.open("rb") as stream:
            head = stream.read(64)
        size = path.stat().st_size
    except OSError as error:
        remedy = "01-environment makes it where the site says how; jobs.image names another."
        return Check(name, "fail", f"{image}: {error.strerror}", rule, remedy)
    kind = "SIF" if b"SIF_MAGIC" in head else MAGIC.get(head[:4], "")
    if not kind:
        return Check(
            name,
            "fail",
            f"{image} is neither SquashFS nor SIF",
            rule,
            "Import it again: enroot import, singularity pull.",
        )
    return Check(name, "pass", f"{image}: {kind}, {show_bytes(size)}", rule)


def space_checks(settings: Settings, plan: Plan, folder: Path) -> list[Check]:
    """Free space at each place that the plan fills."""
    content = plan.as_dict()
    wanted = [
        (str(spec["checkpoint"]["folder"]), int(content["checkpoint"][phase]["disk_bytes"]))
        for phase, spec in content["phases"].items()
    ]
    wanted.append((settings.site.paths.get("data", "data"), int(content["data"]["estimated_bytes"])))
    places: dict[Path, int] = {}
    for where, size in wanted:
        if STAGE not in where:
            near = _nearest(folder / where)
            places[near] = places.get(near, 0) + size
    rule = "what the plan puts there fits: checkpoints kept and one more, token files"
    if not places:
        return [Check("space", "unknown", "the shared folder is not named", rule, "Give jobs.stage.")]
    checks = []
    for place, needed in places.items():
        free = shutil.disk_usage(place).free
        checks.append(
            Check(
                f"space at {place}",
                "pass" if free > needed else "fail",
                f"{show_bytes(free)} free, {show_bytes(needed)} wanted",
                rule,
                "Free space, lower training.keep_checkpoints, or name another place (jobs.stage, --runs).",
            )
        )
    return checks


def locks_check(settings: Settings) -> Check:
    """Compilations that were cut off, at whose locks every later job waits."""
    name, rule = "compilation locks", "no compilation of kernels left a lock behind"
    checkout = settings.site.frameworks.get(settings.run.training.framework)
    folders = [Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path.home() / ".cache" / "torch_extensions")]
    if checkout and STAGE not in checkout.folder:
        folders.append(Path(checkout.folder) / "megatron" / "fused_kernels" / "build")
    stale = [
        lock
        for place in folders
        if place.is_dir()
        for lock in place.rglob("lock")
        if time.time() - lock.stat().st_mtime > STALE_SECONDS
    ]
    if stale:
        return Check(name, "warn", str(stale[0]), rule, f"If no job compiles now: rm -r {stale[0].parent}")
    return Check(name, "pass", "none", rule)


def _nearest(path: Path) -> Path:
    return next(one for one in (path, *path.parents) if one.is_dir())

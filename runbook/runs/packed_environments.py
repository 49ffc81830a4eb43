"""The Python environment packed for jobs on a site, and its archive."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from runbook.core import shell
from runbook.core.checks import Check, counted
from runbook.core.errors import JobError, ParamsError
from runbook.core.locks import hold_file
from runbook.core.units import GIGABYTE, show_bytes, show_duration
from runbook.jobs.render.quoting import quote, site_commands
from runbook.jobs.render.training_job import PACKAGE
from runbook.packed_environment import contents
from runbook.packed_environment.archive import PackError, default_compression
from runbook.packed_environment.interpreter import (
    QUESTION,
    Interpreter,
    InterpreterError,
    parse_answer,
)
from runbook.packed_environment.manifest import (
    MANIFEST_NAME,
    EnvironmentManifest,
    ManifestError,
    read_manifest,
)
from runbook.packed_environment.pack import find_sources, pack
from runbook.params import Settings
from runbook.plan_file.phase_names import FULL
from runbook.planning.useful_time import ASSUMED_GIGABYTES_A_NODE, ASSUMED_GIGABYTES_AT_MOST
from runbook.runs.messages import RunMessage

KEY = "jobs.environment_copy"
ASK_SECONDS = 300.0
"""Time limit for loading modules and running set-up commands on a site, which can be slow."""
WAIT_SECONDS = 3600.0
"""Longest wait for another process that packs the same environment."""
FILES_PER_SECOND = 4000.0
"""Files per second that a node unpacks; see docs/local-environment.md."""
RULE = "the packed environment is copied to each node's own disk, and the jobs use no container"


class PackState(StrEnum):
    """Whether the archive matches the environment that the jobs would otherwise use."""

    CURRENT = "current"
    ABSENT = "not packed"
    CHANGED = "changed"
    """The environment has changed since it was packed, or the jobs use a different environment."""
    LOST = "archive lost"
    """The archive is missing, or its size has changed."""


@dataclass(frozen=True)
class PackStatus:
    """The packed environment, and whether it is up to date."""

    state: PackState
    manifest: EnvironmentManifest | None
    why: str = ""


def environments_folder(settings: Settings) -> Path:
    """Return the folder for archives on a site, on the file system that all nodes share."""
    stage = settings.run.jobs.stage
    parent = Path(stage) if stage else settings.project
    return parent / "environments" / settings.site.site


def uses_copy(settings: Settings) -> bool:
    """Return whether the training jobs run from a local copy of their environment."""
    return bool(settings.run.jobs.environment_copy)


def read_packed(settings: Settings) -> EnvironmentManifest | None:
    """Return the manifest for the newest archive, or None if there is no archive."""
    try:
        return read_manifest(environments_folder(settings) / MANIFEST_NAME)
    except ManifestError as error:
        raise JobError(str(error)) from error


def ask_interpreter(settings: Settings) -> Interpreter:
    """Find the interpreter that jobs use once the site modules and set-up commands have run."""
    site = settings.site
    if site.scheduler == "local":
        python = site.python or sys.executable
    else:
        python = site.python or "python3"

    lines = ["set -e"]
    lines += [f"module load {quote(module)}" for module in site.modules]
    lines += site_commands(site.setup, settings)
    if settings.run.training.framework == "runbook" and site.scheduler != "local":
        lines.append(f"export PYTHONPATH={quote(str(PACKAGE))}")
    lines.append(f"{quote(python)} -c {quote(QUESTION)}")
    answer = shell.run(["bash", "-c", "\n".join(lines)], cwd=Path("/"), timeout=ASK_SECONDS)
    try:
        return parse_answer(answer.out)
    except InterpreterError as error:
        raise JobError(
            RunMessage.ENVIRONMENT_NOT_PACKED,
            python=python,
            error=error,
            out=shell.last_lines(answer.out),
        ) from error


def inspect_packed(settings: Settings, interpreter: Interpreter) -> PackStatus:
    """Compare the archive with the current environment.

    This reads file metadata, not file content.
    """
    manifest = read_packed(settings)
    if manifest is None:
        return PackStatus(PackState.ABSENT, None)
    archive = Path(manifest.archive)
    if not archive.is_file() or archive.stat().st_size != manifest.archive_bytes:
        return PackStatus(PackState.LOST, manifest, f"{archive} is missing or has a different size")
    if interpreter.executable != manifest.interpreter:
        why = f"{manifest.interpreter} was packed, but the jobs use {interpreter.executable}"
        return PackStatus(PackState.CHANGED, manifest, why)

    changed = _changed_parts(_sources(interpreter), manifest)
    if changed:
        return PackStatus(PackState.CHANGED, manifest, f"{', '.join(changed)} changed since")
    return PackStatus(PackState.CURRENT, manifest)


def _sources(interpreter: Interpreter) -> list[contents.PackedSource]:
    try:
        return find_sources(interpreter, PACKAGE)
    except (PackError, InterpreterError) as error:
        raise JobError(str(error)) from error


def _changed_parts(
    sources: list[contents.PackedSource], manifest: EnvironmentManifest
) -> list[str]:
    """Return the folders where files have changed since the environment was packed."""
    packed = {part.name: part for part in manifest.parts}
    changed = []
    for source in sources:
        part = packed.get(source.name)
        is_same_folder = part is not None and part.folder == str(source.folder)
        entries = list(contents.list_entries([source]))
        if part is None or not is_same_folder or contents.fingerprint(entries) != part.fingerprint:
            changed.append(str(source.folder))

    return changed


def ensure_packed(
    settings: Settings, say: Callable[[str], None], *, again: bool = False
) -> tuple[EnvironmentManifest, bool]:
    """Return the manifest for an up-to-date archive, and whether it was packed just now."""
    _require_no_container(settings)
    folder = environments_folder(settings)
    folder.mkdir(parents=True, exist_ok=True)
    interpreter = ask_interpreter(settings)
    with hold_file(folder / "pack.lock", "packing an environment", wait_seconds=WAIT_SECONDS):
        status = inspect_packed(settings, interpreter)
        if status.state is PackState.CURRENT and status.manifest is not None and not again:
            return status.manifest, False
        reason = f" ({status.why})" if status.why else ""
        say(f"Packing {interpreter.prefix}{reason}. This takes about a minute for each GB.")
        try:
            manifest = pack(
                interpreter,
                PACKAGE,
                folder,
                default_compression(),
                lambda *_: None,
            )
        except (PackError, InterpreterError) as error:
            raise JobError(str(error)) from error

    return manifest, True


def _require_no_container(settings: Settings) -> None:
    kind = settings.site.container.kind
    if kind != "none":
        raise ParamsError(
            RunMessage.PACKED_IN_A_CONTAINER, site=settings.site.site, kind=kind, key=KEY
        )


def copy_seconds(manifest: EnvironmentManifest, nodes: int, gigabytes_per_second: float) -> float:
    """Return the seconds until every node has its copy: the longer of reading and unpacking.

    `gigabytes_per_second` is how fast all nodes together read from the shared file system.
    """
    reading = nodes * manifest.archive_bytes / (gigabytes_per_second * GIGABYTE)
    return max(reading, manifest.files / FILES_PER_SECOND)


def shared_bandwidth(settings: Settings, nodes: int) -> tuple[float, str]:
    """Return the read speed assumed for the shared file system in GB/s, and the source for it."""
    speeds = settings.site.write_bandwidth
    if speeds:
        tier, speed = max(speeds.items(), key=lambda item: item[1])
        return speed, f"assumed to read as fast as {tier} writes"

    speed = min(ASSUMED_GIGABYTES_AT_MOST, ASSUMED_GIGABYTES_A_NODE * nodes)
    return speed, "assumed"


def environment_checks(settings: Settings) -> list[Check]:
    """Report the space and time needed to copy the environment to each node.

    Return no check if no copy is requested.
    """
    jobs = settings.run.jobs
    if not uses_copy(settings):
        return []
    name = "copy of the environment"
    kind = settings.site.container.kind
    if kind != "none":
        value = f"{KEY}={jobs.environment_copy} on a site with containers ({kind})"
        remedy = f"An image is already packed: leave {KEY} empty, and set jobs.image_copy."
        return [
            Check(
                name,
                "fail",
                value,
                RULE,
                remedy,
                keys=(KEY,),
            )
        ]

    manifest = read_packed(settings)
    if manifest is None:
        remedy = (
            f"Pack it now with runbook pack {settings.name}, or leave it to the first submission."
        )
        return [
            Check(
                name,
                "unknown",
                "not packed yet",
                RULE,
                remedy,
                keys=(KEY,),
            )
        ]

    job = settings.job(FULL)
    nodes = job.nodes + job.spares
    speed, source = shared_bandwidth(settings, nodes)
    seconds = show_duration(copy_seconds(manifest, nodes, speed))
    value = (
        f"{manifest.files:,} files, {show_bytes(manifest.disk_bytes)} "
        f"in {jobs.environment_copy} of each node, "
        f"from an archive of {show_bytes(manifest.archive_bytes)}; "
        f"about {seconds} on {counted(nodes, 'node')} ({speed:g} GB/s in all, {source})"
    )
    return [
        Check(
            name,
            "pass",
            value,
            RULE,
            keys=(KEY,),
        )
    ]


def describe_packed(settings: Settings, manifest: EnvironmentManifest, is_new: bool) -> list[str]:
    """Return the text shown after packing."""
    if is_new:
        state = f"packed in {show_duration(manifest.seconds)}"
    else:
        state = "has not changed since it was packed"

    lines = [
        f"The environment of {manifest.interpreter} (Python {manifest.python_version}) {state}:",
        f"  {manifest.files:,} files, {show_bytes(manifest.disk_bytes)} on a node's disk",
        f"  {manifest.archive} ({show_bytes(manifest.archive_bytes)}, sha256 {manifest.sha256})",
    ]
    for part in manifest.parts:
        lines.append(f"  {part.name}: {part.files:,} files of {part.folder}")
    lines += [f"  not packed, and read where it is: {folder}" for folder in manifest.outside]
    if manifest.uncompiled:
        lines.append(
            f"  {counted(manifest.uncompiled, 'module')} without a compiled file, which every "
            f"importing node must compile: {manifest.interpreter} -m compileall -q "
            f"{manifest.parts[-2].folder}, then pack again"
        )

    folder = settings.run.jobs.environment_copy
    if folder:
        lines.append(f"Jobs of 03 and 04 unpack it to {folder} on each node.")
    else:
        lines.append(f"No job uses it yet: set {KEY} to a folder on the nodes' own disks.")

    return lines

"""Rehearse a layout before its first job on a cluster.

The counts are made once, kept by fingerprint, and judged at each launch.
"""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from runbook.core.errors import JobError, JobFailedError, ProgramError, RunbookError
from runbook.core.files import write_text
from runbook.display import Progress, show_figure, show_table, show_text
from runbook.jobs.render.task_job import Task, asks_for_queue
from runbook.params.settings import require_values
from runbook.phases.job_control import readiness, task_jobs
from runbook.phases.messages import PhaseMessage
from runbook.phases.open_phase import OpenPhase
from runbook.phases.rehearsal import (
    CannotRehearseError,
    Rehearsal,
    first_ranks,
    has_trainer,
    rehearse_run,
    usable_bytes,
)
from runbook.plan_file.errors import FAILED, REFUSED, RefusedError
from runbook.plan_file.identity import layout_inputs
from runbook.plan_file.json_records import as_json, from_json
from runbook.planning import Check, Plan
from runbook.records.manifest import note_files
from runbook.records.twin import versions
from runbook.runs.step import fingerprint

FOLDER = "rehearsals"
VERSION = 2
"""Increase this number when rehearsals count differently, so that kept ones are made again."""
WAIVER = "training.rehearsal_waived_by"
JOB_PHASE = "01-environment"
"""The rehearsal's job requests the same resources as the node checks, without devices."""
COUNTING = ("gpt3-runbook", "torch", "megatron-core", "deepspeed")
"""Packages that may count differently in another version."""
REMEDY = (
    "raise parallel.tensor or parallel.pipeline, lower training.micro_batch, or set "
    "training.recompute"
)


def require(open_phase: OpenPhase) -> None:
    """Stop before the phase's first job on a cluster if its layout fails or does not fit.

    The layout is rehearsed at full size.
    """
    if open_phase.settings.site.scheduler != "local":
        require_values(open_phase.settings)
        open_phase.check([check_layout(open_phase)])


def show(open_phase: OpenPhase) -> None:
    """Return the counts of the layout's rehearsal.

    A kept one is used; otherwise it is rehearsed now, if this site has a queue.
    """
    name = open_phase.settings.name
    site = open_phase.settings.site
    # Refuse before minutes of counting, not after.
    require_values(open_phase.settings)
    if site.scheduler == "local":
        show_text(PhaseMessage.NO_QUEUE_TO_REHEARSE.fill(site=site.site, name=name))
    elif has_trainer() or kept_rehearsal(open_phase):
        # This is only shown: a failure stops the phase whose job it concerns.
        check = check_layout(open_phase)
        open_phase.check([replace(check, verdict="warn") if check.verdict == "fail" else check])
    else:
        show_text(PhaseMessage.REHEARSED_BY_JOB.fill(phase=open_phase.phase))

    rehearsal = kept_rehearsal(open_phase)
    if rehearsal:
        for table in rehearsal.tables():
            show_table(table)
        for name, figure in rehearsal.figures().items():
            show_figure(figure, f"Rehearsed step, {name}: the numbers are in the tables.")
        show_text("\n".join(rehearsal.findings) or "Plan and rehearsal agree within 5 %.")


def check_layout(open_phase: OpenPhase) -> Check:
    """Check that every stage of the phase fits its device at full size.

    If that was never rehearsed, do it now.
    """
    framework = open_phase.settings.run.training.framework
    rehearsal = kept_rehearsal(open_phase)
    rule = PhaseMessage.EVERY_STAGE_FITS.fill()
    is_warning = framework != "runbook"
    if is_warning:
        rule = (
            f"a warning only: our own trainer is rehearsed with this layout, and {framework} will "
            "run"
        )

    check = partial(Check, "rehearsal", rule=rule)
    if rehearsal is None and open_phase.settings.value(WAIVER).strip():
        return readiness.apply_waiver(open_phase, check("fail", "not done"), WAIVER)
    try:
        rehearsal = rehearsal or _rehearse(open_phase)
    except CannotRehearseError as error:
        return check("unknown", f"not rehearsed: {error}")
    except RunbookError as error:
        failed = check("fail", str(error))
    else:
        if not rehearsal.misfits:
            return check("pass", _fullest_text(rehearsal))
        failed = check("fail", "; ".join(rehearsal.misfits), rule=f"{rule}: {REMEDY}")

    if is_warning:
        return replace(failed, verdict="warn")
    return readiness.apply_waiver(open_phase, failed, WAIVER)


def _fullest_text(rehearsal: Rehearsal) -> str:
    """Return the memory that the fullest stage needs, and its device's memory if known."""
    fullest = max(rehearsal.stages, key=lambda stage: stage.peak_bytes)
    gibibytes = f"{fullest.peak_bytes / 2**30:.4g}"
    if rehearsal.limit_bytes:
        gibibytes += f" of {rehearsal.limit_bytes / 2**30:.4g}"
    return PhaseMessage.FULLEST_STAGE.fill(stage=fullest.stage, gibibytes=gibibytes)


def kept_rehearsal(open_phase: OpenPhase) -> Rehearsal | None:
    """Return the rehearsal of exactly this layout from the run's folder.

    It is compared with the current devices.
    """
    try:
        content = json.loads(_kept_path(open_phase).read_text(encoding="utf-8"))
        rehearsal = from_json(
            Rehearsal,
            content,
            name="the rehearsal",
            failure="another version wrote it:",
        )
        return replace(rehearsal, limit_bytes=usable_bytes(open_phase.settings.site))
    except (OSError, ValueError, RefusedError):
        # There is none, or another version wrote it.
        return None


def _kept_path(open_phase: OpenPhase, ending: str = "json") -> Path:
    inputs = {"layout": layout_inputs(open_phase.phase_plan), "software": _software(open_phase)}
    return open_phase.folder / FOLDER / f"{fingerprint(VERSION, inputs)}.{ending}"


def _software(open_phase: OpenPhase) -> dict[str, str]:
    """Return the relevant versions: those installed here, or in the job's own environment."""
    there = {}
    for name, version in versions().items():
        if name in COUNTING:
            there[name] = version

    site = open_phase.settings.site
    if has_trainer():
        return there
    return {**there, "image": site.container.image, "python": site.python}


def _rehearse(open_phase: OpenPhase) -> Rehearsal:
    """Rehearse one step of the first rank of each stage, here or as a job.

    The result is kept by the fingerprint of the layout.
    """
    phase = open_phase.phase
    done = itertools.count(1)
    ranks = first_ranks(open_phase.phase_plan)
    rehearse = partial(rehearse_run, str(open_phase.folder / "run.yaml"), phase=phase, ranks=ranks)
    if has_trainer():
        with Progress(f"rehearsal of {phase}", total=len(ranks), unit="stages") as progress:
            rehearsal = rehearse(say=lambda text: progress.update(next(done), newest=text))
    else:
        rehearsal = rehearse(count=partial(_count_in_a_job, open_phase))

    path = _kept_path(open_phase)
    write_text(path, json.dumps(as_json(rehearsal), indent=1) + "\n")
    note_files(open_phase.folder, sorted(path.parent.iterdir()))
    return rehearsal


def _count_in_a_job(
    open_phase: OpenPhase,
    plan: Plan,
    phase: str,
    ranks: Sequence[int],
) -> Iterator[Any]:
    """Return the counts of these ranks from a job with one core and no device."""
    if not asks_for_queue(open_phase.settings, JOB_PHASE):
        raise CannotRehearseError(PhaseMessage.TRAINER_NOT_INSTALLED)

    input = _kept_path(open_phase, "plan.json")
    out = _kept_path(open_phase, "jsonl")
    write_text(input, json.dumps(plan.as_dict()))
    command = (
        open_phase.settings.site.python or "python3",
        "-m",
        "runbook.training.rehearsal",
        input.relative_to(open_phase.folder).as_posix(),
        "--phase",
        phase,
        "--ranks",
        ",".join(map(str, ranks)),
        "--out",
        out.relative_to(open_phase.folder).as_posix(),
    )
    # Eight digits alone would be mistaken for the number of an attempt.
    part = f"rehearsal-plan{input.name[:8]}"
    task = Task("rehearse a layout", command, in_container=True, part=part)
    try:
        task_jobs.run_tasks(replace(open_phase, phase=JOB_PHASE), [task])
    except JobFailedError as error:
        # A job that started and then failed by itself judged the layout. Otherwise it lacked
        # software, time or memory.
        judged = out.exists() and error.job_exit_code in (FAILED, REFUSED)
        raise (ProgramError if judged else CannotRehearseError)(str(error)) from error
    except JobError as error:
        raise CannotRehearseError(str(error)) from error

    yield from map(json.loads, out.read_text(encoding="utf-8").splitlines())

"""Dry-runs a layout before its first job on a cluster.

It runs once per layout. Its counts are stored, and are checked at each launch.
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
from runbook.phases.recorded_checks import record_checks
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
from runbook.plan_file.phase_names import ENVIRONMENT
from runbook.planning import Check, Plan
from runbook.records.code_version import versions
from runbook.records.done_marks import fingerprint
from runbook.records.manifest import note_files
from runbook.records.session import Session
from runbook.runs.planned_run import PlannedTraining

FOLDER = "rehearsals"
VERSION = 2
"""Increase this when dry runs start to count differently, so that stored dry runs are repeated.
"""
WAIVER = "training.rehearsal_waived_by"
JOB_PHASE = ENVIRONMENT
"""The job for the dry run requests the same resources as the node checks, but no devices."""
COUNTING = ("gpt3-runbook", "torch", "megatron-core", "deepspeed")
"""Packages whose versions may affect the counts."""
REMEDY = (
    "raise parallel.tensor or parallel.pipeline, lower training.micro_batch, or set "
    "training.recompute"
)


def require(training: PlannedTraining, session: Session) -> None:
    """Stop before the first job on a cluster if the layout fails or does not fit.

    A dry run at full size determines this.
    """
    if training.settings.site.scheduler != "local":
        require_values(training.settings)
        record_checks(session, [check_layout(training, session)])


def show(training: PlannedTraining, session: Session) -> None:
    """Show the counts from the dry run.

    Use the stored dry run. If no dry run was made yet, run it now, provided that this site has a
    queue.
    """
    name = training.settings.name
    site = training.settings.site
    # Refuse before the dry run starts, because counting takes minutes.
    require_values(training.settings)
    if site.scheduler == "local":
        show_text(PhaseMessage.NO_QUEUE_TO_REHEARSE.fill(site=site.site, name=name))
    elif has_trainer() or kept_rehearsal(training):
        # The result is only shown here. A failure stops the phase whose job it concerns.
        check = check_layout(training, session)
        record_checks(
            session, [replace(check, verdict="warn") if check.verdict == "fail" else check]
        )
    else:
        show_text(PhaseMessage.REHEARSED_BY_JOB.fill(phase=training.phase))

    rehearsal = kept_rehearsal(training)
    if rehearsal:
        for table in rehearsal.tables():
            show_table(table)
        for name, figure in rehearsal.figures().items():
            show_figure(figure, f"Rehearsed step, {name}: the numbers are in the tables.")
        show_text("\n".join(rehearsal.findings) or "Plan and rehearsal agree within 5 %.")


def check_layout(training: PlannedTraining, session: Session) -> Check:
    """Check that every stage in the phase fits its device at full size.

    If there is no stored dry run, do one now.
    """
    framework = training.settings.run.training.framework
    rehearsal = kept_rehearsal(training)
    rule = PhaseMessage.EVERY_STAGE_FITS.fill()
    is_warning = framework != "runbook"
    if is_warning:
        rule = (
            f"only a warning: our own trainer is rehearsed with this layout, but {framework} will "
            "run"
        )

    check = partial(Check, "rehearsal", rule=rule)
    if rehearsal is None and training.settings.value(WAIVER).strip():
        return readiness.apply_waiver(training, session, check("fail", "not done"), WAIVER)
    try:
        rehearsal = rehearsal or _rehearse(training)
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
    return readiness.apply_waiver(training, session, failed, WAIVER)


def _fullest_text(rehearsal: Rehearsal) -> str:
    """Return the memory that the fullest stage needs and, if known, what its device has."""
    fullest = max(rehearsal.stages, key=lambda stage: stage.peak_bytes)
    gibibytes = f"{fullest.peak_bytes / 2**30:.4g}"
    if rehearsal.limit_bytes:
        gibibytes += f" of {rehearsal.limit_bytes / 2**30:.4g}"
    return PhaseMessage.FULLEST_STAGE.fill(stage=fullest.stage, gibibytes=gibibytes)


def kept_rehearsal(training: PlannedTraining) -> Rehearsal | None:
    """Return the dry run stored in the run folder for exactly this layout.

    Its memory limit is taken from the current devices.
    """
    try:
        content = json.loads(_kept_path(training).read_text(encoding="utf-8"))
        rehearsal = from_json(
            Rehearsal,
            content,
            name="the rehearsal",
            failure="another version wrote it:",
        )
        return replace(rehearsal, limit_bytes=usable_bytes(training.settings.site))
    except (OSError, ValueError, RefusedError):
        # The file does not exist, or a different version wrote it.
        return None


def _kept_path(training: PlannedTraining, ending: str = "json") -> Path:
    inputs = {"layout": layout_inputs(training.phase_plan), "software": _software(training)}
    return training.folder / FOLDER / f"{fingerprint(VERSION, inputs)}.{ending}"


def _software(training: PlannedTraining) -> dict[str, str]:
    """Return the versions that affect the counts; without a trainer here, also the job image."""
    there = {}
    for name, version in versions().items():
        if name in COUNTING:
            there[name] = version

    site = training.settings.site
    if has_trainer():
        return there
    return {**there, "image": site.container.image, "python": site.python}


def _rehearse(training: PlannedTraining) -> Rehearsal:
    """Dry-run one step for the first rank in each stage, here or in a job.

    The result is stored under the fingerprint of the layout.
    """
    phase = training.phase
    done = itertools.count(1)
    ranks = first_ranks(training.phase_plan)
    rehearse = partial(rehearse_run, str(training.folder / "run.yaml"), phase=phase, ranks=ranks)
    if has_trainer():
        with Progress(f"rehearsal of {phase}", total=len(ranks), unit="stages") as progress:
            rehearsal = rehearse(say=lambda text: progress.update(next(done), newest=text))
    else:
        rehearsal = rehearse(count=partial(_count_in_a_job, training))

    path = _kept_path(training)
    write_text(path, json.dumps(as_json(rehearsal), indent=1) + "\n")
    note_files(training.folder, sorted(path.parent.iterdir()))
    return rehearsal


def _count_in_a_job(
    training: PlannedTraining,
    plan: Plan,
    phase: str,
    ranks: Sequence[int],
) -> Iterator[Any]:
    """Yield the counts for these ranks, using a job with one core and no device."""
    if not asks_for_queue(training.settings, JOB_PHASE):
        raise CannotRehearseError(PhaseMessage.TRAINER_NOT_INSTALLED)

    input = _kept_path(training, "plan.json")
    out = _kept_path(training, "jsonl")
    write_text(input, json.dumps(plan.as_dict()))
    command = (
        training.settings.site.python or "python3",
        "-m",
        "runbook.training.rehearsal",
        input.relative_to(training.folder).as_posix(),
        "--phase",
        phase,
        "--ranks",
        ",".join(map(str, ranks)),
        "--out",
        out.relative_to(training.folder).as_posix(),
    )
    # Eight digits alone would be mistaken for an attempt number.
    part = f"rehearsal-plan{input.name[:8]}"
    task = Task("rehearse a layout", command, in_container=True, part=part)
    try:
        task_jobs.run_tasks(training.run, JOB_PHASE, [task])
    except JobFailedError as error:
        # If a job started and then failed on its own, the layout is to blame. Any other failure
        # means that the job lacked software, time or memory.
        judged = out.exists() and error.job_exit_code in (FAILED, REFUSED)
        raise (ProgramError if judged else CannotRehearseError)(str(error)) from error
    except JobError as error:
        raise CannotRehearseError(str(error)) from error

    yield from map(json.loads, out.read_text(encoding="utf-8").splitlines())

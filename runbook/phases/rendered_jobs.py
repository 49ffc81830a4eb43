"""Renders the jobs in a run as text, and writes the folder for `runbook render`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from runbook.core.errors import ParamsError
from runbook.core.files import write_text
from runbook.jobs.job_folder import JobFolder
from runbook.jobs.render.preparation import SETUP_FOLDER, preparation_files, render_preparation
from runbook.jobs.render.task_job import asks_for_queue, data_tasks, render_task
from runbook.jobs.render.training_job import PACKAGE, RenderedJob, render_job, write_job
from runbook.params import Settings
from runbook.params.settings import with_placeholders
from runbook.phases.messages import PhaseMessage
from runbook.phases.run_plan import load_named
from runbook.plan_file.phase_names import DATA
from runbook.planning import Plan
from runbook.runs import this_machine
from runbook.runs.run_files import write_plan_file


def render_jobs(settings: Settings, plan: Plan) -> dict[str, RenderedJob]:
    """Return the job for each training phase as it would be submitted."""
    rendered: dict[str, RenderedJob] = {}
    for phase in plan.phases:
        rendered[phase] = render_job(settings, plan, phase, python=sys.executable)

    return rendered


def render_all(
    run: str,
    set_words: Sequence[str],
    out: Path,
    *,
    placeholders: bool = False,
) -> list[Path]:
    """Write all job files into `out`, ready to be submitted. Return their paths.

    `out` has the layout of a run folder. A missing required value is an error, unless
    `placeholders` replaces it with a placeholder. A folder from which a job was already submitted
    is refused.
    """
    settings = load_named(run, set_words)
    if placeholders:
        settings = with_placeholders(settings)
    plan = this_machine.make_plan_here(settings)
    jobs = render_jobs(settings, plan)
    if asks_for_queue(settings, DATA):
        tasks = data_tasks(settings, sys.executable)
        for task in tasks:
            jobs[task.folder(DATA)] = render_task(settings, DATA, task, PACKAGE)

    folders = {name: JobFolder(out / "jobs" / name) for name in jobs}
    for folder in folders.values():
        if folder.was_submitted():
            raise ParamsError(PhaseMessage.FOLDER_OF_A_SUBMITTED_JOB, folder=folder.path)

    write_plan_file(settings, plan, out)
    for name, job in jobs.items():
        write_job(folders[name], job)
    if settings.site.scheduler != "local":
        preparation = out / SETUP_FOLDER
        write_text(preparation / "prepare.sh", render_preparation(settings, PACKAGE), mode=0o777)
        for name, content in preparation_files(settings).items():
            write_text(preparation / name, content)

    # The folder may also contain files from the user, which are not listed.
    job_folders = [folder.path for folder in folders.values()]
    written = [out / "plan.json", out / "run.yaml"]
    for written_folder in (*job_folders, out / SETUP_FOLDER):
        written += [path for path in written_folder.rglob("*") if path.is_file()]
    return sorted(written)

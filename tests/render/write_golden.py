"""Write tests/golden: `python -m tests.render.write_golden`. Read the diff, then commit."""

import json
import shutil

from runbook.jobs.render.preparation import preparation_files, render_preparation
from tests.render import local_job
from tests.render.sites import (
    COPIED,
    FEWER_NODES,
    GOLDEN,
    LENGTHS,
    OF_EACH_FRAMEWORK,
    PACKAGE,
    PHASES,
    RUNS,
    UNATTENDED,
    copied_files,
    data_jobs,
    length_arguments,
    length_file,
    rendered,
    texts,
    unattended_file,
    unattended_job,
)


def main():
    """Write a folder for each site and phase, and a file for each framework and length unit."""
    for framework in OF_EACH_FRAMEWORK:
        for unit in LENGTHS:
            _, arguments = length_arguments(framework, unit)
            path = length_file(framework, unit)
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(arguments, indent=2) + "\n", encoding="utf-8")
    for name in (*UNATTENDED, *FEWER_NODES):
        path = unattended_file(name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(unattended_job(name).script, encoding="utf-8")
    for name in COPIED:
        folder = GOLDEN / "environment-copy" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file_name, text in copied_files(name).items():
            (folder / file_name).write_text(text, encoding="utf-8")
    for phase in local_job.PHASES:
        folder = GOLDEN / "local" / phase
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts(local_job.golden_job(phase)).items():
            (folder / name).write_text(text, encoding="utf-8")
    for run in RUNS:
        for phase in PHASES:
            settings, _, job = rendered(run, phase)
            folder = GOLDEN / settings.site.site / phase
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for name, text in texts(job).items():
                (folder / name).write_text(text, encoding="utf-8")
        for name, job in data_jobs(run)[1].items():
            folder = GOLDEN / settings.site.site / name
            folder.mkdir(exist_ok=True)
            (folder / "job.sh").write_text(job.script, encoding="utf-8")
        folder = GOLDEN / settings.site.site / "01-environment"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prepare.sh").write_text(render_preparation(settings, PACKAGE), encoding="utf-8")
        for name, text in preparation_files(settings).items():
            (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

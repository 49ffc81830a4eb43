"""The shared folder of a run put into its site's paths, and the values a site needs that nobody has a default for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from runbook.params.catalogue import Launcher, Site
from runbook.params.problems import Problem, Refused
from runbook.params.schema import Run, StartedBy

if TYPE_CHECKING:
    from runbook.params.settings import Settings

STAGE = "{stage}"
"""What a site writes for the folder that jobs.stage names."""


def with_stage(site: Site, run: Run) -> Site:
    """The site with the run's shared folder and image in its paths; {stage} stays where none was given."""
    stage = run.jobs.stage.rstrip("/") if run.jobs.stage else STAGE

    def put(text: str) -> str:
        return text.replace(STAGE, stage)

    container = site.container
    return site.model_copy(
        update={
            "paths": {name: put(path) for name, path in site.paths.items()},
            "launcher": site.launcher if run.jobs.launcher is StartedBy.SITE else Launcher(run.jobs.launcher.value),
            "container": container.model_copy(
                update={
                    "image": put(run.jobs.image or container.image),
                    "mounts": [put(mount) for mount in container.mounts],
                    "options": [put(option) for option in container.options],
                }
            ),
            "frameworks": {
                name: checkout.model_copy(
                    update={
                        "folder": put(checkout.folder),
                        "options": {
                            key: put(value) if isinstance(value, str) else value
                            for key, value in checkout.options.items()
                        },
                    }
                )
                for name, checkout in site.frameworks.items()
            },
        }
    )


def missing(settings: Settings) -> Mapping[str, str]:
    """The keys this site requires that have no value yet, each with what it is."""
    return {key: what for key, what in settings.site.required.items() if not settings.value(key)}


def require(settings: Settings) -> None:
    """Raise `ParamsError` that lists every required value that was not given."""
    site = settings.site.site
    problems = [
        Problem(
            key,
            f"required by params/sites/{site}.yaml",
            f"is not given: {what}. Write it into the run file, or "
            f"--set {key}=VALUE; --placeholders renders without it.",
        )
        for key, what in missing(settings).items()
    ]
    if problems:
        raise Refused(f"Run {settings.name} on site {site}", problems)


def with_placeholders(settings: Settings) -> Settings:
    """The same run with each missing required value marked in capitals, for a text that is read and not submitted."""
    from dataclasses import replace

    values = settings.run.model_dump()
    for key in missing(settings):
        *parents, last = key.split(".")
        inner = values
        for parent in parents:
            inner = inner[parent]
        inner[last] = placeholder(key)
    run = Run.model_validate(values)
    return replace(settings, run=run, site=with_stage(settings.site, run))


def placeholder(key: str) -> str:
    """What stands for a value that was not given.

    >>> placeholder("jobs.account"), placeholder("jobs.stage")
    ('GIVE_JOBS_ACCOUNT', '/GIVE_JOBS_STAGE')
    """
    mark = "GIVE_" + key.replace(".", "_").upper()
    return f"/{mark}" if key.endswith((".stage", ".image")) else mark

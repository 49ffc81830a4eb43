"""What is set up on the login node before the first job, as one script that can be run again."""

from __future__ import annotations

from pathlib import Path

from runbook.params import Settings
from runbook.params.stage import STAGE
from runbook.render.templating import fill, quote

BUCKET = "{bucket}"
"""What a site writes for data.bucket."""

IMAGE = "{image}"
"""What a site writes for the container image of the run."""


def render_preparation(settings: Settings, package: Path) -> str:
    """The pinned checkout, the tokenizer's files, images and environments; what is there already is left alone.

    It is no job: a job fetches no code from the internet.
    """
    site, stage, bucket = settings.site, settings.run.jobs.stage.rstrip("/"), settings.run.data.bucket.rstrip("/")
    framework = settings.run.training.framework
    checkout = site.frameworks.get(framework)
    own_clone = checkout is not None and bool(stage) and checkout.folder.startswith(f"{stage}/")

    def put(text: str, word: bool) -> str:
        for name, value in ((STAGE, stage), (IMAGE, site.container.image), (BUCKET, bucket)):
            text = text.replace(name, quote(value) if word else value)
        return text

    steps = [
        {
            "title": step.title,
            "creates": put(step.creates, word=False),
            "commands": [put(command, word=True) for command in step.commands],
        }
        for step in site.preparation
    ]
    return fill(
        "prepare.sh.j2",
        {
            "run": settings.name,
            "site": site.site,
            "modules": site.modules,
            "checkout": checkout if own_clone else None,
            "tokenizer": site.paths.get("tokenizer", ""),
            "package": str(package),
            "steps": steps,
        },
    )


def render_fleet(settings: Settings) -> str:
    """The commands for a rented cluster's machines, for the computer it is managed from; empty where there are none."""
    site = settings.site
    return fill("fleet.sh.j2", {"site": site.site, "commands": site.fleet}) if site.fleet else ""

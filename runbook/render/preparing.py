"""What is set up on the login node before the first job: one script that can be run again, and the image's recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from runbook.params import Settings
from runbook.render.deployment import deployment_files
from runbook.render.setup_steps import SetupStep, setup_steps
from runbook.render.templating import fill


def render_preparation(settings: Settings, package: Path) -> str:
    """All steps as one script, for a person; 01-environment runs the same steps one by one.

    It is no job: a job fetches no code from the internet.
    """
    return step_script(settings, setup_steps(settings, package))


def step_script(settings: Settings, steps: Sequence[SetupStep]) -> str:
    """These steps as a script."""
    values = {"run": settings.name, "site": settings.site.site, "bodies": [step.body for step in steps]}
    return fill("prepare.sh.j2", values)


def preparation_files(settings: Settings) -> Mapping[str, str]:
    """What lies beside their script: the Dockerfile of an image that is built, and what the cluster is made of."""
    recipe = settings.site.container.recipe
    image = {"Dockerfile": fill("Dockerfile.j2", {"recipe": recipe})} if recipe else {}
    return {**image, **deployment_files(settings)}


def render_fleet(settings: Settings) -> str:
    """The commands for a rented cluster's machines, for the computer it is managed from; empty where there are none."""
    site = settings.site
    return fill("fleet.sh.j2", {"site": site.site, "commands": site.fleet}) if site.fleet else ""

"""Set-up before the first job.

This module renders the set-up steps, the script for them, the Dockerfile for the image, and the
files used to deploy a cluster.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from runbook.core.errors import ParamsError
from runbook.jobs.messages import JobMessage
from runbook.jobs.render.quoting import quote, variable
from runbook.jobs.render.templating import fill
from runbook.params import Settings, is_reference
from runbook.params.schema.site import Preparation
from runbook.params.settings import STAGE
from runbook.planning.site_limits import TEBIBYTE, chosen_tier


@dataclass(frozen=True)
class SetupStep:
    """A step of the set-up, and the file or folder that exists once the step is done."""

    name: str
    """A short name, used in the names of files and done markers."""
    title: str
    creates: str
    """File or folder created by the step.

    Empty if the step only checks something and always runs.
    """
    body: str
    """Shell commands, which may use `say` and "$here", the script folder."""
    secret: str = ""


def setup_steps(settings: Settings, package: Path) -> list[SetupStep]:
    """Return the steps that prepare a job, in order.

    They check out the pinned commit, remove stale locks left by kernel builds, fetch the tokenizer
    files, and run the commands from the site file.
    """
    site = settings.site
    stage = settings.run.jobs.stage.rstrip("/")
    checkout = site.frameworks.get(settings.run.training.framework)
    steps = []
    if checkout is not None and stage and checkout.folder.startswith(f"{stage}/"):
        title = f"{checkout.repository} at {checkout.commit[:8]}"
        body = fill("setup/checkout.sh.j2", checkout=checkout)
        steps.append(SetupStep("checkout", title, f"{checkout.folder}/.git", body))
        body = fill("setup/kernels.sh.j2", folder=checkout.folder)
        steps.append(SetupStep("kernels", "no stale lock left by a compilation", "", body))

    tokenizer = site.paths.get("tokenizer", "")
    if tokenizer:
        body = fill("setup/tokenizer.sh.j2", tokenizer=tokenizer, package=str(package))
        steps.append(
            SetupStep("tokenizer", "GPT-2's vocabulary and merges", f"{tokenizer}/merges.txt", body)
        )

    return [*steps, *(_prepared(settings, step) for step in site.preparation)]


def _prepared(settings: Settings, step: Preparation) -> SetupStep:
    recipe = settings.site.container.recipe
    values = {
        STAGE: settings.run.jobs.stage.rstrip("/"),
        "{image}": settings.site.container.image,
        "{bucket}": settings.run.data.bucket.rstrip("/"),
        "{tag}": recipe.tag if recipe else "",
    }
    quoted_values = {name: quote(value) for name, value in values.items()}
    # The Dockerfile for the image is in the script folder
    folder = {"{recipe}": '"$here"'}
    modules = {"{modules}": " ".join(map(quote, settings.site.modules))}
    commands = [_put(command, quoted_values | folder | modules) for command in step.commands]
    creates = _put(step.creates, values | folder | {"{modules}": ""})
    secret = _secret(step.secret)
    body = fill(
        "setup/commands.sh.j2",
        title=step.title,
        creates=creates,
        commands=commands,
        secret=secret,
    )
    name = re.sub(r"[^a-z0-9]+", "-", step.title.lower()).strip("-")[:40].rstrip("-")
    return SetupStep(
        name,
        step.title,
        creates,
        body,
        step.secret,
    )


def _put(text: str, values: Mapping[str, str]) -> str:
    """Replace placeholders in a text from the site file with values from the run, in one pass.

    A placeholder within an inserted value is not replaced.
    """
    return re.sub("|".join(map(re.escape, values)), lambda match: values[match[0]], text)


def _secret(reference: str) -> str:
    """Return shell commands to read a secret when it is needed. They never print it."""
    if not reference:
        return ""
    if not is_reference(reference):
        raise ParamsError(JobMessage.PREPARATION_SECRET)

    kind, _, location = reference.partition(":")
    if kind == "env":
        return f"secret=${{{location}:?is not set: it holds the password for this step}}"
    return f"secret=$(<{quote(str(Path(location).expanduser()))})"


SETUP_FOLDER = "environment"
"""Folder, within a run folder, for the scripts that set up a site and for their logs."""
FLEET = "fleet.sh"
"""Script, run where a rented cluster is managed, that starts and stops its machines."""


def render_preparation(settings: Settings, package: Path) -> str:
    """Return all steps as one script for a person to run.

    The script is not a job, because jobs download no code. 01-environment runs the steps one by
    one.
    """
    return step_script(settings, setup_steps(settings, package))


def step_script(settings: Settings, steps: Sequence[SetupStep]) -> str:
    """Return a script to perform these steps."""
    bodies = [step.body for step in steps]
    return fill(
        "prepare.sh.j2",
        run=settings.name,
        site=settings.site.site,
        bodies=bodies,
    )


def preparation_files(settings: Settings) -> Mapping[str, str]:
    """Return the files written next to the script.

    They are the Dockerfile for the image and, for a rented cluster, files that describe its
    machines and how to deploy it.
    """
    site = settings.site
    files = {}
    recipe = site.container.recipe
    if recipe:
        files["Dockerfile"] = fill("Dockerfile.j2", recipe=recipe)
    if site.fleet:
        files[FLEET] = fill("fleet.sh.j2", site=site.site, fleet=site.fleet)
    head = f"# Site {site.site}, written by runbook from params/sites/{site.site}.yaml."
    values = dict(site.deployment)
    if values:
        _, tier = chosen_tier(site, settings.run.jobs.storage)
        if tier is not None:
            values |= {"AMLFS_SKU": tier.sku, "AMLFS_SIZE": f"{tier.size / TEBIBYTE:g}"}
        lines = [f"export {variable(name)}={quote(value)}\n" for name, value in values.items()]
        files["deployment.env"] = f"{head} Source it before the deployment.\n{''.join(lines)}"

    entries = []
    for volume in site.volumes.values():
        if volume.deployment:
            entries.append(volume.deployment)

    if entries:
        text = yaml.safe_dump({"SharedStorage": entries}, sort_keys=False)
        files["shared-storage.yaml"] = f"{head} Add it to the cluster's configuration.\n{text}"

    return files

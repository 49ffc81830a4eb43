"""What is set up before the first job, in steps: each is shell that finds what is there and leaves it alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runbook.errors import ParamsError
from runbook.params import Settings, is_reference
from runbook.params.catalogue import Checkout, Preparation
from runbook.params.stage import STAGE
from runbook.render.templating import fill, quote

BUCKET, IMAGE, RECIPE = "{bucket}", "{image}", "{recipe}"
"""What a site writes for data.bucket, for the container image of the run, and for the folder with its Dockerfile."""


@dataclass(frozen=True)
class SetupStep:
    """One step, and what is there when it is done."""

    name: str
    """A word for files and marks."""
    title: str
    creates: str
    """A file or folder; empty: the step only looks, and is done every time."""
    body: str
    """Shell that knows `say` and "$here", the folder that the script lies in."""
    secret: str = ""


def setup_steps(settings: Settings, package: Path) -> list[SetupStep]:
    """The pinned checkout, the kernels' stale locks, the tokenizer's files, then what the site's document sets up."""
    site, stage = settings.site, settings.run.jobs.stage.rstrip("/")
    checkout = site.frameworks.get(settings.run.training.framework)
    steps = []
    if checkout is not None and stage and checkout.folder.startswith(f"{stage}/"):
        steps += [_clone(checkout), _kernels(checkout)]
    if tokenizer := site.paths.get("tokenizer", ""):
        body = fill("setup/tokenizer.sh.j2", {"tokenizer": tokenizer, "package": str(package)})
        steps.append(SetupStep("tokenizer", "GPT-2's vocabulary and merges", f"{tokenizer}/merges.txt", body))
    return [*steps, *(_prepared(settings, step) for step in site.preparation)]


def _clone(checkout: Checkout) -> SetupStep:
    body = fill("setup/checkout.sh.j2", {"checkout": checkout})
    return SetupStep("checkout", f"{checkout.repository} at {checkout.commit[:8]}", f"{checkout.folder}/.git", body)


def _kernels(checkout: Checkout) -> SetupStep:
    body = fill("setup/kernels.sh.j2", {"folder": checkout.folder})
    return SetupStep("kernels", "no stale lock of a compilation", "", body)


def _prepared(settings: Settings, step: Preparation) -> SetupStep:
    values = _values(settings)
    body = fill(
        "setup/commands.sh.j2",
        {
            "title": step.title,
            "creates": _put(step.creates, values, word=False),
            "commands": [_put(command, values, word=True) for command in step.commands],
            "secret": _secret(step.secret),
        },
    )
    name = re.sub(r"[^a-z0-9]+", "-", step.title.lower()).strip("-")[:40].rstrip("-")
    return SetupStep(name, step.title, _put(step.creates, values, word=False), body, step.secret)


def _values(settings: Settings) -> Mapping[str, str]:
    recipe = settings.site.container.recipe
    return {
        STAGE: settings.run.jobs.stage.rstrip("/"),
        IMAGE: settings.site.container.image,
        BUCKET: settings.run.data.bucket.rstrip("/"),
        "{tag}": recipe.tag if recipe else "",
    }


def _put(text: str, values: Mapping[str, str], *, word: bool) -> str:
    """A site's text with the run's values in it, all at once: a value that holds another's name stays as it is."""
    known = {name: quote(value) if word else value for name, value in values.items()} | {RECIPE: '"$here"'}
    return re.sub("|".join(map(re.escape, known)), lambda found: known[found[0]], text)


def _secret(reference: str) -> str:
    """Shell that reads a secret where it is needed, and never shows it."""
    if not reference:
        return ""
    if not is_reference(reference):
        raise ParamsError("preparation.secret is no reference to a secret: write env:NAME or file:PATH.")
    kind, _, place = reference.partition(":")
    if kind == "env":
        return f"secret=${{{place}:?is not set: it holds the password for this step}}"
    return f"secret=$(<{quote(str(Path(place).expanduser()))})"

"""Compares the container image and mounts in a launch with those on the site."""

import re
from collections.abc import Sequence

from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.launches import option
from runbook.tools.adopt.script import Word, not_set


def take_srun_container(srun: Sequence[Word], findings: Findings) -> None:
    """Adopt the container that srun starts through its plugin pyxis."""
    image = option(srun, "container-image")
    if image:
        take_image(image, findings, "--container-image")
    for name in ("container-mounts", "container-env", "container-workdir", "container-name"):
        value = option(srun, name)
        if value:
            why = f"{findings.site_file} has the mounts; the run's folder is always mounted"
            findings.does(value.line, f"--{name} {value.shown[:60]}", why)


def take_singularity(singularity_words: Sequence[Word], findings: Findings) -> None:
    """Adopt the image given to `singularity exec`: a file, or a variable set by a site module."""
    for word in reversed(singularity_words):
        is_file = word.text.endswith((".sif", ".simg"))
        if is_file or word.shown.startswith("$"):
            variable = findings.site.container.variable
            if word.known:
                take_image(word, findings, "singularity exec")
            elif variable and variable in word.shown:
                findings.does(word.line, word.shown, f"{findings.site_file}: its module sets it")

            return


def take_image(image: Word, findings: Findings, source: str = "image") -> None:
    """Adopt an image if the queue can start it.

    A docker tag that exists on only one machine cannot be pulled.
    """
    name = image.shown
    site_image = findings.site.container.image
    on_stage = re.escape(site_image).replace(re.escape("{stage}"), "(?P<stage>/.+)")
    match = re.fullmatch(on_stage, name) if "{stage}" in site_image else None
    if match and not match["stage"].startswith("/GIVE_"):
        findings.take(
            "jobs.stage",
            match["stage"],
            image.line,
            f"the folder of {source}",
            over=False,
        )

    if match or name in (site_image, site_image.replace("{stage}", "$STAGE_PATH")):
        findings.does(image.line, f"{source} {name}", f"{findings.site_file} names it")
    elif not image.known:
        on_stage = Word(image.text.replace(not_set("STAGE_PATH"), "{stage}"), 0).shown
        why = "its value is known only while the script runs: set jobs.image"
        findings.leave(image.line, f"{source} {on_stage}", why)
    elif is_local_tag(name):
        remedy = "set jobs.image to registry#name:tag or a .sqsh"
        why = f"a docker tag of one machine, which other nodes cannot pull: {remedy}"
        findings.leave(image.line, f"{source} {name}", why)
    else:
        findings.take("jobs.image", name, image.line, source)


def is_local_tag(image: str) -> bool:
    """Return whether an image is a local docker tag, neither a file nor in a registry.

    >>> is_local_tag("pytorch:22.02-deepspeed"), is_local_tag("nvcr.io#nvidia/pytorch:25.03-py3")
    (True, False)
    """
    return "/" not in image and "#" not in image and not image.endswith((".sqsh", ".sif"))

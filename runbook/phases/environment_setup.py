"""Sets a machine up for a run, step by step: what is done is verified and not done twice."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from runbook import shell
from runbook.display import Progress
from runbook.errors import ParamsError, ProgramError
from runbook.params import Settings, resolve_secret
from runbook.params.catalogue import SchedulerKind
from runbook.params.stage import require
from runbook.phases import steps
from runbook.phases.campaign import Campaign
from runbook.records.files import write_text
from runbook.render import PACKAGE, SetupStep, preparation_files, setup_steps, step_script

VERSION = 1
LONGEST_SECONDS = 8 * 3600.0
"""Of one step: importing a 23 GiB image, or copying 702 GiB of token files, takes its time."""
FOLDER = "environment"
"""Where the scripts that were run lie, beside what they said."""


@dataclass(frozen=True)
class Done:
    """A step, and how it went this time."""

    title: str
    state: str
    """done, verified, found, or looked."""
    seconds: float
    creates: str


def set_up(settings: Settings, folder: Path) -> list[Done]:
    """Do what is missing, in order; `ProgramError` holds the last words of the step that failed, and its log's place.

    A step's mark holds its script's fingerprint: a changed script is run again, and finds what is there.
    """
    require(settings)
    todo = setup_steps(settings, PACKAGE)
    if settings.site.scheduler is SchedulerKind.LOCAL and not settings.site.preparation:
        todo = [step for step in todo if step.name != "tokenizer"]  # the package's own files are used in their place
    done = []
    with Progress("set-up", total=len(todo) or 1, unit="steps") as progress:
        for number, step in enumerate(todo, 1):
            done.append(_do(settings, folder, number, step))
            progress.update(done=number, step=step.title)
    return done


def without_secret(text: str, reference: str) -> str:
    """What a step said, should its programs have repeated the password it was given."""
    if not reference:
        return text
    try:
        return text.replace(resolve_secret(reference), "[secret]")
    except ParamsError:  # it is not there, so nobody can have said it
        return text


def set_up_campaign(campaign: Campaign) -> list[Done]:
    """The same for a run that is open, while nobody else works on it."""
    with campaign.hold("setting the machine up"):
        return set_up(campaign.settings, campaign.folder)


def _do(settings: Settings, folder: Path, number: int, step: SetupStep) -> Done:
    mark = f"01-environment--{step.name}"
    text = step_script(settings, [step])
    digest = steps.fingerprint(VERSION, {"script": text, "creates": step.creates})
    there = bool(step.creates) and (folder / step.creates).exists()
    old = steps.read_mark(folder, mark)
    if there and old is not None and old.fingerprint == digest and step.name != "checkout":
        return Done(step.title, "verified", 0.0, step.creates)
    place = folder / FOLDER
    for name, content in preparation_files(settings).items():
        write_text(place / name, content)
    script = place / f"{number}-{step.name}.sh"
    write_text(script, text)
    started = time.monotonic()
    finished = shell.run(["bash", str(script)], cwd=folder, timeout=LONGEST_SECONDS, check=False)
    seconds = time.monotonic() - started
    log = script.with_suffix(".log")
    write_text(log, without_secret(finished.out + finished.err, step.secret))
    log.chmod(0o600)  # what a log-in program says is nobody else's business
    if finished.exit_code:
        words = shell.last_lines(without_secret(finished.err or finished.out, step.secret))
        raise ProgramError(
            f"{step.title}: {shell.how_it_ended(finished.exit_code)}. Its last words:\n{words}\nAll of them: {log}. "
            f"After mending the cause run the cell again, or by hand: bash {script}"
        )
    if step.creates:
        steps.write_mark(folder, mark, VERSION, digest, [], creates=step.creates, seconds=round(seconds, 1))
    return Done(step.title, "found" if there else "done" if step.creates else "looked", seconds, step.creates)

"""A run opened for one phase: its parameters, plan, folder and record."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook import params
from runbook.display import show_checks, show_table, show_text
from runbook.errors import ParamsError, RecordError
from runbook.params import Settings
from runbook.params.schema import PHASES
from runbook.phases import calibrations, machine, steps, text
from runbook.phases.plan_file import difference, plan_file, write_plan_file
from runbook.plan import Check, Plan, make_plan
from runbook.records import session as sessions
from runbook.schedulers.lock import hold

HOLDER_VARIABLE = "RUNBOOK_HOLDER"
"""Set by `runbook run` for the notebooks it executes: it holds the run's lock for them."""
RUNS_VARIABLE = "RUNBOOK_RUNS"
"""Where run folders lie when not in runs/ beside params/ (`runbook run --runs DIR`)."""
VERSIONS = dict.fromkeys(PHASES, 1)
"""Raised for a phase when what it makes changes: its fingerprint changes with it, and it is done again."""


@dataclass
class Campaign:
    """What each step of a notebook is given."""

    settings: Settings
    phase: str
    folder: Path
    plan: Plan
    session: sessions.Session

    @property
    def spec(self) -> dict[str, Any]:
        """What the trainer is given for this phase."""
        spec: dict[str, Any] = self.plan.as_dict()["phases"][self.phase]
        return spec

    @contextmanager
    def hold(self, what: str) -> Iterator[None]:
        """Keep others from changing the run meanwhile; `runbook run` already holds it for its own notebooks."""
        with holding(self.folder, what):
            yield

    def check(self, checks: Sequence[Check]) -> None:
        """Show checks, keep them in the record, and stop where one failed."""
        for check in checks:
            self.session.check(check.name, check.verdict, check.value, check.rule)
        show_checks(checks)
        failed = [check for check in checks if check.verdict == "fail"]
        if failed:
            raise RecordError(
                f"{len(failed)} of {len(checks)} checks failed: "
                + "; ".join(f"{check.name}: {check.value} (rule: {check.rule})" for check in failed)
            )


def runs_folder(project: Path) -> Path:
    """Where run folders lie: $RUNBOOK_RUNS, else runs/ beside params/."""
    return Path(os.environ.get(RUNS_VARIABLE) or project / "runs").absolute()


@contextmanager
def holding(folder: Path, what: str) -> Iterator[None]:
    """Hold a run; nothing where `runbook run` holds it for this very notebook. A lock taken over is told."""
    if os.environ.get(HOLDER_VARIABLE) == str(folder):
        yield
        return
    with hold(folder, what) as taken_over:
        if taken_over:
            show_text(taken_over)
        yield


def bind(phase: str, namespace: Mapping[str, Any]) -> Campaign:
    """Check a notebook's parameters, compute the plan, open the record, and show what is bound.

    Stops before anything is written when a value is wrong, when values do not fit together, or when the run's folder
    was made with other parameters.
    """
    settings = params.bind(namespace)
    campaign = open_campaign(settings, phase)
    show_table(summary_rows(campaign), title=f"{phase}: what is bound")
    return campaign


def open_campaign(settings: Settings, phase: str) -> Campaign:
    """The run's folder with its run.yaml and plan.json, made where absent, refused where they differ.

    While somebody else works on the run it is refused too: opening a phase sets its newest record aside.
    """
    folder = runs_folder(settings.project) / settings.name
    plan = make_plan(settings, machine.measure(settings.site), calibrations.for_run(settings, folder))
    refuse_other_parameters(settings, folder)
    with holding(folder, f"opening {phase}"):
        write_plan_file(settings, plan, folder)
        session = sessions.start(settings, phase, folder)
    session.plan.update(plan_summary(plan, phase))
    return Campaign(settings, phase, folder, plan, session)


_GOES_ON = ("training.iterations", "training.samples", "training.tokens", "training.micro_batch", "parallel.")
"""Values of a training's length and cut: see `begun.py`."""


def refuse_other_parameters(settings: Settings, folder: Path) -> None:
    """Raise where the folder was made with other values, naming each of them."""
    changed = difference(folder, settings)
    if changed:
        goes_on = all(key.startswith(_GOES_ON) for key, _, _ in changed)
        raise ParamsError(
            f"{folder} was made with other values:\n"
            + "\n".join(f"  {key}: {old} there, {new} now" for key, old, new in changed)
            + f"\nTo keep both: runbook run {settings.run.run} --as NAME. To do it again with the new values, the old "
            f"results kept in its history: runbook run {settings.run.run} --redo 00-plan, with the same --set."
            + (" A training that only becomes longer or is cut otherwise goes on from its checkpoint." * goes_on)
        )


def summary_rows(campaign: Campaign) -> list[dict[str, Any]]:
    """The run in a few rows: what a person looks at before going on."""
    settings = campaign.settings
    model = settings.smoke_model if campaign.phase == "03-smoke-test" else settings.model
    name = settings.smoke_model_name if campaign.phase == "03-smoke-test" else settings.run.model
    rows = [
        ("run", settings.name, "run"),
        ("site", f"{settings.site.site}: {settings.site.title}", "site"),
        ("model", f'{name} ("{model.label}"): {model.layers} layers x {model.hidden}', "model"),
        ("data", _texts(settings), "data.blend" if settings.blend else "data.dataset"),
        ("engine", f"{settings.run.training.engine}, {settings.run.training.precision}", "training.engine"),
    ]
    origins = settings.parameters()
    return [
        {"what": what, "value": value, "from": origins.get(key, {}).get("origin", "built-in")}
        for what, value, key in rows
    ]


def _texts(settings: Settings) -> str:
    if not settings.blend:
        return f"{settings.run.data.dataset}: {settings.dataset.title}"
    whole = sum(text.weight for text in settings.blend)
    return ", ".join(f"{text.weight / whole:.1%} {text.name}" for text in settings.blend)


def plan_summary(plan: Plan, phase: str) -> dict[str, Any]:
    """What the plan promises for this phase, kept in the record beside what came true."""
    whole = plan.as_dict()
    spec = whole["phases"].get(phase)
    if spec is None:
        return {"parameters": whole["model"]["parameters"]}
    return {
        "parameters": spec["model"]["parameters"],
        "sequence_length": spec["model"]["sequence_length"],
        "world_size": spec["parallel"]["world_size"],
        "iterations": spec["duration"]["iterations"],
        "global_batch": spec["batch"]["global"],
        **{key: value for key, value in whole["time"].get(phase, {}).items() if key != "parts"},
    }


def phase_fingerprint(settings: Settings, plan: Plan, folder: Path, phase: str) -> str:
    """What a phase depends on: change it and the phase is done again, change anything else and it is not."""
    specs = plan.as_dict()["phases"]
    inputs: dict[str, Any]
    if phase == "00-plan":
        inputs = {"plan": plan_file(settings, plan)}
    elif phase == "01-environment":
        site = settings.site.model_dump(mode="json")
        if not site["hardware"]["network"]:  # newer than runs that were done without it
            del site["hardware"]["network"]
        inputs = {"site": site, "engine": settings.run.training.engine}
    elif phase == "02-data":
        inputs = {
            "data": {key: value for key, value in settings.subset(["data"]).items() if key != "data.blend" or value},
            "dataset": settings.dataset.model_dump(mode="json"),
            "vocabulary": settings.model.vocabulary,
            "text": text.identity(settings, folder),
        }
        if settings.blend:  # a run of one text was fingerprinted before there were several
            inputs["texts"] = {one.name: one.dataset.model_dump(mode="json") for one in settings.texts}
    elif phase in ("03-smoke-test", "04-training"):
        inputs = {"spec": what_counts(specs[phase]), "data": made(folder, "02-data--tokenize")}
    else:
        inputs = {earlier: made(folder, f"{earlier}--train") for earlier in ("03-smoke-test", "04-training")}
    return steps.fingerprint(VERSIONS[phase], inputs)


def what_counts(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What the trainer is given, less what changes neither losses nor speed: places, intervals of saving, limits."""
    return {key: value for key, value in spec.items() if key not in ("log", "checkpoint", "limits", "fingerprint")}


def made(folder: Path, step: str) -> Any:
    """Checksums of what an earlier step made, or None where it is not done.

    A manifest is left out: it also says when and how fast, and the same tokens made again are the same.
    """
    mark = steps.read_mark(folder, step)
    return [one.sha256 for one in mark.outputs if not one.path.endswith(".manifest.json")] if mark else None

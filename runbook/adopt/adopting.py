"""From the text of a job script to a run file: what is taken, what is left over, which known errors it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runbook.adopt import deepspeed_json, hydra, knobs, options, queue, shape, surroundings
from runbook.adopt.errors_found import errors_in
from runbook.adopt.filling import fill
from runbook.adopt.findings import Findings, Found, Left, Taken
from runbook.adopt.guess import Call, calls_of, framework_of, run_of_knobs, run_of_signs, site_of
from runbook.adopt.launches import Launch, launches_of
from runbook.adopt.marks import Word
from runbook.adopt.script import Script, options_of, read_script
from runbook.adopt.writing import run_file
from runbook.errors import ParamsError
from runbook.params import Settings, load, site_names
from runbook.params.catalogue import Launcher, Model, Site
from runbook.params.catalogues import read_models, read_site
from runbook.params.schema import Framework


@dataclass(frozen=True)
class Adopted:
    """Everything that is told of a script."""

    name: str
    text: str
    """The run file."""
    site: str
    framework: str
    base: str
    """The run whose script is called, and whose values fill in what is not said; empty where the script is whole."""
    taken: tuple[Taken, ...]
    left: tuple[Left, ...]
    own: tuple[Left, ...]
    errors: tuple[Found, ...]
    required: Mapping[str, str]
    places: Mapping[int, str]
    """How a line of the script is named: `line 12`, or `payload.sh:12` where there are several files."""


def adopt(files: Sequence[tuple[str, str]], name: str, project: Path) -> Adopted:
    """Read scripts (name and text of each, in the order in which they run) as one; nothing of them is run."""
    text, places = _joined(files)
    script = read_script(text)
    launches = launches_of(script.commands)
    calls = calls_of(script)
    framework = framework_of(script, launches)
    base = _base(script, launches, calls)
    if not (launches or base):
        raise ParamsError(
            f"{files[0][0]} starts no training, and sets no variable that the five documents' scripts read. Give the "
            "script that is submitted (and, after it, the one it starts), or the block of exports before it."
        )
    catalogue = read_models(project)
    models = {name: catalogue.get(name) for name in catalogue.names}
    settings = _base_settings(base, script, launches, calls, project)
    site = settings.site if settings else _site(script, framework, project)
    findings = Findings()
    if settings:
        framework = str(settings.run.training.framework)
        _take_base(settings, findings, base)
    kind = _take_all(script, launches, calls, findings, site, models)
    if launches and framework != "nemo":
        shape.take_shape(models, kind, findings, site.site)
    elif not launches:
        shape.take_shape(models, {}, findings, site.site)
    findings.take("site", site.site, 0, site.title)
    findings.take("training.framework", framework, 0, "the training program that is started", over=False)
    _fit_framework(findings, site, framework)
    fill(findings, framework, site, models, from_options=bool(launches) and not settings)
    findings.take("model", "375m", 0, "the script names neither a model nor its shape", over=False)
    launcher = Launcher(findings.value("jobs.launcher", str(site.launcher)))
    queue.drop_defaults(findings, site, launcher in (Launcher.TORCHRUN, Launcher.DEEPSPEED))
    options.covered_by(site.frameworks.get(Framework(framework)), findings, framework, site.site)
    required = {key: what for key, what in site.required.items() if not findings.value(key)}
    errors = errors_in(script, launches, calls, findings, site, models)
    return Adopted(
        name=name,
        text=run_file(name, files[0][0], findings.taken, required, places),
        site=site.site,
        framework=framework,
        base=base if settings else "",
        taken=tuple(findings.taken.values()),
        left=tuple(sorted(findings.left, key=lambda one: one.line)),
        own=tuple(sorted(findings.own, key=lambda one: one.line)),
        errors=tuple(errors),
        required=required,
        places=places,
    )


def _joined(files: Sequence[tuple[str, str]]) -> tuple[str, dict[int, str]]:
    """All texts as one, and the name of each of its lines."""
    lines: list[str] = []
    places = {0: "line 0"}
    for file, text in files:
        for number, line in enumerate(text.splitlines() or [""], 1):
            lines.append(line)
            places[len(lines)] = f"{file}:{number}" if len(files) > 1 else f"line {number}"
    last = places[len(lines)]
    return "\n".join(lines) + "\n", _Places(places, last)


class _Places(dict[int, str]):
    """Names of lines; a line after the last is called as the last."""

    def __init__(self, places: Mapping[int, str], last: str) -> None:
        super().__init__(places)
        self.last = last

    def __missing__(self, line: int) -> str:
        return self.last


def _base(script: Script, launches: Sequence[Launch], calls: Sequence[Call]) -> str:
    """The run that fills in what a block of exports leaves to a document's script; of NeMo, to its own file."""
    if calls and not launches:
        return calls[-1].run
    if any("megatron_gpt_pretraining" in launch.script.text or hydra.size_of(launch.arguments) for launch in launches):
        return "aws-pile-175b"
    if any(len(launch.arguments) > 3 for launch in launches):
        return ""
    return run_of_knobs(script) or run_of_signs(script)


def _base_settings(
    base: str, script: Script, launches: Sequence[Launch], calls: Sequence[Call], project: Path
) -> Settings | None:
    """The run file that a document's script became; of NeMo the size that is asked for, else its script's own."""
    if not base:
        return None
    size = next((found.text for launch in launches if (found := hydra.size_of(launch.arguments))), "")
    if base == "aws-pile-175b" and not size:
        value = script.value("MODEL_SIZE")
        called = [call.script for call in calls]
        size = (
            value.text.lower() if value else "5b" if any("-v2." in one for one in called) else "126m" if called else ""
        )
    variant = f":{size}" if size in ("126m", "5b", "20b", "40b") else ""
    return load(f"{base}{variant}", project=project)


def _take_base(settings: Settings, findings: Findings, base: str) -> None:
    for key, chain in settings.origins.items():
        if chain[-1].layer in ("run file", "variant") and key not in ("run", "site"):
            findings.take(key, settings.value(key), 0, f"params/{base}.yaml, which that script became")


def _site(script: Script, framework: str, project: Path) -> Site:
    names = [name for name in site_names(project) if name != "local"]
    site, _ = read_site(site_of(script, names), project)
    return site


def _take_all(
    script: Script,
    launches: Sequence[Launch],
    calls: Sequence[Call],
    findings: Findings,
    site: Site,
    models: Mapping[str, Model],
) -> dict[str, Any]:
    """Everything that the script says, surroundings last; returns the kind of model."""
    kind: dict[str, Any] = {}
    queue.take_directives(script.directives, findings, site)
    for call in calls[-1:]:
        _take_call(call, findings, site)
    if launches:
        launch = launches[-1]
        nemo = any("=" in word.text and not word.text.startswith("-") for word in launch.arguments)
        if nemo:
            hydra.take_overrides(launch.arguments, findings)
            _take_size(launch, findings)
        else:
            kind = options.take_options(launch.arguments, findings)
        surroundings.take_launch(launch, findings, site)
        settled = {name: word for name, word in launch.command.values.items() if name in _BESIDE_OPTIONS}
        knobs.take_knobs(settled, findings, site, models, over=False)
    else:
        values = {one.name: Word(one.value, one.line) for one in script.settings}
        if calls:
            command = calls[-1].command
            values = {**command.values, **command.environment}
        knobs.take_knobs(values, findings, site, models, over=True)
        _leave_unknown(script, values, findings)
    deepspeed_json.take_documents(script.followed.heredocs, findings)
    surroundings.take_variables(script, findings, site)
    surroundings.take_modules(script, findings, site)
    return kind


_BESIDE_OPTIONS = {
    "STAGE_PATH", "FSX_MOUNT", "SHARED_FS", "home_dir", "CHUNKS", "USE_SHARP", "MODEL_SIZE", "DATASET_FOLDER_NAME",
    "IMAGE", "DATA_PATH",
}  # fmt: skip
"""Knobs that say something beside the training's options."""


def _take_size(launch: Launch, findings: Findings) -> None:
    size = hydra.size_of(launch.arguments)
    if size and (model := hydra.model_of(size.text)):
        findings.take("model", model, size.line, f"NeMo's {size.text}")
    elif size:
        findings.leave(size.line, f"NeMo's size {size.shown}", "params/models.yaml has no such model: write an entry")


def _take_call(call: Call, findings: Findings, site: Site) -> None:
    """Options of sbatch or qsub before the script's name."""
    words = [word.text for word in call.command.words]
    program = words[0].rpartition("/")[2]
    if program in ("sbatch", "qsub"):
        kind = "slurm" if program == "sbatch" else "pbs"
        given = options_of(kind, [word for word in words[1:] if word != call.script], call.command.line)
        queue.take_directives(given, findings, site)


def _leave_unknown(script: Script, values: Mapping[str, Word], findings: Findings) -> None:
    """Exports that no document's script reads."""
    known = knobs.knob_names()
    for one in script.settings:
        if one.exported and one.name in values and one.name not in known and not surroundings.is_of_a_job(one.name):
            findings.leave(one.line, f"{one.name}={Word(one.value, 0).shown}", "no document's script reads it")


def _fit_framework(findings: Findings, site: Site, framework: str) -> None:
    if Framework(framework) not in site.frameworks:
        findings.leave(
            0,
            f"framework {framework}",
            f"params/sites/{site.site}.yaml has no checkout of it: write one under frameworks",
        )
        findings.take("training.framework", "runbook", 0, f"the site has no {framework}: our own trainer")
        findings.drop("parallel.sequence", "training.offload")

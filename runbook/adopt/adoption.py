"""Adoption: from someone's job script to a run file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from runbook.adopt import configurations, defaults, directives, job_environment, options
from runbook.adopt.findings import CarriedValue, Findings, KnownError
from runbook.adopt.known_errors import Evidence, errors_in
from runbook.adopt.launches import (
    DocumentCall,
    Launch,
    document_calls,
    framework_of,
    launches_of,
    option,
    run_of_knobs,
    run_of_signs,
    site_of,
)
from runbook.adopt.sandbox.script import Script, Word, options_of
from runbook.adopt.sandbox.trace import follow
from runbook.core.errors import ParamsError
from runbook.core.units import show_clock
from runbook.params import Settings, load, site_names
from runbook.params.catalogues import read_models, read_site
from runbook.params.schema.keys import all_keys
from runbook.params.schema.value_types import Framework
from runbook.params.yaml12 import nest, write_tree


@dataclass(frozen=True)
class Adoption:
    """A script's run file, and everything that is reported of the script."""

    name: str
    text: str
    """The run file."""
    framework: str
    base: str
    """The run whose script is called, and whose values fill in what is missing; empty where the script is whole."""
    script: Script
    findings: Findings
    errors: Sequence[KnownError]
    required: Mapping[str, str]


def adopt(
    files: Sequence[tuple[str, str]], name: str, project: Path, beside: Mapping[str, str] | None = None
) -> Adoption:
    """Run the first script in a sandbox, with the others and the files `beside` it at hand; read what it started."""
    script = follow(files, beside or {}, lambda commands: bool(launches_of(commands) or document_calls(commands)))
    launches, calls = launches_of(script.commands), document_calls(script.commands)
    base = _base(script, launches, calls)
    if not (launches or base):
        raise ParamsError(
            f"{files[0][0]} starts no training, and sets no variable that the five documents' scripts read. Give the "
            "script that is submitted (and, after it, the one it starts), or the block of exports before it."
        )
    catalogue = read_models(project)
    settings = _base_settings(base, script, launches, calls, project) if base else None
    sites = [site for site in site_names(project) if site != "local"]
    site = settings.site if settings else read_site(site_of(script, sites), project)[0]
    models = {model: catalogue.get(model) for model in catalogue.names}
    findings = Findings(site)
    evidence = Evidence(script, launches, calls, findings, models)
    framework = _fill_findings(evidence, settings, base)
    required = {key: meaning for key, meaning in site.required.items() if not findings.value(key)}
    for remarks in (findings.leftovers, findings.automatic):
        remarks.sort(key=attrgetter("line"))
    text = _run_file(name, files[0][0], findings.carried, required, script.places)
    return Adoption(name, text, framework, base, script, findings, errors_in(evidence), required)


def _base(script: Script, launches: Sequence[Launch], calls: Sequence[DocumentCall]) -> str:
    """The run that fills in what a block of exports leaves to a document's script; of NeMo, to its own file."""
    if calls and not launches:
        return calls[-1].run
    for launch in launches:
        if "megatron_gpt_pretraining" in launch.script.text or configurations.size_of(launch.arguments):
            return "aws-pile-175b"
    if any(len(launch.arguments) > 3 for launch in launches):
        return ""
    return run_of_knobs(script) or run_of_signs(script)


def _base_settings(
    base: str, script: Script, launches: Sequence[Launch], calls: Sequence[DocumentCall], project: Path
) -> Settings:
    """The run file that a document's script became; of NeMo the size that is asked for, else its script's own."""
    words = (configurations.size_of(launch.arguments) for launch in launches)
    size = next((word.text for word in words if word), "")
    if base == "aws-pile-175b" and not size:
        if value := script.value("MODEL_SIZE"):
            size = value.text.lower()
        elif calls:
            size = "5b" if any("-v2." in call.script for call in calls) else "126m"
    return load(f"{base}:{size}" if size in ("126m", "5b", "20b", "40b") else base, project=project)


def _fill_findings(evidence: Evidence, settings: Settings | None, base: str) -> str:
    """Everything that the run file needs, from the script, its base and the program's defaults; the framework."""
    launches, findings, site = evidence.launches, evidence.findings, evidence.findings.site
    framework = framework_of(launches)
    if settings:
        framework = str(settings.run.training.framework)
        for key, chain in settings.origins.items():
            if chain[-1].layer in ("run file", "variant") and key not in ("run", "site"):
                findings.take(key, settings.value(key), 0, f"params/{base}.yaml, which that script became")
    kind = _take_script(evidence, framework)
    if not launches or framework != "nemo":
        defaults.take_shape(evidence.models, kind, findings)
    findings.take("site", site.site, 0, site.title)
    findings.take("training.framework", framework, 0, "the training program that is started", over=False)
    if Framework(framework) not in site.frameworks:
        remedy = f"{findings.site_file} has no checkout of it: write one under frameworks"
        findings.leave(0, f"framework {framework}", remedy)
        findings.take("training.framework", "runbook", 0, f"the site has no {framework}: our own trainer")
        findings.drop("parallel.sequence", "training.offload")
    defaults.fill(findings, framework, from_options=bool(launches) and not settings)
    if "model" not in findings.carried:
        findings.leave(0, "the model", "the script names neither one nor its shape: 375m stands in for it; set model")
        findings.take("model", "375m", 0, "stands in: the script names neither a model nor its shape")
    directives.drop_ssh(findings)
    launcher = findings.value("jobs.launcher", site.launcher)
    directives.drop_defaults(findings, launcher in ("torchrun", "deepspeed"))
    return framework


def _take_script(evidence: Evidence, framework: str) -> options.ModelKind:
    """Everything that the script says, the job's environment last; returns the kind of model."""
    script, findings, models = evidence.script, evidence.findings, evidence.models
    kind: options.ModelKind = {}
    directives.take_directives(script.directives, findings)
    for call in evidence.calls[-1:]:  # options of sbatch or qsub before the script's name
        if queue := {"sbatch": "slurm", "qsub": "pbs"}.get(call.command.name):
            words = [word.text for word in call.command.words[1:] if word.text != call.script]
            directives.take_directives(options_of(queue, words, call.command.line), findings)
    if evidence.launches:
        launch = evidence.launches[-1]
        if any("=" in word.text and not word.text.startswith("-") for word in launch.arguments):  # NeMo
            configurations.take_overrides(launch.arguments, findings)
            size = configurations.size_of(launch.arguments)
            if size and size.text in configurations.MODELS:
                findings.take("model", configurations.MODELS[size.text], size.line, f"NeMo's {size.text}")
            elif size:
                remedy = "params/models.yaml has no such model: write an entry"
                findings.leave(size.line, f"NeMo's size {size.shown}", remedy)
        else:
            kind = options.take_options(launch.arguments, findings, framework)
        _take_kind(launch, findings)
        job_environment.take_launch(script, launch, findings)
        values = {name: word for name, word in launch.command.environment.items() if name in _BESIDE_OPTIONS}
        job_environment.take_knobs(values, findings, models, over=False)
    else:
        values = {setting.name: Word(setting.value, setting.line) for setting in script.settings}
        if evidence.calls:
            values = dict(evidence.calls[-1].command.environment)
        job_environment.take_knobs(values, findings, models, over=True)
        job_environment.leave_unknown(script, values, findings)
    configurations.take_documents(script, findings)
    job_environment.take_variables(script, findings)
    job_environment.take_modules(script, findings)
    return kind


_OTHER_MODELS = re.compile(r"(bert|t5|ict|vit|vision|mamba|retro|mimo|vlm|multimodal|dino|sft)\w*\.py$", re.IGNORECASE)


def _take_kind(launch: Launch, findings: Findings) -> None:
    """Say where a script trains something that no run file describes; one bare python is one device."""
    if _OTHER_MODELS.search(launch.script.text):
        name = launch.script.shown.rpartition("/")[2]
        findings.leave(launch.script.line, name, "trains another kind of model; the run file is a GPT of these numbers")
    for word, name, _ in options.pairs(launch.arguments):
        if name in ("num-experts", "hybrid-override-pattern", "multi-latent-attention", "is-hybrid-model"):
            findings.leave(word.line, f"--{name}", "the run file is the dense GPT: our models have no such layers")
    if launch.programs == ["python"] or (
        launch.programs == ["torchrun"] and not option(launch.part("torchrun"), "nproc-per-node")
    ):
        why = f"{launch.programs[0]} starts one process unless something else is given"
        findings.take("jobs.training.devices_per_node", 1, launch.line, why, over=False)
        findings.take("jobs.training.nodes", 1, launch.line, why, over=False)


_BESIDE_OPTIONS = {
    "STAGE_PATH", "FSX_MOUNT", "SHARED_FS", "home_dir", "CHUNKS", "USE_SHARP", "MODEL_SIZE", "DATASET_FOLDER_NAME",
    "IMAGE", "DATA_PATH",
}  # fmt: skip
"""Knobs that say something in addition to the training's options."""


def _run_file(
    name: str, script: str, carried: Mapping[str, CarriedValue], required: Mapping[str, str], places: Mapping[int, str]
) -> str:
    """The text of a run file; `places` says how a line of the script is named."""
    head = "".join(f"#   {key}: {_comment(meaning)}\n" for key, meaning in required.items())
    if head:
        head = f"# Still to be given, here or by --set:\n{head}"
    head += f"run: {name}  # from {_comment(script)}; values name the lines they come from\n"

    def source(key: str, _: object) -> str:
        value = carried[key]
        return f"  # {_comment((f'{places[value.line]}: ' if value.line else '') + value.source)}"

    values = {key: carried[key].value for key in all_keys() if key in carried and key != "run"}
    for key, value in values.items():
        if key.endswith(("walltime", "exit_duration")) and isinstance(value, int) and value:
            values[key] = show_clock(value)
    text = write_tree(nest(values), remark=source)
    return head + re.sub(r"(?m)^(?=\w+:$)", "\n", text)  # an empty line before each section


def _comment(text: str) -> str:
    letters = "".join(letter if letter.isprintable() else " " for letter in text)
    return letters if len(letters) <= 110 else f"{letters[:107]}..."

"""Adoption: from someone's job script to a run file; what the script leaves open comes from its program's defaults."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from runbook.core.errors import ParamsError
from runbook.core.units import show_clock
from runbook.jobs.directives import options_of
from runbook.params import Settings, load, site_names
from runbook.params.catalogues import read_models, read_site
from runbook.params.schema.entries import Model
from runbook.params.schema.keys import all_keys
from runbook.params.schema.run_file import SHAPE_FIELDS
from runbook.params.yaml12 import nest, write_tree
from runbook.tools.adopt import job_environment, options
from runbook.tools.adopt.findings import CarriedValue, Findings, KnownError
from runbook.tools.adopt.known_errors import Evidence, errors_in
from runbook.tools.adopt.launches import (
    DocumentCall,
    Launch,
    calls_of,
    framework_of,
    launches_of,
    option,
    run_of,
    site_of,
)
from runbook.tools.adopt.script import Script, Word
from runbook.tools.adopt.trace import follow


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
    files: Sequence[tuple[str, str]],
    name: str,
    project: Path,
    beside: Mapping[str, str] | None = None,
) -> Adoption:
    """Run the first script in a sandbox, with the others and the files `beside` it at hand; read what it started."""
    script = follow(
        files, beside or {}, lambda commands: bool(launches_of(commands) or calls_of(commands))
    )
    launches = launches_of(script.commands)
    calls = calls_of(script.commands)
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
        if "megatron_gpt_pretraining" in launch.script.text or options.size_of(launch.arguments):
            return "aws-pile-175b"
    if any(len(launch.arguments) > 3 for launch in launches):
        return ""
    return run_of(script)


def _base_settings(
    base: str,
    script: Script,
    launches: Sequence[Launch],
    calls: Sequence[DocumentCall],
    project: Path,
) -> Settings:
    """The run file that a document's script became; of NeMo the size that is asked for, else its script's own."""
    words = (options.size_of(launch.arguments) for launch in launches)
    size = next((word.text for word in words if word), "")
    if base == "aws-pile-175b" and not size:
        if value := script.value("MODEL_SIZE"):
            size = value.text.lower()
        elif calls:
            size = "5b" if any("-v2." in call.script for call in calls) else "126m"
    return load(f"{base}:{size}" if size in ("126m", "5b", "20b", "40b") else base, project=project)


def _fill_findings(evidence: Evidence, settings: Settings | None, base: str) -> str:
    """Everything that the run file needs, from the script, its base and the program's defaults; the framework."""
    launches = evidence.launches
    findings = evidence.findings
    site = evidence.findings.site
    framework = framework_of(launches)
    if settings:
        framework = settings.run.training.framework
        for key, chain in settings.origins.items():
            if chain[-1].layer in ("run file", "variant") and key not in ("run", "site"):
                findings.take(
                    key, settings.value(key), 0, f"params/{base}.yaml, which that script became"
                )
    kind = _take_script(evidence, framework)
    if not launches or framework != "nemo":
        _take_shape(evidence.models, kind, findings)
    findings.take("site", site.site, 0, site.title)
    findings.take(
        "training.framework", framework, 0, "the training program that is started", over=False
    )
    if framework not in site.frameworks:
        remedy = f"{findings.site_file} has no checkout of it: write one under frameworks"
        findings.leave(0, f"framework {framework}", remedy)
        findings.take(
            "training.framework", "runbook", 0, f"the site has no {framework}: our own trainer"
        )
        findings.drop("parallel.sequence", "training.offload")
    _fill(findings, framework, from_options=bool(launches) and not settings)
    if "model" not in findings.carried:
        findings.leave(
            0,
            "the model",
            "the script names neither one nor its shape: 375m stands in for it; set model",
        )
        findings.take(
            "model", "375m", 0, "stands in: the script names neither a model nor its shape"
        )
    job_environment.drop_ssh(findings)
    launcher = findings.value("jobs.launcher", site.launcher)
    job_environment.drop_defaults(findings, launcher in ("torchrun", "deepspeed"))
    return framework


def _take_script(evidence: Evidence, framework: str) -> options.ModelKind:
    """Everything that the script says, the job's environment last; returns the kind of model."""
    script = evidence.script
    findings = evidence.findings
    models = evidence.models
    kind: options.ModelKind = {}
    job_environment.take_directives(script.directives, findings)
    for call in evidence.calls[-1:]:  # options of sbatch or qsub before the script's name
        if queue := {"sbatch": "slurm", "qsub": "pbs"}.get(call.command.name):
            words = [word.text for word in call.command.words[1:] if word.text != call.script]
            job_environment.take_directives(options_of(queue, words, call.command.line), findings)
    if evidence.launches:
        launch = evidence.launches[-1]
        if any(
            "=" in word.text and not word.text.startswith("-") for word in launch.arguments
        ):  # NeMo
            options.take_overrides(launch.arguments, findings)
            size = options.size_of(launch.arguments)
            if size and size.text in options.MODELS:
                findings.take("model", options.MODELS[size.text], size.line, f"NeMo's {size.text}")
            elif size:
                remedy = "params/models.yaml has no such model: write an entry"
                findings.leave(size.line, f"NeMo's size {size.shown}", remedy)
        else:
            kind = options.take_options(launch.arguments, findings, framework)
        _take_kind(launch, findings)
        job_environment.take_launch(script, launch, findings)
        values = {
            name: word
            for name, word in launch.command.environment.items()
            if name in _BESIDE_OPTIONS
        }
        job_environment.take_knobs(values, findings, models, over=False)
    else:
        values = {setting.name: Word(setting.value, setting.line) for setting in script.settings}
        if evidence.calls:
            values = dict(evidence.calls[-1].command.environment)
        job_environment.take_knobs(values, findings, models, over=True)
        job_environment.leave_unknown(script, values, findings)
    options.take_documents(script, findings)
    job_environment.take_variables(script, findings)
    job_environment.take_modules(script, findings)
    return kind


_OTHER_MODELS = re.compile(
    r"(bert|t5|ict|vit|vision|mamba|retro|mimo|vlm|multimodal|dino|sft)\w*\.py$", re.IGNORECASE
)


def _take_kind(launch: Launch, findings: Findings) -> None:
    """Say where a script trains something that no run file describes; one bare python is one device."""
    if _OTHER_MODELS.search(launch.script.text):
        name = launch.script.shown.rpartition("/")[2]
        findings.leave(
            launch.script.line,
            name,
            "trains another kind of model; the run file is a GPT of these numbers",
        )
    for word, name, _ in options.pairs(launch.arguments):
        if name in (
            "num-experts",
            "hybrid-override-pattern",
            "multi-latent-attention",
            "is-hybrid-model",
        ):
            findings.leave(
                word.line,
                f"--{name}",
                "the run file is the dense GPT: our models have no such layers",
            )
    if launch.programs == ["python"] or (
        launch.programs == ["torchrun"] and not option(launch.part("torchrun"), "nproc-per-node")
    ):
        why = f"{launch.programs[0]} starts one process unless something else is given"
        findings.take("jobs.training.devices_per_node", 1, launch.command.line, why, over=False)
        findings.take("jobs.training.nodes", 1, launch.command.line, why, over=False)


_BESIDE_OPTIONS = {
    "STAGE_PATH",
    "FSX_MOUNT",
    "SHARED_FS",
    "home_dir",
    "CHUNKS",
    "USE_SHARP",
    "MODEL_SIZE",
    "DATASET_FOLDER_NAME",
    "IMAGE",
    "DATA_PATH",
}
"""Knobs that say something in addition to the training's options."""


def _run_file(
    name: str,
    script: str,
    carried: Mapping[str, CarriedValue],
    required: Mapping[str, str],
    places: Mapping[int, str],
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


MEGATRON_DEFAULTS: dict[str, Any] = {
    "training.schedule": "linear",
    "training.min_learning_rate": 0.0,
    "training.adam_beta2": 0.999,
    "training.weight_decay": 0.01,
    "training.clip_gradient": 1.0,
    "training.dropout": 0.1,
    "training.init_std": 0.02,
    "training.log_interval": 100,
    "training.eval_interval": 1000,
    "training.eval_iterations": 100,
    "training.save_interval": 0,
    "training.seed": 1234,
    "data.split": "969,30,1",
}
"""What Megatron's own parser takes where an option is missing (both pinned versions), where that is not ours."""


def _fill(findings: Findings, framework: str, *, from_options: bool) -> None:
    """Give every value that the run needs; what was found in the script stays."""
    if from_options and framework != "nemo":
        for key, value in MEGATRON_DEFAULTS.items():
            findings.take(
                key, value, 0, "the program's own default; the script does not say", over=False
            )
        _precision(findings)
        if framework == "megatron-lm":
            findings.take("parallel.zero_stage", 0, 0, "no --use-distributed-optimizer", over=False)
    if "data.dataset" not in findings.carried:
        findings.leave(
            0,
            "the text",
            "the script names none: the small shipped corpus is taken; set data.dataset",
        )
    _length(findings)
    if findings.value("data.split", "").endswith(",0,0") and not findings.value("data.held_out"):
        line = findings.carried["data.split"].line
        findings.take(
            "training.eval_interval", 0, line, "the split leaves nothing to validate with"
        )
        findings.does(
            line,
            "--eval-interval, --eval-iters",
            "no evaluation: the split leaves nothing to validate with",
        )
    _nodes(findings)
    _batch(findings)
    if findings.value("parallel.sequence") and findings.number("parallel.tensor", 1) == 1:
        line = findings.carried["parallel.sequence"].line
        findings.does(
            line,
            "sequence parallelism with one tensor rank",
            "the program switches it off; so do we",
        )
        findings.take("parallel.sequence", False, line, "one tensor rank")
    if findings.value("training.offload") is False:
        findings.drop("training.offload")


def _precision(findings: Findings) -> None:
    findings.take("training.precision", "fp32", 0, "neither --fp16 nor --bf16", over=False)
    scale = findings.carried.get("training.static_loss_scale")
    if findings.value("training.precision") == "fp16":
        source = "the program's own 2^32 skips the first 16 steps"
        findings.take("training.initial_loss_scale", 65536.0, 0, source, over=False)
    elif scale:
        findings.does(scale.line, f"{scale.source} {scale.value:g}", "only fp16 has a loss scale")
        findings.drop("training.static_loss_scale")


def _length(findings: Findings) -> None:
    """Of the lengths exactly one: the document's own, tokens before samples before iterations."""
    for name, prefix in (("length", ""), ("warmup", "warmup_"), ("decay", "decay_")):
        units = [
            f"training.{prefix}{unit}" for unit in ("tokens", "samples", "iterations", "fraction")
        ]
        there = [findings.carried[key] for key in units if key in findings.carried]
        given = [length for length in there if length.value]
        for second in given[1:]:
            value = second.value if prefix else f"{second.value:,}"
            why = f"a second {name}; {given[0].key} says how long"
            findings.leave(second.line, f"{second.source} {value}", why)
            findings.drop(second.key)
        if prefix:
            findings.drop(*(length.key for length in there if not length.value))
        elif not given:
            findings.take("training.iterations", 1000, 0, "the script does not say how long")


def _nodes(findings: Findings) -> None:
    """Nodes of the site's size, as many as the layout fills where the script leaves them to sbatch or qsub."""
    taken = findings.carried.get("jobs.training.devices_per_node")
    own = findings.site.hardware.devices_per_node
    if (
        taken
        and own
        and isinstance(taken.value, int)
        and taken.value > own
        and taken.value % own == 0
    ):
        nodes = findings.number("jobs.training.nodes", 1) * (taken.value // own)
        source = f"nodes of {taken.value} devices; the site's have {own}"
        findings.take("jobs.training.nodes", nodes, taken.line, source)
        findings.drop("jobs.training.devices_per_node")
    devices = findings.devices_per_node
    context = findings.number("parallel.context", 1)
    group = findings.model_parallel * max(1, context)
    nodes = next(count for count in range(1, group + 1) if count * devices % group == 0)
    why = f"not in the script: the fewest nodes of {devices} devices that {group} divides"
    findings.take("jobs.training.nodes", nodes, 0, why, over=False)
    if findings.value("parallel.context") == 0:  # Ulysses over all devices
        all_devices = findings.number("jobs.training.nodes", 1) * devices
        findings.take(
            "parallel.context", all_devices, findings.carried["parallel.context"].line, "SP_TYPE=ds"
        )


def _batch(findings: Findings) -> None:
    """The global batch where only the micro-batch, or GAS, is given: micro x copies x GAS."""
    steps = findings.number("gas", 1)
    gas = findings.carried.get("gas")
    batch_given = findings.carried.get("training.global_batch")
    findings.drop("gas")
    if batch_given and (batch_given.line or not gas):
        return
    world = findings.number("jobs.training.nodes", 1) * findings.devices_per_node
    copies = max(
        1, world // (findings.model_parallel * max(1, findings.number("parallel.context", 1)))
    )
    micro = findings.number("training.micro_batch", 1)
    source = f"{micro} micro x {copies} copies x {steps} steps"
    findings.take("training.global_batch", micro * copies * steps, gas.line if gas else 0, source)


_KINDS = {
    "activation": "gelu",
    "tied_embeddings": True,
    "biases": True,
    "position_embedding": "learned",
    "normalization": "layernorm",
    "qkv_biases": False,
    "norm_epsilon": 1e-5,
    "rope_base": 10_000,
}


def _take_shape(
    models: Mapping[str, Model], kind: Mapping[str, str | float], findings: Findings
) -> None:
    """Set `model`, with `training.shape` only where the catalogue has no such model."""
    wanted = {name: findings.number(f"training.shape.{name}") for name in SHAPE_FIELDS}
    if not all(wanted[name] for name in ("layers", "hidden", "heads")):
        if model := models.get(
            str(findings.value("model", ""))
        ):  # it is named, and some of its shape is given too
            same = [
                name
                for name in SHAPE_FIELDS
                if wanted[name] and wanted[name] == getattr(model, name)
            ]
            findings.drop(*(f"training.shape.{name}" for name in same))
        return
    line = findings.carried["training.shape.layers"].line
    of_kind = {
        name: model
        for name, model in models.items()
        if all(
            getattr(model, field) == kind.get(field, default) for field, default in _KINDS.items()
        )
    }
    name = _best(of_kind or models, wanted, findings)
    model = models[name]
    findings.take(
        "model",
        name,
        line,
        f"{wanted['layers']} layers x {wanted['hidden']}, {wanted['heads']} heads",
    )
    for field, given in wanted.items():
        own = getattr(model, field)
        if given in (0, own) or (own == 0 and given == _implied(model, wanted, field)):
            findings.drop(f"training.shape.{field}")
    if findings.value("training.sequence_length") == model.sequence_length:
        findings.drop("training.sequence_length")
    if not of_kind:
        text = ", ".join(f"{key}={value}" for key, value in kind.items())
        findings.leave(line, text, "params/models.yaml has no such kind of model: write an entry")


def _implied(model: Model, wanted: Mapping[str, int], field: str) -> int:
    implied = {
        "ffn_hidden": 4 * wanted["hidden"],
        "kv_heads": wanted["heads"],
        "positions": model.sequence_length,
    }
    return implied.get(field, 0)


def _best(models: Mapping[str, Model], wanted: Mapping[str, int], findings: Findings) -> str:
    sequence = findings.number("training.sequence_length")

    def distance(name: str) -> tuple[float, ...]:
        model = models[name]
        core = sum(
            getattr(model, field) != wanted[field] for field in ("layers", "hidden", "heads")
        )
        weight = wanted["layers"] * wanted["hidden"] ** 2
        other = abs(model.layers * model.hidden**2 / weight - 1) if core else 0
        rest = sum(
            wanted[field] not in (0, getattr(model, field), _implied(model, wanted, field))
            for field in ("kv_heads", "ffn_hidden", "positions")
        )
        length = model.vocabulary != 50257, sequence not in (0, model.sequence_length)
        return (core > 0, other, core, rest, *length, findings.site.site not in model.source)

    return min(models, key=distance)

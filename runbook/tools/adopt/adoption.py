"""Turns a job script into a run file.

Values that the script does not set come from the program defaults.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn

from runbook.core.errors import ParamsError
from runbook.core.units import show_clock
from runbook.jobs.script_directives import options_of
from runbook.params import Settings, load, site_names
from runbook.params.catalogues import read_models, read_site
from runbook.params.schema.entries import Model
from runbook.params.schema.keys import all_keys
from runbook.params.schema.site import Site
from runbook.params.yaml12 import nest, write_tree
from runbook.tokens.tokenizer import GPT2_VOCABULARY
from runbook.tools.adopt import (
    job_environment,
    launcher_options,
    program_arguments,
    queue_directives,
)
from runbook.tools.adopt.findings import CarriedValue, Findings, KnownError
from runbook.tools.adopt.known_errors import Evidence, errors_in
from runbook.tools.adopt.launches import (
    SITE_SIGNS,
    DocumentCall,
    Launch,
    calls_of,
    different_launches,
    foreign_trainings,
    framework_of,
    launches_of,
    option,
    other_programs,
    run_of,
    site_of,
)
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.model_shape import (
    is_other_kind,
    take_nemo_model,
    take_shape,
    take_uneven_stages,
)
from runbook.tools.adopt.nemo_files import with_configuration_files
from runbook.tools.adopt.other_programs import imported_frameworks
from runbook.tools.adopt.sandbox import own_code
from runbook.tools.adopt.sandbox_trace import WRITTEN_JOB, follow
from runbook.tools.adopt.script import Script, StartedProgram, Word


@dataclass(frozen=True)
class Adoption:
    """The run file for a script, and everything reported about the script."""

    name: str
    text: str
    """The run file, as text."""
    framework: str
    base: str
    """The run whose script the job calls. That run supplies the values that the script lacks.

    Empty if the script is complete.
    """
    script: Script
    findings: Findings
    errors: Sequence[KnownError]
    required: Mapping[str, str]
    launches: Sequence[Launch] = ()
    """Every training run started by the script, without repetitions."""
    source: str = ""
    """What people call the job: the script name."""
    launch: Launch | None = None
    """The launch that became the run file, or None if only the variables of a document's script
    were read.
    """


def adopt(
    files: Sequence[tuple[str, str]],
    name: str,
    project: Path,
    beside: Mapping[str, str] | None = None,
    launch_number: int = 0,
) -> Adoption:
    """Run the first script in a sandbox and read which programs it started.

    The first script can use the other scripts and the files in `beside`. If it starts multiple
    training runs, the run file describes the last one, or the one with the number `launch_number`
    (from 1). Raise `ParamsError` if the script neither starts a training run that adopt can read
    nor sets a variable that a script from a document reads.
    """
    script = follow(files, beside or {}, _starts_training)
    texts = {**(beside or {}), **dict(files[1:])}
    script = replace(script, imported=imported_frameworks(texts))
    script = with_configuration_files(script, texts)
    return adopt_script(script, files[0][0], name, project, launch_number)


def adopt_script(
    script: Script,
    file_name: str,
    name: str,
    project: Path,
    launch_number: int = 0,
) -> Adoption:
    """Turn a record of the programs in a job into a run file; messages call the job `file_name`."""
    calls = calls_of(script.commands)
    all_launches = different_launches(launches_of(script.commands))
    if not all_launches and not calls:
        _refuse_foreign(script, file_name)
    launches = _chosen(all_launches, launch_number, file_name)
    base = _base(script, launches, calls)
    if not launches and not base:
        _refuse_without_launch(script, file_name)
    if launches:
        _refuse_without_training(launches[-1], script, file_name)
    settings = None
    if base:
        settings = _base_settings(base, script, launches, calls, project)
        site = settings.site
    else:
        site = _site_of(script, project)
    catalogue = read_models(project)
    models = {model: catalogue.get(model) for model in catalogue.names}
    findings = Findings(site)
    evidence = Evidence(script, launches, calls, findings, models)
    framework = _fill_findings(evidence, settings, base)
    required = required_keys(findings)
    findings.leftovers.sort(key=attrgetter("line"))
    findings.automatic.sort(key=attrgetter("line"))
    text = _run_file(name, file_name, findings.carried, required, script.places)
    return Adoption(
        name,
        text,
        framework,
        base,
        script,
        findings,
        errors_in(evidence),
        required,
        all_launches,
        file_name,
        _last(launches),
    )


def _last(launches: Sequence[Launch]) -> Launch | None:
    """Return the last launch, or None if nothing was launched."""
    for launch in reversed(launches):
        return launch
    return None


def _refuse_without_launch(script: Script, file_name: str) -> NoReturn:
    """Raise `ParamsError` with the programs that a script starts instead of training."""
    programs = other_programs(script.commands)
    line = script.first_line(_AN_OPTION)
    if line and not script.first_line(_A_START):
        raise ParamsError(
            AdoptMessage.OPTIONS_ALONE,
            file_name=file_name,
            line=line,
            notes=_sentences(script.notes),
        )
    starts = ""
    if programs:
        starts = (
            f" It starts {', '.join(programs[:3])}, which does not train anything, judging by its "
            "name."
        )
    raise ParamsError(
        AdoptMessage.NO_TRAINING_STARTED,
        file_name=file_name,
        starts=starts,
        notes=_sentences(script.notes),
    )


_AN_OPTION = r"^[^#]*--(num-layers|hidden-size|tensor-model-parallel-size)\b"
"""Matches an option used only for training."""
_A_START = r"^[^#]*(\.py\b|\b(torchrun|deepspeed|python3?|srun|mpirun|mpiexec|accelerate)\b)"
"""Matches a line that may start a program."""


def _sentences(notes: Sequence[str]) -> str:
    """Return notes on how the script ran in the sandbox: sentences, each preceded by a space."""
    return "".join(f" {note}." for note in notes)


def required_keys(findings: Findings) -> dict[str, str]:
    """Return the values that a person must still supply, by key.

    These are the values that the site requires and the source does not set.
    """
    required = findings.site.required.items()
    missing = {key: meaning for key, meaning in required if not findings.value(key)}
    return missing | findings.questions


def rewritten(adopted: Adoption) -> Adoption:
    """Return the adoption, with its run file text made again from the current findings."""
    required = required_keys(adopted.findings)
    carried = adopted.findings.carried
    places = adopted.script.places
    text = _run_file(adopted.name, adopted.source, carried, required, places)
    return replace(adopted, text=text, required=required)


def _chosen(launches: Sequence[Launch], number: int, file_name: str) -> list[Launch]:
    """Return the launches up to the one described by the run file."""
    if number > len(launches) or number < 0:
        raise ParamsError(
            AdoptMessage.LAUNCH_OUT_OF_RANGE,
            number=number,
            file_name=file_name,
            number_of_launches=len(launches),
        )
    if number:
        return list(launches[:number])
    return list(launches)


def _refuse_foreign(script: Script, file_name: str) -> None:
    """Raise `ParamsError` if the job trains with a program whose scripts adopt cannot read."""
    trainings = foreign_trainings(script.commands)
    if not trainings:
        return
    last = trainings[-1]
    program = last.script.text.rpartition("/")[2]
    whose = last.framework or script.imported.get(program, "")
    does = "trains with"
    if not whose:
        does = "starts"
        whose = "a program that adopt does not know"
    config = _config_of(script, whose)
    if whose in _RECIPES and not last.framework:
        config = AdoptMessage.CONFIGURATION_READABLE.fill(files=program)
    raise ParamsError(
        AdoptMessage.NOT_A_GPT,
        file_name=file_name,
        does=does,
        whose=whose,
        place=script.places[last.script.line],
        shown=last.script.shown,
        config=config,
    )


_EVALUATES = ("skip-train", "inference", "eval-only", "ckpt-convert-save")
"""Options that make the training program only evaluate, or only convert a checkpoint."""
_LENGTHS = ("train-iters", "train-samples", "train-tokens")


def _refuse_without_training(launch: Launch, script: Script, file_name: str) -> None:
    """Raise `ParamsError` if a training program is started only to evaluate, or for zero steps."""
    names = {name: word for word, name, _ in program_arguments.pairs(launch.arguments)}
    evaluates = [name for name in _EVALUATES if name in names]
    lengths = [option(launch.arguments, name) for name in _LENGTHS]
    given_lengths = [length for length in lengths if length]
    if evaluates:
        word = names[evaluates[0]]
    elif given_lengths and all(length.text == "0" for length in given_lengths):
        if _is_zero_without_arguments(script):
            return
        word = given_lengths[0]
    else:
        return
    where = script.places[word.line]
    raise ParamsError(
        AdoptMessage.EVALUATION_STARTED,
        file_name=file_name,
        script=launch.script.shown,
        place=where,
        word=word.shown,
    )


_READS_ARGUMENTS = re.compile(r"\bgetopts\b|\$\{?(?:[1-9@*]|#\})")
"""Matches the ways that a script reads its own arguments."""
_STEPS = re.compile(r"--train[-_](?:iters|samples|tokens)[ =]+[\"']?(?:(0)\b|\$\{?([A-Za-z_]\w*))")
"""Matches an option for the training length whose value is 0 or a variable."""


def _is_zero_without_arguments(script: Script) -> bool:
    """Return whether the training length may be 0 only because arguments or files are missing.

    A script that itself sets the length to 0 only evaluates. If a script writes and submits a job,
    the length comes from that job.
    """
    own_lines: list[str] = []
    for number, line in enumerate(script.text.splitlines(), 1):
        is_comment = line.lstrip().startswith("#")
        if not is_comment and not script.places[number].startswith(WRITTEN_JOB):
            own_lines.append(line)
    own_text = "\n".join(own_lines)
    lengths = _STEPS.findall(own_text)
    if any(zero or _is_always_zero(name, own_text) for zero, name in lengths):
        return False
    if _READS_ARGUMENTS.search(own_code(own_text)):
        return True
    return any(_is_computed(name, own_text) for _, name in lengths)


def _is_computed(name: str, text: str) -> bool:
    """Return whether a script computes a variable from others, which may be set elsewhere."""
    return re.search(rf"(?<![\w$-]){name}=[\"']?\$\(\([^)]*[A-Za-z_]", text) is not None


def _is_always_zero(name: str, text: str) -> bool:
    """Return whether a script sets a variable only to 0, if at all."""
    assigned = re.findall(rf"(?<![\w$-]){name}=(\S*)", text)
    zeros = ("0", f"${{{name}:-0}}", f"${{{name}-0}}")
    return bool(assigned) and all(value.strip("\"';)") in zeros for value in assigned)


_RECIPES = ("a recipe of NeMo 2", "Megatron Bridge")
"""Frameworks whose configurations are Python programs."""
_READ_AS_CONFIG = ("torchtitan", "nanotron", "GPT-NeoX", *_RECIPES)
"""Programs whose configuration files adopt reads, but not their job scripts."""


def _config_of(script: Script, framework: str) -> str:
    """Return advice on how to adopt a configuration file for another framework.

    Return '' if adopt cannot read configurations for this framework.
    """
    if framework not in _READ_AS_CONFIG:
        return ""
    files: dict[str, bool] = {}
    for command in script.commands:
        folder = ""
        for before, word in pairwise(command.words):
            if before.text in ("-d", "--conf_dir"):  # The folder with configurations for deepy.py
                folder = f"{word.text.rstrip('/')}/"
            elif word.text.endswith((".toml", ".yaml", ".yml")):
                file = Word(folder + word.text.rpartition("=")[2], 0)
                files[file.shown] = word.known
    known_files = [name for name, is_known in files.items() if is_known]
    names = " ".join(known_files or files) or _registry_of(script) or "CONFIG"
    return AdoptMessage.CONFIGURATION_READABLE.fill(files=names)


def _registry_of(script: Script) -> str:
    """Return the Python configuration file named by a torchtitan command, and the function in it.

    `--module llama3 --config llama3_8b` is a function in
    torchtitan/models/llama3/config_registry.py.
    """
    given: dict[str, str] = {}
    for command in script.commands:
        for _, name, values in program_arguments.pairs(command.words):
            if name in ("module", "config") and values and values[0].known:
                given[name] = values[0].text
    if len(given) < 2:
        return ""
    module = given["module"].removeprefix("torchtitan.").removeprefix("models.").replace(".", "/")
    folder = module if module.startswith("experiments/") else f"models/{module}"
    return f"torchtitan/{folder}/config_registry.py, where --launch N chooses {given['config']}"


def _starts_training(commands: Sequence[StartedProgram]) -> bool:
    """Return whether any of these commands trains, or starts a script from a document."""
    return bool(launches_of(commands) or calls_of(commands) or foreign_trainings(commands))


def _site_of(script: Script, project: Path) -> Site:
    """Return the site that the script was written for. The site is never the local machine."""
    names = [name for name in site_names(project) if name != "local"]
    queues = {}
    for name in names:
        if name not in SITE_SIGNS:
            queues[name] = read_site(name, project)[0].queues
    return read_site(site_of(script, names, queues), project)[0]


def _base(script: Script, launches: Sequence[Launch], calls: Sequence[DocumentCall]) -> str:
    """Return the run used to supply the values that a script takes from another file.

    The result is empty if the script is complete. The other file may be a script from a document
    reproduced by the runbook, or a file that comes with NeMo.
    """
    if calls and not launches:
        return calls[-1].run
    for launch in launches:
        if "megatron_gpt_pretraining" in launch.script.text or program_arguments.size_of(
            launch.arguments
        ):
            return _NEMO_RUN
    if any(len(launch.arguments) > 3 for launch in launches):
        return ""
    return run_of(script)


_NEMO_RUN = "aws-pile-175b"
"""The run with one variant for each model size that NeMo ships files for."""


def _base_settings(
    base: str,
    script: Script,
    launches: Sequence[Launch],
    calls: Sequence[DocumentCall],
    project: Path,
) -> Settings:
    """Load the run file that corresponds to a script from a document.

    For NeMo, load the requested model size, or else the size set in the script from NeMo.
    """
    size = _size_of_launches(launches)
    if base == _NEMO_RUN and not size:
        variable = script.value("MODEL_SIZE")
        if variable:
            size = variable.text.lower()
        elif calls:
            is_second_version = any("-v2." in call.script for call in calls)
            size = "5b" if is_second_version else "126m"
    name = base
    if size in ("126m", "5b", "20b", "40b"):
        name = f"{base}:{size}"
    return load(name, project=project)


def _size_of_launches(launches: Sequence[Launch]) -> str:
    """Return the size selected by the first launch with a file that comes with NeMo.

    The result is empty if no launch does.
    """
    for launch in launches:
        size = program_arguments.size_of(launch.arguments)
        if size:
            return size.text
    return ""


def _fill_findings(evidence: Evidence, settings: Settings | None, base: str) -> str:
    """Find every value for the run file, and return the framework.

    Values come from the script, its base and the program defaults.
    """
    launches = evidence.launches
    findings = evidence.findings
    site = evidence.findings.site
    framework = framework_of(launches)
    own_file = _own_file(launches)
    if own_file in evidence.script.absent_configurations:
        findings.absent_file = own_file
    elif framework != "nemo" and evidence.script.absent_configurations:
        findings.absent_file = ", ".join(evidence.script.absent_configurations)
    if settings:
        framework = settings.run.training.framework
        has_own_model = bool(own_file) and _gives_sizes(launches[-1].arguments)
        _take_base(settings, base, findings, has_own_model=has_own_model)
    kind = _take_script(evidence, framework)
    take_uneven_stages(framework, findings)
    if not launches or framework != "nemo":
        take_shape(evidence.models, kind, findings)
    else:
        take_nemo_model(evidence, kind)
    findings.take("site", site.site, 0, site.title)
    _take_framework(framework, findings)
    if framework == "nemo" and is_other_kind(kind, findings):
        train_with_own_trainer(findings, "its command here describes only models like GPT-3")
    _fill(findings, framework, from_options=bool(launches) and not settings)
    if "model" not in findings.carried:
        unknown = "the script names neither a model nor its shape"
        findings.leave(0, "the model", f"{unknown}: 375m is a placeholder, so set model")
        findings.take("model", "375m", 0, "placeholder: neither a model nor its shape is named")
        _leave_model_unknown(unknown, launches, findings)
    _settle_tokenizer(evidence.models, findings)
    launcher_options.drop_ssh(findings)
    launcher = findings.value("jobs.launcher", site.launcher)
    queue_directives.drop_defaults(findings, launcher in ("torchrun", "deepspeed"))
    return framework


def _own_file(launches: Sequence[Launch]) -> str:
    """Return the configuration file used in the last NeMo launch.

    The result is empty if the launch names no file, or one that comes with NeMo.
    """
    launch = _last(launches)
    file = option(launch.arguments, "config-name", "cn") if launch else None
    if launch is None or file is None:
        return ""
    size = program_arguments.size_of(launch.arguments)
    if size and size.text in program_arguments.MODELS:
        return ""
    return file.shown


def _gives_sizes(arguments: Sequence[Word]) -> bool:
    """Return whether overrides for NeMo set the layers, width and heads of the model."""
    names = {word.text.partition("=")[0].lstrip("+~") for word in arguments}
    names = {name.removeprefix("training.") for name in names}
    return names >= {"model.num_layers", "model.hidden_size", "model.num_attention_heads"}


def _leave_model_unknown(why: str, launches: Sequence[Launch], findings: Findings) -> None:
    """Ask for the model if nothing in the source identifies it.

    The question names the files among the program arguments that may identify the model.
    """
    findings.unknown_model = why
    launch = _last(launches)
    if launch and _files_given(launch.arguments):
        files = ", ".join(_files_given(launch.arguments))
        findings.unknown_model += AdoptMessage.FILE_MAY_SAY_IT.fill(files=files)
    findings.ask("model", findings.unknown_model)


_CONFIGURATION = re.compile(r".+\.(ya?ml|toml|json|ini|cfg)")
_OTHER_FILES = re.compile(r"(deepspeed|ds)-config|vocab-file|merge-file|tokenizer-.*|.*data.*-path")
"""Options whose files do not identify the model."""


def _files_given(arguments: Sequence[Word]) -> list[str]:
    """Return text to list the configuration files among the program arguments."""
    files: dict[str, None] = {}
    for word, name, values in program_arguments.pairs(arguments):
        if _OTHER_FILES.fullmatch(name):
            continue
        candidates = values
        if not name:  # This argument does not belong to any option.
            candidates = [word]
        for value in candidates:
            if _CONFIGURATION.fullmatch(value.text):
                files[value.shown] = None
    return list(files)


def complete_from_config(
    findings: Findings, models: Mapping[str, Model], kind: program_arguments.ModelKind
) -> None:
    """Set every value that a run needs if it was adopted from another program's configuration."""
    take_shape(models, kind, findings)
    findings.take("site", findings.site.site, 0, findings.site.title)
    _fill(findings, "runbook", from_options=False)
    if "model" not in findings.carried:
        findings.ask("model", "the configuration names neither a model nor its shape")
        findings.unknown_model = findings.questions["model"]
        findings.take("model", "375m", 0, "placeholder: neither a model nor its shape is named")
    _settle_tokenizer(models, findings)


def _settle_tokenizer(models: Mapping[str, Model], findings: Findings) -> None:
    """Ask for the tokenizer file unless it is for GPT-2 or has a full path."""
    if findings.tokenizer_kind == "GPT2BPETokenizer":
        findings.drop("data.tokenizer")
        findings.questions.pop("data.tokenizer", None)
        return
    model = models.get(str(findings.value("model")))
    has_own_vocabulary = model is not None and model.vocabulary != GPT2_VOCABULARY
    if "data.tokenizer" not in findings.carried and (has_own_vocabulary or findings.tokenizer_kind):
        findings.ask_for_tokenizer("", 0, findings.tokenizer_kind or "the model's vocabulary")
    is_nemo = findings.value("training.framework") == "nemo"
    if is_nemo and findings.number("parallel.context", 1) > 1:
        train_with_own_trainer(findings, AdoptMessage.NO_CONTEXT_RANKS.fill())
    if "data.tokenizer" in findings.carried:
        train_with_own_trainer(findings, "its command here supports only GPT-2's tokenizer")


def train_with_own_trainer(findings: Findings, why: str) -> None:
    """Switch to our own trainer if a framework cannot train as the source requests."""
    framework = findings.value("training.framework", "runbook")
    if framework == "runbook":
        return
    line = findings.carried["training.framework"].line
    findings.leave(line, f"framework {framework}", f"{why}, so our own trainer is used")
    findings.take("training.framework", "runbook", line, f"not {framework}: {why}")
    zero_stage = findings.carried.get("parallel.zero_stage")
    if zero_stage and zero_stage.value > 1:
        source = (
            f"stage {zero_stage.value} exists only in DeepSpeed: megatron-core shards optimizer "
            "states"
        )
        findings.take("parallel.zero_stage", 1, zero_stage.line, source)
    leave_offload(findings)
    leave_options_of_megatron_lm(findings)


_OF_OUR_TRAINER = {
    "training.reduce_in_bf16": "our trainer sums gradients in 32 bits",
    "training.loss_fusion": "our trainer has its own loss, which overwrites the logits",
}
"""For each key whose option only Megatron-LM has: what our trainer does instead."""


def leave_options_of_megatron_lm(findings: Findings) -> None:
    """Drop the options that only Megatron-LM has."""
    for key, why in _OF_OUR_TRAINER.items():
        carried = findings.carried.get(key)
        if carried:
            findings.leave(carried.line, carried.source, why)
            findings.drop(key)
        if carried and carried.source == program_arguments.FUSION_IMPLEMENTATION:
            findings.leave(carried.line, program_arguments.FUSION, why)


def leave_offload(findings: Findings) -> None:
    """Drop offloading if the trainer does not support it."""
    carried = findings.carried.get("training.offload")
    if carried:
        why = "our offload is DeepSpeed's, for the states that ZeRO 1 to 3 shard"
        findings.leave(carried.line, carried.source, why)
        findings.drop("training.offload")


def _take_base(settings: Settings, base: str, findings: Findings, *, has_own_model: bool) -> None:
    """Adopt every value set in the run file of the base.

    If the script brings its own configuration file and model, layout and optimizer are not taken
    from the base.
    """
    source = f"params/{base}.yaml, which was derived from that script"
    for key, chain in settings.origins.items():
        if chain[-1].layer not in ("run file", "variant") or key in ("run", "site"):
            continue
        if has_own_model and key.startswith(_SAID_BY_FILE) and not key.startswith(_SAID_BY_SITE):
            continue
        findings.take(key, settings.value(key), 0, source)


_SAID_BY_FILE = ("parallel.", "training.")
_SAID_BY_SITE = (
    "training.framework",
    "training.smoke.",
    "training.log_",
    "training.eval_",
    "training.save_",
    "training.keep_",
)
"""Keys in a base that do not affect what a different model learns."""


def _take_framework(framework: str, findings: Findings) -> None:
    """Set the framework, or our own trainer if the site has no framework checkout."""
    site = findings.site
    source = "the training program that is started"
    findings.take("training.framework", framework, 0, source, over=False)
    if framework not in site.frameworks:
        remedy = f"{findings.site_file} has no checkout of it; add one under frameworks"
        findings.leave(0, f"framework {framework}", remedy)
        source = f"the site has no {framework}: our own trainer"
        findings.take("training.framework", "runbook", 0, source)
        findings.drop("parallel.sequence", "training.offload")
        leave_options_of_megatron_lm(findings)


def _take_script(evidence: Evidence, framework: str) -> program_arguments.ModelKind:
    """Adopt every setting in the script, with the job environment last.

    Return the kind of model.
    """
    script = evidence.script
    findings = evidence.findings
    kind: program_arguments.ModelKind = {}
    queue_directives.take_directives(script.directives, findings)
    _take_allocations(script, findings)
    if evidence.calls:
        _take_submission(evidence.calls[-1], findings)
    if evidence.launches:
        kind = _take_last_launch(evidence, framework)
    else:
        _take_exports(evidence)
    program_arguments.take_documents(script, findings)
    names_document = evidence.launches and option(
        evidence.launches[-1].arguments, "deepspeed-config"
    )
    findings.has_absent_document = bool(names_document) and not program_arguments.documents_of(
        script.commands
    )
    job_environment.take_variables(script, findings)
    job_environment.take_modules(script, findings)
    return kind


def _take_allocations(script: Script, findings: Findings) -> None:
    """Adopt the options given to the `salloc` command that the script runs in."""
    for command in script.commands:
        if command.name == "salloc":
            own_words = [word.text for word in command.words[1 : 1 + command.own]]
            queue_directives.take_directives(options_of("slurm", own_words, command.line), findings)


def _take_submission(call: DocumentCall, findings: Findings) -> None:
    """Adopt the options that precede the script name on the sbatch or qsub line."""
    queue = {"sbatch": "slurm", "qsub": "pbs", "bsub": "lsf"}.get(call.command.name)
    if queue:
        queue_words = [word.text for word in call.command.words[1:] if word.text != call.script]
        queue_directives.take_directives(
            options_of(queue, queue_words, call.command.line), findings
        )


def _take_last_launch(evidence: Evidence, framework: str) -> program_arguments.ModelKind:
    """Adopt the settings in the last launch.

    These are options for the program and its launcher, and environment variables used to tune both.
    """
    launch = evidence.launches[-1]
    findings = evidence.findings
    kind: program_arguments.ModelKind = {}
    if framework == "nemo":
        kind = _take_nemo(launch, findings)
    else:
        kind = program_arguments.take_options(launch.arguments, findings, framework)
    _note_unset_arguments(launch, evidence.script, findings)
    _take_kind(launch, findings)
    launcher_options.take_launch(evidence.script, launch, findings)
    environment = launch.command.environment
    knobs = {name: word for name, word in environment.items() if name in _BESIDE_OPTIONS}
    if "training.shape.layers" in findings.carried:  # The options identify the model.
        knobs.pop("MODEL_SIZE", None)
    job_environment.take_knobs(knobs, findings, evidence.models, over=False)
    return kind


_LOGIN_FILES = re.compile(r"(^|/)(activate|\.?bashrc|\.?\w*profile|modules?\.sh|conda\.sh)$")
"""Files that scripts source to set up programs and folders, not to set training options."""


def _note_unset_arguments(launch: Launch, script: Script, findings: Findings) -> None:
    """Record variables that occur among the training arguments but are set nowhere.

    They may be set in a missing file that the script sources.
    """
    variables = program_arguments.unset_arguments(launch.arguments)
    if not variables:
        return
    sourced: dict[str, None] = {}
    for command in script.commands:
        if command.kind == "unknown" and command.name == "source" and len(command.words) > 1:
            file = command.words[1].shown
            if not _LOGIN_FILES.search(file):
                sourced[file] = None
    files = ""
    if sourced:
        files = AdoptMessage.UNSET_BECAUSE_OF_FILES.fill(files=", ".join(sourced))
    findings.unset_arguments = AdoptMessage.UNSET_ARGUMENTS.fill(
        variables=", ".join(variables), files=files
    )


def _take_nemo(launch: Launch, findings: Findings) -> program_arguments.ModelKind:
    """Adopt the overrides for NeMo, and the model from the NeMo file selected by the launch.

    Return the kind of model.
    """
    kind = program_arguments.take_overrides(launch.arguments, findings)
    size = program_arguments.size_of(launch.arguments)
    if size and size.text in program_arguments.MODELS:
        findings.take(
            "model", program_arguments.MODELS[size.text], size.line, f"NeMo's {size.text}"
        )
    elif size:
        remedy = "params/models.yaml has no such model: write an entry"
        findings.leave(size.line, f"NeMo's size {size.shown}", remedy)
    return kind


def _take_exports(evidence: Evidence) -> None:
    """Adopt the tuning variables in a script that does not start training itself.

    If the script calls a script from a document, the variables are passed on to it.
    """
    script = evidence.script
    if evidence.calls:
        values = dict(evidence.calls[-1].command.environment)
    else:
        values = {}
        for setting in script.settings:
            values[setting.name] = Word(setting.value, setting.line)
    job_environment.take_knobs(values, evidence.findings, evidence.models, over=True)
    job_environment.leave_unknown(script, values, evidence.findings)


_OTHER_MODELS = re.compile(r"mamba\w*\.py$", re.IGNORECASE)


def _take_kind(launch: Launch, findings: Findings) -> None:
    """Report a model type that no run file can describe.

    If the launch starts a single process, set one node with one device.
    """
    script = launch.script
    if _OTHER_MODELS.search(script.text):
        name = script.shown.rpartition("/")[2]
        findings.trains_another_model(script.line, name, "Mamba layers")
    if _starts_one_process(launch, findings):
        why = f"{launch.programs[0]} starts one process by default"
        findings.take("jobs.training.devices_per_node", 1, launch.command.line, why, over=False)
        findings.take("jobs.training.nodes", 1, launch.command.line, why, over=False)


def _starts_one_process(launch: Launch, findings: Findings) -> bool:
    """Return whether a launch starts one process.

    A launch using plain `python`, or `torchrun` without a process count, starts one process.
    """
    if findings.model_parallel > 1:  # Another command must start the other ranks
        return False
    if framework_of([launch]) == "nemo":  # trainer.devices sets how many processes there are.
        return False
    if launch.programs == ["torchrun"]:
        return not option(launch.part("torchrun"), "nproc-per-node")
    return launch.programs == ["python"]


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
"""Environment variables that change the training, as options do."""


def _run_file(
    name: str,
    script: str,
    carried: Mapping[str, CarriedValue],
    required: Mapping[str, str],
    places: Mapping[int, str],
) -> str:
    """Return the text for a run file; `places` gives the file and line for each script line."""

    def source(key: str, _: object) -> str:
        value = carried[key]
        text = value.source
        if value.line:
            text = f"{places[value.line]}: {text}"
        return f"  # {_comment(text)}"

    head = ""
    if required:
        head = "# Still needed, here or with --set:\n"
    for key, meaning in required.items():
        head += f"#   {key}: {_comment(meaning)}\n"
    head += (
        f"run: {name}  # from {_comment(script)}; the comments name the lines that values come "
        "from\n"
    )
    values = {key: carried[key].value for key in all_keys() if key in carried and key != "run"}
    for key, value in values.items():
        is_time = key.endswith(("walltime", "exit_duration"))
        if is_time and isinstance(value, int) and value:
            values[key] = show_clock(value)
    text = write_tree(nest(values), remark=source)
    return head + re.sub(r"(?m)^(?=\w+:$)", "\n", text)  # An empty line precedes each section.


def _comment(text: str) -> str:
    """Return text as a one-line comment, shortened and without control characters."""
    visible_letters = []
    for letter in text:
        if letter.isprintable():
            visible_letters.append(letter)
        else:
            visible_letters.append(" ")
    return _cut("".join(visible_letters))


def _cut(text: str) -> str:
    """Shorten text to 110 characters."""
    if len(text) <= _MOST_LETTERS_OF_A_COMMENT:
        return text
    return f"{text[: _MOST_LETTERS_OF_A_COMMENT - 3]}..."


_MOST_LETTERS_OF_A_COMMENT = 110


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
"""Defaults in the Megatron parser that differ from ours.

Both pinned Megatron versions have the same defaults.
"""


def _fill(findings: Findings, framework: str, *, from_options: bool) -> None:
    """Set every value needed in the run, except those set by the script."""
    if from_options and framework != "nemo":
        _take_program_defaults(findings, framework)
    if "data.dataset" not in findings.carried:
        why = "the script names none, so the small shipped corpus is used; set data.dataset"
        findings.leave(0, "the text", why)
    _length(findings)
    _evaluation(findings)
    _devices_of_tasks(findings)
    _nodes(findings)
    _batch(findings)
    if findings.value("parallel.sequence") and findings.number("parallel.tensor", 1) == 1:
        line = findings.carried["parallel.sequence"].line
        text = "sequence parallelism needs more than one tensor rank"
        findings.does(line, text, "the program switches it off; so do we")
        findings.take("parallel.sequence", False, line, "one tensor rank")
    if findings.value("training.overlap_tensor") and findings.number("parallel.tensor", 1) == 1:
        # Our check rejects this option without sequence parallelism, where Megatron ignores it.
        line = findings.carried["training.overlap_tensor"].line
        source = "a single tensor rank does not communicate during its matrix products"
        findings.does(line, findings.carried["training.overlap_tensor"].source, source)
        findings.drop("training.overlap_tensor")
    if findings.value("training.offload") is False:
        findings.drop("training.offload")
    virtual_pipeline = findings.carried.get("parallel.virtual_pipeline")
    # A value without a line number comes from a base with more stages.
    is_of_base = virtual_pipeline is not None and not virtual_pipeline.line
    if is_of_base and findings.number("parallel.pipeline", 1) == 1:
        findings.drop("parallel.virtual_pipeline")


def _take_program_defaults(findings: Findings, framework: str) -> None:
    """Use the defaults in the Megatron parser for missing options."""
    source = "the program's default, because the script does not set it"
    for key, value in MEGATRON_DEFAULTS.items():
        if key == "data.split" and findings.value("data.held_out"):
            continue  # Validation text has its own files
        findings.take(key, value, 0, source, over=False)
    _precision(findings)
    if framework == "megatron-lm":
        findings.take("parallel.zero_stage", 0, 0, "no --use-distributed-optimizer", over=False)


def _evaluation(findings: Findings) -> None:
    """Turn evaluation off if the split leaves no text for validation."""
    if findings.value("data.held_out") or not findings.value("data.split", "").endswith(",0,0"):
        return
    line = findings.carried["data.split"].line
    source = "the split leaves no text for validation"
    findings.take("training.eval_interval", 0, line, source)
    findings.does(line, "--eval-interval, --eval-iters", f"no evaluation: {source}")


def _precision(findings: Findings) -> None:
    if "training.precision" not in findings.carried and findings.has_absent_document:
        source = "placeholder: DeepSpeed's configuration, which sets it, was not given"
        findings.take("training.precision", "bf16", 0, source)
        findings.ask("training.precision", "fp32, fp16 or bf16, from DeepSpeed's configuration")
    findings.take("training.precision", "fp32", 0, "neither --fp16 nor --bf16", over=False)
    scale = findings.carried.get("training.static_loss_scale")
    if findings.value("training.precision") == "fp16":
        source = "the program's default of 2^32 skips the first 16 steps"
        findings.take("training.initial_loss_scale", 65536.0, 0, source, over=False)
    elif scale:
        findings.does(scale.line, f"{scale.source} {scale.value:g}", "only fp16 has a loss scale")
        findings.drop("training.static_loss_scale")


def _length(findings: Findings) -> None:
    """Keep the training length in only one unit.

    The unit used in the document takes precedence, then tokens, samples and iterations.
    """
    for name, prefix in (("length", ""), ("warmup", "warmup_"), ("decay", "decay_")):
        carried = _carried_lengths(prefix, findings)
        above_zero = [length for length in carried if length.value]
        for second in above_zero[1:]:
            value = second.value
            if not prefix:
                value = f"{value:,}"
            why = f"a second {name}; {above_zero[0].key} determines the length"
            findings.leave(second.line, f"{second.source} {value}", why)
            findings.drop(second.key)
        if prefix or not above_zero:
            findings.drop(*(length.key for length in carried if not length.value))
        if not prefix and not above_zero:
            findings.take("training.iterations", 1000, 0, AdoptMessage.NO_LENGTH.fill())
            findings.ask("training.iterations", AdoptMessage.NO_LENGTH.fill())


def _carried_lengths(prefix: str, findings: Findings) -> list[CarriedValue]:
    """Return the lengths adopted, with the preferred unit first."""
    units = ("tokens", "samples", "iterations", "fraction")
    keys = [f"training.{prefix}{unit}" for unit in units]
    return [findings.carried[key] for key in keys if key in findings.carried]


def _devices_of_tasks(findings: Findings) -> None:
    """Use one device per task on a node, if srun or mpiexec starts one rank per task."""
    launcher = findings.value("jobs.launcher", findings.site.launcher)
    tasks = findings.carried.get("jobs.training.tasks_per_node")
    if launcher not in ("srun", "mpiexec") or tasks is None or tasks.value < 2:
        return
    source = f"{tasks.source}: one rank per task, and one device per rank"
    key = "jobs.training.devices_per_node"
    findings.take(key, tasks.value, tasks.line, source, over=False)


def _nodes(findings: Findings) -> None:
    """Use the fewest nodes on the site that the layout fills, unless the script sets the number."""
    _fit_nodes_to_site(findings)
    devices = findings.devices_per_node
    context = findings.number("parallel.context", 1)
    group = findings.model_parallel * max(1, context)
    nodes = group // math.gcd(group, devices)
    why = (
        f"not in the script: the fewest nodes of {devices} devices whose total is a multiple "
        f"of {group}"
    )
    findings.take("jobs.training.nodes", nodes, 0, why, over=False)
    if findings.value("parallel.context") == 0:  # Ulysses spans all devices.
        all_devices = findings.number("jobs.training.nodes", 1) * devices
        line = findings.carried["parallel.context"].line
        findings.take("parallel.context", all_devices, line, "SP_TYPE=ds")


def _fit_nodes_to_site(findings: Findings) -> None:
    """Convert the node count in the script to a count of smaller nodes on the site.

    Do so only if a node in the script has a multiple of the devices in a node on the site.
    """
    carried = findings.carried.get("jobs.training.devices_per_node")
    site_devices = findings.site.hardware.devices_per_node
    if carried is None or not isinstance(carried.value, int) or not site_devices:
        return
    if carried.value <= site_devices or carried.value % site_devices != 0:
        return
    site_nodes_per_node = carried.value // site_devices
    nodes = findings.number("jobs.training.nodes", 1) * site_nodes_per_node
    source = f"nodes of {carried.value} devices; the site's nodes have {site_devices}"
    findings.take("jobs.training.nodes", nodes, carried.line, source)
    findings.drop("jobs.training.devices_per_node")


def _batch(findings: Findings) -> None:
    """Compute the global batch, micro x replicas x GAS, if only the micro-batch or GAS is set."""
    steps = findings.number("gas", 1)
    gas = findings.carried.get("gas")
    global_batch = findings.carried.get("training.global_batch")
    findings.drop("gas")
    if global_batch and (global_batch.line or not gas):
        return
    world_size = findings.number("jobs.training.nodes", 1) * findings.devices_per_node
    devices_per_copy = findings.model_parallel * max(1, findings.number("parallel.context", 1))
    copies = max(1, world_size // devices_per_copy)
    micro = findings.number("training.micro_batch", 1)
    sequences = micro * copies
    if not gas and _end_ramp(sequences, findings):
        return
    source = f"{micro} micro x {copies} replicas x {steps} steps"
    line = gas.line if gas else 0
    findings.take("training.global_batch", sequences * steps, line, source)


def _end_ramp(sequences: int, findings: Findings) -> bool:
    """Use the first batch size in a ramp that can be divided among the devices.

    The source does not state how the ramp ends. Return whether there is a ramp.
    """
    start = findings.number("training.rampup_start")
    increment = findings.number("training.rampup_increment")
    if not start or not increment:
        return False
    steps = range(start, start + increment * sequences + 1, increment)
    batch = next((size for size in steps if size % sequences == 0), start)
    line = findings.carried["training.rampup_start"].line
    findings.take("training.global_batch", batch, line, "placeholder: a batch size from the ramp")
    findings.ask("training.global_batch", "the batch after the ramp, which the source does not set")
    return True

"""What the training program is given, as keys of a run file: Megatron's options, NeMo's overrides, DeepSpeed's JSON."""

import contextlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from runbook.frameworks.megatron import OPTIONS
from runbook.frameworks.nemo import READ
from runbook.frameworks.options import minutes, truth
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.script import Script, StartedProgram, Word

_KNOWN = {
    "slimpajama": "slimpajama",
    "pile": "the-pile",
    "oscar": "oscar-1GB",
    "my-gpt2": "oscar-1GB",
}
"""Datasets of the catalogue by a word of their files' names."""


def _data_path(values: Sequence[Word], findings: Findings) -> None:
    """Where token files lie: a name of the catalogue where it tells one, else files that are there already."""
    path = values[-1]
    paths = " ".join(value.shown for value in values)
    text = f"token files {paths[:80]}"
    blend = _blend(values)
    dataset = dataset_of(paths) if len(blend) < 2 else ""
    source = "the token files' name" if dataset else "--data-path"
    findings.take("data.dataset", dataset or "tokenized", path.line, source, over=False)
    folder = path.text.rpartition("/")[0]
    if len(blend) > 1:
        weights = ", ".join(f"{name} {weight:g}" for name, weight in blend.items())
        why = f"name each in params/datasets.yaml (kind: tokenized, a folder of its own) and set data.blend: {weights}"
        findings.leave(path.line, text, why)
    elif dataset:
        findings.does(path.line, text, f"data.dataset: {dataset} knows its files")
    elif path.known and folder.startswith("/") and len(values) < 3:
        findings.take("data.folder", folder, path.line, "--data-path")
    else:
        findings.leave(path.line, text, "set data.folder to the folder that holds them")


def dataset_of(path: str) -> str:
    """The dataset of the catalogue that a path names; empty where it names none."""
    return next((dataset for word, dataset in _KNOWN.items() if word in path.lower()), "")


def _blend(values: Sequence[Word]) -> dict[str, float]:
    """Weight of each text, where weights and paths take turns; files of one dataset are one text."""
    prefixes = [value.text for value in values[1::2]]
    try:
        weights = [float(value.text) for value in values[::2]]
    except ValueError:
        return {}
    shares: dict[str, float] = {}
    for weight, prefix in zip(weights, prefixes, strict=False):
        file = prefix.rpartition("/")[2].removesuffix("_text_document").lower()
        name = dataset_of(prefix) or re.sub(r"[^a-z0-9]+", "-", file).strip("-")
        shares[name] = shares.get(name, 0.0) + weight
    return shares


ModelKind = dict[str, str | float]
"""Activation, normalization and the like, as fields of a model."""
NEVER_MINUTES = 100_000
"""A time limit beyond this (69 days) means none."""


def pairs(words: Sequence[Word]) -> Iterator[tuple[Word, str, list[Word]]]:
    """Each option with its name in one spelling and what follows it.

    >>> [(name, [value.text for value in values]) for _, name, values in pairs([Word("--zero_stage=1", 3)])]
    [('zero-stage', ['1'])]
    """
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if not word.text.startswith("--"):
            yield word, "", []
            continue
        name, equals, value = word.text[2:].partition("=")
        values = [Word(value, word.line)] if equals else []
        while not equals and rest and not rest[0].text.startswith("--"):
            values.append(rest.popleft())
        yield word, name.replace("_", "-"), values


def count_known(words: Sequence[Word]) -> int:
    """How many of the words are options of a training that a run file has a key for, or NeMo's overrides.

    >>> count_known([Word("--num-layers", 1), Word("2", 1), Word("--colour", 1), Word("trainer.devices=8", 1)])
    2
    """
    names = [name for _, name, _ in pairs(words)]
    overrides = sum(
        bool(re.match(r"[+~]*(training\.)?(trainer|model|exp_manager)\.\w", word.text))
        for word in words
    )
    return sum(bool(OPTIONS[name].key) for name in names if name in OPTIONS) + overrides


def take_options(words: Sequence[Word], findings: Findings, framework: str) -> ModelKind:
    """Keys of the options that have one; returns the model's kind (activation, normalization ...) as far as given."""
    kind: ModelKind = {}
    checkout = next(
        (one for name, one in findings.site.frameworks.items() if name == framework), None
    )
    sites_own = {name.replace("_", "-") for name in checkout.options} if checkout else set()
    for word, name, values in pairs(words):
        source = f"--{name}"
        option = OPTIONS.get(name)
        text = " ".join([source, *(value.shown for value in values[:4])])
        if option and option.key.startswith("model."):
            if option.means is not None:
                kind[option.key.removeprefix("model.")] = option.means
            elif option.read and values:
                kind[option.key.removeprefix("model.")] = option.read(values[0].text)
        elif option and option.read and len(values) >= len(option.keys):
            for key, part in zip(option.keys, values, strict=False):
                findings.read(key, part, source, option.read)
        elif option and option.means is not None:
            findings.take(option.key, option.means, word.line, source)
        elif name in _SPECIAL and values:
            _SPECIAL[name](values[0], findings)
        elif name in ("data-path", "train-data-path") and values:
            _data_path(values, findings)
        elif option and option.ours:
            findings.does(word.line, source, option.ours)
        elif not name:
            findings.leave(
                word.line, word.shown, "a word for the training program that no option takes"
            )
        elif option:
            findings.leave(word.line, source, f"no value reached it: set {option.key}")
        elif name in sites_own:
            findings.does(word.line, text, f"{findings.site_file} gives it to {framework}")
        else:
            findings.leave_to_site(word.line, text, f"frameworks.{framework}.options")
    return kind


def _exit_duration(limit: Word, findings: Findings) -> None:
    if limit.text.isdigit() and int(limit.text) >= NEVER_MINUTES:
        text = f"--exit-duration-in-mins {limit.text}"
        findings.does(limit.line, text, "so long means never: the default")
    else:
        findings.read("training.exit_duration", limit, "--exit-duration-in-mins", minutes)


def _layers_per_stage(layers_of_chunk: Word, findings: Findings) -> None:
    source = "--num-layers-per-virtual-pipeline-stage"
    line = layers_of_chunk.line
    layers = findings.number("training.shape.layers")
    pipeline = findings.number("parallel.pipeline", 1)
    chunk = pipeline * (int(layers_of_chunk.text) if layers_of_chunk.text.isdigit() else 0)
    if pipeline == 1:
        findings.does(line, f"{source} {layers_of_chunk.shown}", "one stage has no chunks")
    elif layers and chunk and layers % chunk == 0:
        findings.take("parallel.virtual_pipeline", layers // chunk, line, source)
    else:
        why = "set parallel.virtual_pipeline: layers / pipeline / layers a chunk"
        findings.leave(line, f"{source} {layers_of_chunk.shown}", why)


def _attention_dropout(share: Word, findings: Findings) -> None:
    try:
        own = float(share.text)
    except ValueError:
        own = -1.0
    if own >= 0 and findings.value("training.dropout", own) == own:
        findings.take("training.dropout", own, share.line, "--attention-dropout")
    else:
        text = f"--attention-dropout {share.shown}"
        findings.leave(share.line, text, "training.dropout is one value for both dropouts")


def _tokenizer(kind: Word, findings: Findings) -> None:
    if kind.text == "GPT2BPETokenizer":
        findings.does(
            kind.line, "--tokenizer-type GPT2BPETokenizer", "data.tokenizer: gpt2 is the default"
        )
    else:
        findings.leave(
            kind.line, f"--tokenizer-type {kind.shown}", "name its file in data.tokenizer"
        )


_SPECIAL: dict[str, Callable[[Word, Findings], None]] = {
    "exit-duration-in-mins": _exit_duration,
    "num-layers-per-virtual-pipeline-stage": _layers_per_stage,
    "attention-dropout": _attention_dropout,
    "tokenizer-type": _tokenizer,
}


_NEMO = re.compile(
    r"(run\.|exp_manager\.(explicit_log_dir|resume_if_exists|wandb)|trainer\.enable_checkpointing|"
    r"model\.tokenizer\.|model\.data\.(index_mapping_dir|data_prefix|data_impl)|container|base_results_dir|"
    r"bignlp_path|launcher_scripts_path|data_dir|cluster(_type|\.)|stages|env_vars\.)"
)
MODELS = {"126m": "126m", "5b": "5b", "20b": "20b", "40b": "40b", "175b": "nemo-175b"}
"""The catalogue's name of each of NeMo's sizes."""


def size_of(words: Sequence[Word]) -> Word | None:
    """The size of NeMo's own file: `--config-name=175b.yaml`, or `training=gpt3/5b` of the launcher."""
    for word in words:
        match = re.fullmatch(
            r"(?:--config-name=|(?:\+\+)?training=\w+/)([\w.-]+?)(?:\.yaml)?", word.text
        )
        if match:
            return Word(match[1].lower(), word.line)
    return None


def take_overrides(words: Sequence[Word], findings: Findings) -> None:
    """Values given as `name=value`; `training.` before it and `++` are the launcher's spelling."""
    for word in words:
        name, equals, value = word.text.partition("=")
        name = name.lstrip("+~").removeprefix("training.")
        if not equals or name.startswith("--") or not name:
            if not name.startswith("--config") and not word.known:
                findings.leave(
                    word.line, word.shown, "more overrides, known only while the script runs"
                )
            continue
        inner = Word(value, word.line)
        if name == "exp_manager.create_checkpoint_callback":
            if inner.known and not truth(value):
                findings.take("training.save_interval", 0, word.line, f"{name}=False")
        elif (option := READ.get(name)) and option.read:
            parts = re.split(r",\s*", value.strip("[]")) if len(option.keys) > 1 else [value]
            for key, part in zip(option.keys, parts, strict=False):
                findings.read(key, Word(part, word.line), name, option.read)
        elif _NEMO.match(name):
            findings.does(
                word.line,
                f"{name}={inner.shown[:60]}",
                "the site's file and the run's own folders give it",
            )
        elif name != "training":
            findings.leave_to_site(
                word.line, f"{name}={inner.shown[:60]}", "frameworks.nemo.options"
            )


_GIVEN = {
    "train_batch_size": "training.global_batch",
    "train_micro_batch_size_per_gpu": "training.micro_batch",
    "gradient_clipping": "training.clip_gradient",
}
_WRITTEN = (
    "steps_per_print",
    "wall_clock_breakdown",
    "prescale_gradients",
    "gradient_accumulation_steps",
    "bf16",
)
_SECTION = "frameworks.megatron-deepspeed.deepspeed"
Number = int | float


def _documents(commands: Sequence[StartedProgram]) -> list[dict[str, Any]]:
    """The JSON files that a training was started with; numbers that nothing sets become null."""
    found = []
    for text in (text for command in commands for text in command.files.values()):
        with contextlib.suppress(ValueError):
            found.append(json.loads(re.sub(r"__NOT_SET_\w+?__", "null", text)))
    return [content for content in found if isinstance(content, dict)]


def take_documents(script: Script, findings: Findings) -> None:
    """Values of DeepSpeed's configuration; options of the training program win over it."""
    for content in _documents(script.commands)[-1:]:
        if (
            not {"train_micro_batch_size_per_gpu", "zero_optimization", "fp16", "train_batch_size"}
            & content.keys()
        ):
            continue
        for name, value in content.items():
            line = _line(script, name)
            text = f"DeepSpeed's {name}"
            if name in _GIVEN:
                _number(_GIVEN[name], value, line, text, findings)
            elif name == "zero_optimization" and isinstance(value, Mapping):
                _zero(value, line, script, findings)
            elif name == "fp16" and isinstance(value, Mapping):
                _scale(value, line, findings)
            elif name in _WRITTEN:
                findings.does(line, text, "written from the run file")
            else:
                findings.leave_to_site(line, text, _SECTION)


def _number(key: str, value: Any, line: int, text: str, findings: Findings) -> None:
    if not isinstance(value, Number) or isinstance(value, bool):
        return
    there = findings.carried.get(key)
    if there and there.line and there.value != value:
        findings.leave(line, f"{text} {value}", f"the training's option says {there.value}")
    findings.take(key, value, line, text, over=False)


def _zero(value: Mapping[str, Any], line: int, script: Script, findings: Findings) -> None:
    stage = value.get("stage")
    if isinstance(stage, int):
        findings.take("parallel.zero_stage", stage, line, "DeepSpeed's zero stage", over=False)
    device = value.get("offload_optimizer", {})
    if isinstance(device, Mapping) and device.get("device") == "cpu":
        findings.take(
            "training.offload",
            True,
            _line(script, "offload_optimizer"),
            "DeepSpeed's offload_optimizer",
        )
    if isinstance(overlap := value.get("overlap_comm"), bool):
        findings.take(
            "training.overlap_gradients",
            overlap,
            _line(script, "overlap_comm"),
            "DeepSpeed's overlap_comm",
        )
    if rest := sorted(value.keys() - {"stage", "offload_optimizer", "overlap_comm"}):
        text = f"DeepSpeed's zero_optimization: {', '.join(rest)}"
        findings.leave(line, text, f"write them under {_SECTION} of {findings.site_file}")


def _scale(value: Mapping[str, Any], line: int, findings: Findings) -> None:
    if value.get("enabled"):
        findings.take("training.precision", "fp16", line, "DeepSpeed's fp16", over=False)
    for name, key, kind in (
        ("loss_scale_window", "loss_scale_window", int),
        ("hysteresis", "loss_scale_hysteresis", int),
        ("min_loss_scale", "min_loss_scale", Number),
    ):
        if isinstance(value.get(name), kind):
            number = float(value[name]) if kind is Number else value[name]
            findings.take(f"training.{key}", number, line, f"DeepSpeed's {name}")
    static = findings.carried.get("training.static_loss_scale")
    if value.get("loss_scale") == 0 and static:  # two scales: DeepSpeed's is the one that works
        findings.drop("training.static_loss_scale")
        findings.leave(
            static.line,
            f"--loss-scale {static.value:g}",
            "DeepSpeed's dynamic scale is the one in use",
        )
    power = value.get("initial_scale_power")
    if isinstance(power, int) and 0 <= power <= 64:
        findings.take(
            "training.initial_loss_scale", float(2**power), line, f"DeepSpeed's 2^{power}"
        )


def _line(script: Script, name: str) -> int:
    return next((line for line, _ in script.matching(rf'"{re.escape(name)}"')), 0)

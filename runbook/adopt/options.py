"""Megatron-LM's and Megatron-DeepSpeed's options as keys of a run file."""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from runbook.adopt.findings import Findings
from runbook.adopt.sandbox.script import Word
from runbook.frameworks.megatron import OPTIONS
from runbook.frameworks.options import minutes
from runbook.params.schema.value_types import Framework

_KNOWN = {"slimpajama": "slimpajama", "pile": "the-pile", "oscar": "oscar-1GB", "my-gpt2": "oscar-1GB"}
"""Datasets of the catalogue by a word of their files' names."""


def _data_path(values: Sequence[Word], findings: Findings) -> None:
    """Where token files lie: a name of the catalogue where it tells one, else files that are there already."""
    path, paths = values[-1], " ".join(value.shown for value in values)
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


ModelKind = dict[str, str | int]
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
    overrides = sum(bool(re.match(r"[+~]*(training\.)?(trainer|model|exp_manager)\.\w", word.text)) for word in words)
    return sum(bool(OPTIONS[name].key) for name in names if name in OPTIONS) + overrides


def take_options(words: Sequence[Word], findings: Findings, framework: str) -> ModelKind:
    """Keys of the options that have one; returns the model's kind (activation, normalization ...) as far as given."""
    kind: ModelKind = {}
    checkout = findings.site.frameworks.get(Framework(framework))
    sites_own = {name.replace("_", "-") for name in checkout.options} if checkout else set()
    for word, name, values in pairs(words):
        source, option = f"--{name}", OPTIONS.get(name)
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
            findings.leave(word.line, word.shown, "a word for the training program that no option takes")
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
    source, line = "--num-layers-per-virtual-pipeline-stage", layers_of_chunk.line
    layers, pipeline = findings.number("training.shape.layers"), findings.number("parallel.pipeline", 1)
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
        findings.does(kind.line, "--tokenizer-type GPT2BPETokenizer", "data.tokenizer: gpt2 is the default")
    else:
        findings.leave(kind.line, f"--tokenizer-type {kind.shown}", "name its file in data.tokenizer")


_SPECIAL: dict[str, Callable[[Word, Findings], None]] = {
    "exit-duration-in-mins": _exit_duration,
    "num-layers-per-virtual-pipeline-stage": _layers_per_stage,
    "attention-dropout": _attention_dropout,
    "tokenizer-type": _tokenizer,
}

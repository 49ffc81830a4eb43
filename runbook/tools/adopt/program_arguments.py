"""Translates training arguments to keys in a run file.

The arguments are options for Megatron, overrides for NeMo, and JSON for DeepSpeed.
"""

import contextlib
import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from runbook.frameworks.megatron import OPTIONS
from runbook.frameworks.nemo import READ
from runbook.frameworks.option_rows import Option, Reader, minutes, truth
from runbook.params.schema.entries import names_pair
from runbook.tools.adopt.configs.rows import OTHER_WEIGHTS
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.script import Script, StartedProgram, Word

_DATASETS = {
    "slimpajama": "slimpajama",
    "pile": "the-pile",
    "oscar": "oscar-1GB",
    "my-gpt2": "oscar-1GB",
}
"""Datasets in the catalogue, each with a word that occurs in its file names."""


def _data_path(option: str, values: Sequence[Word], findings: Findings) -> None:
    """Adopt the token files named by an option.

    If the files belong to a dataset in the catalogue, use that dataset. Otherwise, use their
    folder.
    """
    path = values[-1]
    paths = " ".join(value.shown for value in values)
    text = f"token files {paths[:80]}"
    blend = _blend(values)
    is_blend = len(blend) > 1
    dataset = "" if is_blend else dataset_of(paths)
    source = "the token files' name" if dataset else option
    findings.take("data.dataset", dataset or "tokenized", path.line, source, over=False)
    folder = path.text.rpartition("/")[0]
    if is_blend:
        weights = ", ".join(f"{name} {weight:g}" for name, weight in blend.items())
        why = (
            "add each to params/datasets.yaml (kind: tokenized, in a separate folder) and set "
            f"data.blend: {weights}"
        )
        findings.leave(path.line, text, why)
    elif dataset:
        findings.does(path.line, text, f"the catalogue lists the files of data.dataset: {dataset}")
    elif path.known and folder.startswith("/") and len(values) < 3:
        folder_or_prefix = path.text if names_pair(path.text) else folder
        findings.take("data.folder", folder_or_prefix, path.line, option)
    else:
        findings.leave(path.line, text, "set data.folder to the folder that contains them")


def _take_data_path(option: Word, values: Sequence[Word], findings: Findings) -> None:
    """Adopt the token files named by an option.

    Report an option that has no value because its variable was empty.
    """
    if values:
        _data_path(option.text.partition("=")[0].replace("_", "-"), values, findings)
    else:
        why = AdoptMessage.NO_VALUE.fill(key="data.folder, or data.dataset")
        findings.leave(option.line, option.text, why)


def _held_out(values: Sequence[Word], findings: Findings) -> None:
    """Adopt how many whole files are held out for validation.

    The same number is held out for testing.
    """
    prefixes = values[1::2] if len(values) > 1 else values
    text = f"--valid-data-path of {len(prefixes)} files"
    if findings.value("data.dataset") in (None, "tokenized"):
        findings.leave(values[0].line, text, "list the files of the dataset, and set data.held_out")
    else:
        findings.take("data.held_out", len(prefixes), values[0].line, "--valid-data-path")


def dataset_of(path: str) -> str:
    """Return the catalogue dataset that a path names, or an empty string."""
    for word, dataset in _DATASETS.items():
        if word in path.lower():
            return dataset
    return ""


def _blend(values: Sequence[Word]) -> dict[str, float]:
    """Return the weight for each text in `weight prefix weight prefix ...`.

    The result is empty if the list has a different form. Files in one dataset are treated as one
    text, and their weights are added up.
    """
    prefixes = [value.text for value in values[1::2]]
    try:
        weights = [float(value.text) for value in values[::2]]
    except ValueError:
        return {}
    blend: dict[str, float] = {}
    for weight, prefix in zip(weights, prefixes, strict=False):
        name = dataset_of(prefix) or _text_name(prefix)
        blend[name] = blend.get(name, 0.0) + weight
    return blend


def _text_name(prefix: str) -> str:
    """Derive a name for a text outside the catalogue from its token file prefix."""
    file = prefix.rpartition("/")[2].removesuffix("_text_document").lower()
    return re.sub(r"[^a-z0-9]+", "-", file).strip("-")


ModelKind = dict[str, str | float]
"""Model fields that options such as activation and normalization set."""
NEVER_MINUTES = 100_000
"""Time limits above this value (69 days) count as no limit."""


def pairs(shell_words: Sequence[Word]) -> Iterator[tuple[Word, str, list[Word]]]:
    """Yield each option as written, its normalized name, and its values.

    A word that does not belong to any option has an empty name.

    >>> [(name, [value.text for value in values]) for _, name, values in pairs([Word("--zero_stage=1", 3)])]
    [('zero-stage', ['1'])]
    """
    unread = deque(shell_words)
    while unread:
        word = unread.popleft()
        if not word.text.startswith("--"):
            yield word, "", []
            continue
        name, equals, value = word.text[2:].partition("=")
        if equals:
            values = [Word(value, word.line)]
        else:
            values = _take_values(unread)
        yield word, name.replace("_", "-"), values


def _take_values(unread: deque[Word]) -> list[Word]:
    """Remove the words before the next option from `unread`, and return them."""
    values = []
    while unread and not unread[0].text.startswith("--"):
        values.append(unread.popleft())
    return values


def count_known(shell_words: Sequence[Word]) -> int:
    """Count the words that are overrides for NeMo, or options that a run file has a key for.

    >>> count_known([Word("--num-layers", 1), Word("2", 1), Word("--colour", 1), Word("trainer.devices=8", 1)])
    2
    """
    overrides = sum(bool(_NEMO_OVERRIDE.match(word.text)) for word in shell_words)
    names = [name for _, name, _ in pairs(shell_words)]
    options_with_key = sum(name in OPTIONS and bool(OPTIONS[name].key) for name in names)
    return options_with_key + overrides


_NEMO_OVERRIDE = re.compile(r"[+~]*(training\.)?(trainer|model|exp_manager)\.\w")


def take_options(shell_words: Sequence[Word], findings: Findings, framework: str) -> ModelKind:
    """Adopt every option that has a key, and report the others.

    Return the model type that the options describe.
    """
    kind: ModelKind = {}
    attention_dropout: Word | None = None
    for word, name, values in sorted(pairs(shell_words), key=_needs_layout):
        if not name:
            why = "a word for the training program that no option accepts"
            findings.leave(word.line, word.shown, why)
        elif _is_sites(name, values, findings, framework):
            _leave_to_sites_options(word, name, values, findings, framework)
        elif name == "valid-data-path" and values:
            _held_out(values, findings)
        elif name in _OTHER_WEIGHTS_OPTIONS:
            findings.leave(word.line, _option_text(name, values), OTHER_WEIGHTS)
        elif _is_of_another_model(name):
            _leave_other_model(name, word, values, findings)
        elif name in OPTIONS:
            _take_option(OPTIONS[name], Word(name, word.line), values, findings, kind)
        elif name == "attention-dropout" and values:
            attention_dropout = values[0]
            _leave_extra_words(f"--{name}", values[1:], 1, findings)
        else:
            _take_special(word, name, values, findings, framework)
    _attention_dropout(attention_dropout, findings)
    _settle_loss_fusion(shell_words, findings)
    _settle_head_width(shell_words, findings)
    _settle_positions(shell_words, kind, findings)
    return kind


_LONE_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")
_NAME_OF_OPTIONS = re.compile(
    r".*(ARG|ARGS|ARGUMENTS|OPT|OPTS|OPTIONS|FLAGS|PARAMS)", re.IGNORECASE
)
"""Names of variables that contain options.

Any other variable after an option is taken as the option value.
"""


def unset_arguments(shell_words: Sequence[Word]) -> list[str]:
    """Return the variables that may contain options but are set nowhere.

    >>> unset_arguments([Word("--bf16", 1), Word("__NOT_SET_MORE_ARGS__", 1)])
    ['$MORE_ARGS']
    """
    variables: dict[str, None] = {}
    before = ""
    for word in shell_words:
        variable = None if word.known else _LONE_VARIABLE.fullmatch(word.shown)
        if variable and (not before.startswith("--") or _NAME_OF_OPTIONS.fullmatch(variable[1])):
            variables[word.shown] = None
        before = word.text
    return list(variables)


def _needs_layout(option: tuple[Word, str, list[Word]]) -> bool:
    """Return whether an option must be read after the layers and stages, wherever it is."""
    _, name, _ = option
    return name == "num-layers-per-virtual-pipeline-stage"


def _settle_loss_fusion(shell_words: Sequence[Word], findings: Findings) -> None:
    """Set the loss implementation if the program fuses the loss, whatever the option order.

    The option for the implementation has no effect by itself, and Megatron logs its default in
    every run.
    """
    is_fused = False
    implementation: Word | None = None
    for _, name, values in pairs(shell_words):
        if name == "cross-entropy-loss-fusion":
            is_fused = True
        elif name == "cross-entropy-fusion-impl" and values:
            implementation = values[0]
    if implementation is None:
        return
    if is_fused:
        findings.read("training.loss_fusion", implementation, FUSION_IMPLEMENTATION, str)
        return
    findings.drop("training.loss_fusion")
    why = f"without {FUSION} it has no effect"
    findings.does(implementation.line, f"{FUSION_IMPLEMENTATION} {implementation.shown}", why)


def _settle_head_width(shell_words: Sequence[Word], findings: Findings) -> None:
    """Report a head width other than the model width divided by the number of heads."""
    hidden = findings.number("training.shape.hidden")
    heads = findings.number("training.shape.heads")
    for _, name, values in pairs(shell_words):
        if name != "kv-channels" or not values or not hidden or not heads:
            continue
        if values[0].text != str(hidden / heads).removesuffix(".0"):
            part = f"heads of {values[0].shown} channels"
            findings.trains_another_model(values[0].line, "--kv-channels", part)


_POSITIONS = ("learned", "rope")
"""Position embeddings that a model in the catalogue can have."""


def _settle_positions(
    shell_words: Sequence[Word], kind: Mapping[str, str | float], findings: Findings
) -> None:
    """Report position embeddings that no model in the catalogue can have."""
    positions = kind.get("position_embedding", "rope")
    for _, name, values in pairs(shell_words):
        if name == "position-embedding-type" and values and positions not in _POSITIONS:
            part = AdoptMessage.OTHER_POSITIONS.fill(positions=values[0].shown)
            findings.trains_another_model(values[0].line, f"--{name}", part)


FUSION = "--cross-entropy-loss-fusion"
FUSION_IMPLEMENTATION = "--cross-entropy-fusion-impl"
"""Options in Megatron-LM used to fuse the loss, and to select its implementation."""


def _take_special(
    word: Word,
    name: str,
    values: Sequence[Word],
    findings: Findings,
    framework: str,
) -> None:
    """Handle an option that sets several keys, or leave it to the site file."""
    if name in _SPECIAL and values:
        _SPECIAL[name](values[0], findings)
        _leave_extra_words(f"--{name}", values[1:], 1, findings)
    elif name in ("data-path", "train-data-path"):
        _take_data_path(word, values, findings)
    elif name in options_of_site(findings, framework):
        _leave_to_sites_options(word, name, values, findings, framework)
    else:
        section = f"frameworks.{framework}.options"
        findings.leave_to_site(word.line, _option_text(name, values), section)
        findings.for_site(section, name, site_value(values))


def _leave_extra_words(
    source: str, extra_words: Sequence[Word], num_taken: int, findings: Findings
) -> None:
    """Report superfluous words after an option."""
    for word in extra_words:
        why = f"a word after {source}, which takes only {num_taken}"
        findings.leave(word.line, word.shown, why)


def _leave_to_sites_options(
    word: Word,
    name: str,
    values: Sequence[Word],
    findings: Findings,
    framework: str,
) -> None:
    """Record an option that the site file already passes to the framework."""
    does = f"{findings.site_file} passes it to {framework}"
    findings.does(word.line, _option_text(name, values), does)


_OTHER_WEIGHTS_OPTIONS = ("finetune", "pretrained-checkpoint")
"""Options used to start training from weights of another run."""
_PARTS_OF_OTHER_MODELS = {
    "num-experts": "experts",
    "hybrid-override-pattern": "Mamba layers",
    "hybrid-attention-ratio": "Mamba layers",
    "is-hybrid-model": "Mamba layers",
    "multi-latent-attention": "multi-head latent attention",
    "mtp-num-layers": "layers that predict further tokens",
    "rotary-percent": "rotary embeddings for part of each head",
    "qk-layernorm": "norms of queries and keys",
    "window-size": "attention to a window of earlier tokens",
    "use-rope-scaling": "scaled rotary embeddings",
    "no-rope-freq": "layers without rotary embeddings",
    "heterogeneous-layers-config-path": "layers of different kinds",
    "heterogeneous-layers-config-encoded-json": "layers of different kinds",
    "experimental-attention-variant": "another kind of attention",
    "linear-attention-freq": "layers of linear attention",
    "attention-output-gate": "gates on the output of the attention",
    "softmax-type": "a softmax with sinks",
    "qk-l2-norm": "norms of queries and keys",
    "spec": "custom layers",
    "squared-relu": "squared ReLUs",
    "quick-geglu": "gates with approximate GELUs",
    "glu-linear-offset": "gates with an offset",
    "rotary-seq-len-interpolation-factor": "scaled rotary embeddings",
    "rope-scaling-type": "scaled rotary embeddings",
    "apply-residual-connection-post-layernorm": "residual connections that start after the norms",
    "parallel-attn": "attention and feed-forward side by side",
    "post-norm": "norms after the blocks",
    "attn-logit-softcapping": "capped attention scores",
    "output-logit-softcapping": "capped logits",
    "final-logit-softcapping": "capped logits",
    "use-mup": "initial weights and learning rates that depend on the width",
}
"""Options that make the model something other than a dense GPT, each with the part it adds."""
_ENDLESS_WINDOW = re.compile(r"\(?-1\b")
"""An attention window unbounded on the left."""
_GOES_WITH_EXPERTS = re.compile(
    r"moe-.*|expert-.*|create-moe-param-group|enable-expert-tensor-parallelism|disable-moe-.*"
)
"""Matches options used to configure experts. These options have no effect without experts."""


def _is_of_another_model(name: str) -> bool:
    return name in _PARTS_OF_OTHER_MODELS or _GOES_WITH_EXPERTS.fullmatch(name) is not None


def _leave_other_model(
    name: str,
    word: Word,
    values: Sequence[Word],
    findings: Findings,
) -> None:
    """Report an option that belongs to a model other than a dense GPT.

    A model with a single expert, or with no additional layers, is a dense GPT.
    """
    text = _option_text(name, values)
    part = _PARTS_OF_OTHER_MODELS.get(name, "")
    is_dense = bool(values) and all(value.text in ("0", "1") for value in values)
    if not part:
        findings.leave(word.line, text, AdoptMessage.GOES_WITH_EXPERTS.fill())
    elif name == "num-experts" and is_dense:
        findings.does(word.line, text, AdoptMessage.ONE_EXPERT_IS_DENSE.fill())
    elif values and _is_without_part(name, values[0].text):
        findings.does(word.line, text, AdoptMessage.PART_IS_OFF.fill(part=part))
    else:
        described = " ".join(value.shown for value in values)
        findings.trains_another_model(word.line, f"--{name}", f"{described} {part}".strip())


def _is_without_part(name: str, value: str) -> bool:
    """Return whether an option value removes what the option names from the model."""
    if name == "window-size":
        return _ENDLESS_WINDOW.match(value) is not None
    if name == "spec":
        return value.endswith("gpt_layer_specs") or value == "local"
    try:
        number = float(value)
    except ValueError:
        return value.lower() in ("vanilla", "none", "false")
    return number == (1 if name in _OFF_AT_ONE else 0)


_OFF_AT_ONE = ("rotary-percent", "rotary-seq-len-interpolation-factor")
"""Options that have no effect with the value 1.

All other options have no effect with the value 0.
"""


def site_value(values: Sequence[Word]) -> str | int | float | bool:
    """Return option values as in a site file: a number, a string, or true for a flag."""
    if not values:
        return True
    text = " ".join(value.shown for value in values)
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return read(text)
    return text


def _take_option(
    option: Option,
    name: Word,
    values: Sequence[Word],
    findings: Findings,
    kind: ModelKind,
) -> None:
    """Adopt the values given for a known option, or the value that a flag implies."""
    source = f"--{name.text}"
    takes_values = option.read is not None or option.means is not None
    used = len(option.keys) if option.read else 0
    if takes_values:
        _leave_extra_words(source, values[used:], used, findings)
    if option.key.startswith("model."):
        shown = Word(_option_text(name.text, values), name.line)
        _take_kind(option, shown, values, findings, kind)
    elif option.read and len(values) >= len(option.keys):
        for key, value in zip(option.keys, values, strict=False):
            findings.read(key, value, source, option.read)
    elif option.means is not None:
        findings.take(option.key, option.means, name.line, source)
    elif option.ours:
        findings.does(name.line, source, option.ours)
    else:
        findings.leave(name.line, source, AdoptMessage.NO_VALUE.fill(key=option.key))


def options_of_site(findings: Findings, framework: str) -> set[str]:
    """Return the options that the site file passes to this framework, under normalized names."""
    for name, checkout in findings.site.frameworks.items():
        if name == framework:
            return {option.replace("_", "-") for option in checkout.options}
    return set()


def _is_sites(
    name: str,
    values: Sequence[Word],
    findings: Findings,
    framework: str,
) -> bool:
    """Return whether the site file sets this option to this value."""
    for site_framework, checkout in findings.site.frameworks.items():
        if site_framework == framework:
            options = {key.replace("_", "-"): value for key, value in checkout.options.items()}
            return name in options and options[name] == site_value(values)
    return False


def _option_text(name: str, values: Sequence[Word]) -> str:
    """Return an option with its first values, as readable text."""
    return " ".join([f"--{name}", *(value.shown for value in values[:4])])


def _take_kind(
    option: Option,
    shown: Word,
    values: Sequence[Word],
    findings: Findings,
    kind: ModelKind,
) -> None:
    """Record how an option affects the model type. `shown` is the option in readable form."""
    field = option.key.removeprefix("model.")
    findings.kind_lines[field] = shown.line
    if option.means is not None:
        kind[field] = option.means
        return
    try:
        if option.read and values and values[0].known:
            kind[field] = option.read(values[0].text)
            return
    except (ValueError, KeyError):
        pass
    kind.pop(field, None)
    why = f"no value of {field} reached it: choose a model that has it"
    findings.leave(shown.line, shown.text, why)


def _exit_duration(limit: Word, findings: Findings) -> None:
    if limit.text.isdigit() and int(limit.text) >= NEVER_MINUTES:
        text = f"--exit-duration-in-mins {limit.text}"
        findings.does(limit.line, text, "so large that it means never: the default")
    else:
        findings.read("training.exit_duration", limit, "--exit-duration-in-mins", minutes)


def _layers_per_stage(layers_of_chunk: Word, findings: Findings) -> None:
    source = "--num-layers-per-virtual-pipeline-stage"
    line = layers_of_chunk.line
    layers = findings.number("training.shape.layers")
    pipeline = findings.number("parallel.pipeline", 1)
    layers_per_chunk = int(layers_of_chunk.text) if layers_of_chunk.text.isdigit() else 0
    layers_per_round = pipeline * layers_per_chunk  # There is one chunk on each stage.
    if pipeline == 1:
        findings.does(line, f"{source} {layers_of_chunk.shown}", "one stage has no chunks")
    elif layers and layers_per_round and layers % layers_per_round == 0:
        findings.take("parallel.virtual_pipeline", layers // layers_per_round, line, source)
    else:
        why = "set parallel.virtual_pipeline: layers / pipeline / layers per chunk"
        findings.leave(line, f"{source} {layers_of_chunk.shown}", why)


def _attention_dropout(share: Word | None, findings: Findings) -> None:
    """Report an attention dropout that differs from the hidden dropout.

    A run file has only one value for both. If a script sets just one of the two, the other keeps
    its default in the program.
    """
    hidden = findings.carried.get("training.dropout")
    hidden_dropout = hidden.value if hidden else DEFAULT_DROPOUT
    if share is None:
        if hidden and hidden_dropout != DEFAULT_DROPOUT:
            why = f"training.dropout is one value for both dropouts: {hidden_dropout}"
            text = AdoptMessage.ATTENTION_DROPOUT.fill(dropout=DEFAULT_DROPOUT)
            findings.leave(hidden.line, text, why)
        return
    try:
        dropout = float(share.text)
    except ValueError:
        dropout = -1.0
    if dropout != hidden_dropout:
        why = f"training.dropout is one value for both dropouts: {hidden_dropout}"
        findings.leave(share.line, f"--attention-dropout {share.shown}", why)


DEFAULT_DROPOUT = 0.1
"""The default for both dropout probabilities in the Megatron parser and in NeMo files."""


def _tokenizer(kind: Word, findings: Findings) -> None:
    findings.tokenizer_kind = kind.text if kind.known else ""
    text = f"--tokenizer-type {kind.shown}"
    if kind.text == "GPT2BPETokenizer":
        findings.does(kind.line, text, "data.tokenizer: gpt2 is the default")
    else:
        findings.leave(kind.line, text, "name its file in data.tokenizer")


def _tokenizer_file(path: Word, findings: Findings) -> None:
    findings.ask_for_tokenizer(path.text, path.line, "--tokenizer-model")


def _tokenizer_folder(path: Word, findings: Findings) -> None:
    findings.ask_for_tokenizer(path.text, path.line, "--tokenizer-name-or-path")


def _vocabulary(size: Word, findings: Findings) -> None:
    """Record the vocabulary size, which may differ from that in the catalogue."""
    if size.text.isdigit():
        findings.vocabulary = int(size.text)
    findings.does(size.line, f"--vocab-size {size.shown}", "the vocabulary is in the model's entry")


_SPECIAL: dict[str, Callable[[Word, Findings], None]] = {
    "exit-duration-in-mins": _exit_duration,
    "num-layers-per-virtual-pipeline-stage": _layers_per_stage,
    "tokenizer-type": _tokenizer,
    "tokenizer-model": _tokenizer_file,
    "tokenizer-name-or-path": _tokenizer_folder,
    "vocab-size": _vocabulary,
}


_NEMO = re.compile(
    r"(run\.|exp_manager\.(explicit_log_dir|resume_if_exists|wandb)|trainer\.enable_checkpointing|"
    r"model\.tokenizer\.|model\.data\.(index_mapping_dir|data_prefix|data_impl)|container|base_results_dir|"
    r"bignlp_path|launcher_scripts_path|data_dir|cluster(_type|\.)|stages|env_vars\.)"
)
MODELS = {"126m": "126m", "5b": "5b", "20b": "20b", "40b": "40b", "175b": "nemo-175b"}
"""The catalogue name for each model size in NeMo."""


def size_of(shell_words: Sequence[Word]) -> Word | None:
    """Return the model size used to select a file that comes with NeMo, or None.

    The size is part of `--config-name=175b.yaml`, or of `training=gpt3/5b` for the launcher.
    """
    for word in shell_words:
        match = _NEMO_SIZE.fullmatch(word.text)
        if match:
            return Word(match[1].lower(), word.line)
    return None


_NEMO_SIZE = re.compile(r"(?:--config-name=|-cn=|(?:\+\+)?training=\w+/)([\w.-]+?)(?:\.yaml)?")


def take_overrides(shell_words: Sequence[Word], findings: Findings) -> ModelKind:
    """Adopt values written as `name=value`.

    The launcher puts `training.` or `++` before them. Return the model type that the values
    describe.
    """
    kind: ModelKind = {}
    for word in shell_words:
        name, equals, text = word.text.partition("=")
        name = name.lstrip("+~").removeprefix("training.")
        if equals and name and not name.startswith("--"):
            _take_override(name, Word(text, word.line), findings, kind)
        elif not name.startswith("--config") and not word.known:
            why = "more overrides, known only while the script runs"
            findings.leave(word.line, word.shown, why)
    return kind


def _take_override(name: str, value: Word, findings: Findings, kind: ModelKind) -> None:
    """Adopt a value from NeMo, or report why it is not carried over."""
    text = f"{name}={value.shown[:60]}"
    option = READ.get(name)
    if name == "exp_manager.create_checkpoint_callback":
        if value.known and not truth(value.text):
            findings.take("training.save_interval", 0, value.line, f"{name}=False")
    elif name in _NEMO_PARTS and value.text.lower() not in _NO_PART:
        findings.trains_another_model(value.line, name, f"{value.shown} {_NEMO_PARTS[name]}")
    elif name == "model.context_parallel_size":
        findings.read("parallel.context", value, name, int)
    elif option and option.key.startswith("model."):
        _take_kind(option, Word(text, value.line), [value], findings, kind)
    elif option and option.read:
        _read_override(option, option.read, value, findings)
    elif _NEMO.match(name):
        findings.does(value.line, text, "the site's file and the run's own folders provide it")
    elif name != "training":
        findings.leave_to_site(value.line, text, "frameworks.nemo.options")
        findings.for_site("frameworks.nemo.options", name, site_value([value]))


_NEMO_PARTS = {
    "model.num_moe_experts": "experts",
    "model.hybrid_override_pattern": "Mamba layers",
    "model.multi_latent_attention": "multi-head latent attention",
}
_NO_PART = ("null", "none", "0", "1", "false", "")


def _read_override(option: Option, read: Reader, value: Word, findings: Findings) -> None:
    """Adopt the value given for an option, or each value in a list."""
    parts = [value.text]
    if len(option.keys) > 1:
        parts = re.split(r",\s*", value.text.strip("[]"))
    name = option.name.lstrip("+")
    for key, part in zip(option.keys, parts, strict=False):
        findings.read(key, Word(part, value.line), name, read)


DOCUMENT_KEYS = {
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


def documents_of(commands: Sequence[StartedProgram]) -> list[dict[str, Any]]:
    """Return the JSON objects passed to a training run.

    Numbers from unset variables become null.
    """
    documents = []
    for command in commands:
        for text in command.files.values():
            with contextlib.suppress(ValueError):
                content = json.loads(re.sub(r"__NOT_SET_\w+?__", "null", text))
                if isinstance(content, dict):
                    documents.append(content)
    return documents


def take_documents(script: Script, findings: Findings) -> None:
    """Adopt the values in the last DeepSpeed configuration.

    Options for the training program override them.
    """
    documents = documents_of(script.commands)
    if not documents or not _DEEPSPEED_SIGNS & documents[-1].keys():
        return
    for name, value in documents[-1].items():
        line = _line(script, name)
        text = f"DeepSpeed's {name}"
        if name in DOCUMENT_KEYS:
            _number(DOCUMENT_KEYS[name], value, line, text, findings)
        elif name == "zero_optimization" and isinstance(value, Mapping):
            _zero(value, line, script, findings)
        elif name == "fp16" and isinstance(value, Mapping):
            _scale(value, line, findings)
        elif name in _WRITTEN:
            findings.does(line, text, "generated from the run file")
        else:
            findings.leave_to_site(line, text, _SECTION)
            findings.for_site(_SECTION, name, value)


_DEEPSPEED_SIGNS = {
    "train_micro_batch_size_per_gpu",
    "zero_optimization",
    "fp16",
    "train_batch_size",
}
"""A DeepSpeed configuration has at least one of these sections."""


def _number(
    key: str,
    value: Any,
    line: int,
    text: str,
    findings: Findings,
) -> None:
    """Adopt a number from the DeepSpeed configuration, unless a program option contradicts it."""
    if not isinstance(value, Number) or isinstance(value, bool):
        return
    carried = findings.carried.get(key)
    if carried and carried.line and carried.value != value:
        findings.leave(line, f"{text} {value}", f"the training option is {carried.value}")
    findings.take(key, value, line, text, over=False)


def _zero(
    value: Mapping[str, Any],
    line: int,
    script: Script,
    findings: Findings,
) -> None:
    """Adopt the ZeRO section for DeepSpeed: stage, offload and overlap.

    Other values may be set in the site file.
    """
    stage = value.get("stage")
    if isinstance(stage, int):
        findings.take("parallel.zero_stage", stage, line, "DeepSpeed's zero stage", over=False)
    offload = value.get("offload_optimizer", {})
    if isinstance(offload, Mapping) and offload.get("device") == "cpu":
        offload_line = _line(script, "offload_optimizer")
        source = "DeepSpeed's offload_optimizer"
        findings.take("training.offload", True, offload_line, source)
    overlap = value.get("overlap_comm")
    if isinstance(overlap, bool) and _sites_overlap(findings) == overlap:
        does = f"{findings.site_file} passes it to DeepSpeed"
        findings.does(_line(script, "overlap_comm"), "DeepSpeed's overlap_comm", does)
    elif isinstance(overlap, bool):
        overlap_line = _line(script, "overlap_comm")
        source = "DeepSpeed's overlap_comm"
        findings.take("training.overlap_gradients", overlap, overlap_line, source)
    others = sorted(value.keys() - {"stage", "offload_optimizer", "overlap_comm"})
    if others:
        text = f"DeepSpeed's zero_optimization: {', '.join(others)}"
        findings.leave(line, text, f"add them under {_SECTION} of {findings.site_file}")
        for name in others:
            findings.for_site(f"{_SECTION}.zero_optimization", name, value[name])


def _sites_overlap(findings: Findings) -> object:
    """Return overlap_comm for DeepSpeed from the site file, or None if the file does not set it."""
    for name, checkout in findings.site.frameworks.items():
        if name == "megatron-deepspeed":
            section = checkout.deepspeed.get("zero_optimization")
            return section.get("overlap_comm") if isinstance(section, Mapping) else None
    return None


def _scale(value: Mapping[str, Any], line: int, findings: Findings) -> None:
    """Adopt the loss scale that DeepSpeed uses for fp16.

    It overrides a static scale in Megatron.
    """
    if value.get("enabled"):
        findings.take("training.precision", "fp16", line, "DeepSpeed's fp16", over=False)
    for name, key, kind in _SCALE_KEYS:
        if isinstance(value.get(name), kind):
            number = float(value[name]) if kind is Number else value[name]
            findings.take(key, number, line, f"DeepSpeed's {name}")
    static = findings.carried.get("training.static_loss_scale")
    if value.get("loss_scale") == 0 and static:
        findings.drop("training.static_loss_scale")
        text = f"--loss-scale {static.value:g}"
        findings.leave(static.line, text, "DeepSpeed's dynamic scale applies")
    power = value.get("initial_scale_power")
    if isinstance(power, int) and 0 <= power <= 64:
        scale = float(2**power)
        findings.take("training.initial_loss_scale", scale, line, f"DeepSpeed's 2^{power}")


_SCALE_KEYS: tuple[tuple[str, str, Any], ...] = (
    ("loss_scale_window", "training.loss_scale_window", int),
    ("hysteresis", "training.loss_scale_hysteresis", int),
    ("min_loss_scale", "training.min_loss_scale", Number),
)
"""For each loss-scale setting: the name in DeepSpeed, our key, and the value type."""


def _line(script: Script, name: str) -> int:
    """Return the number of the first line that contains a JSON key, or 0 if none does."""
    return script.first_line(rf'"{re.escape(name)}"')

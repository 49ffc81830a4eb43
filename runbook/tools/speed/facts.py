"""Reads facts about a training run from a log, a command line, a YAML file, a question or --set."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from runbook.core.errors import ParamsError
from runbook.core.nearest_names import nearest_names
from runbook.frameworks.option_names import option_flags, option_names
from runbook.planning.choice import Choice
from runbook.planning.cost.accelerators import find_accelerator
from runbook.planning.cost.step_inputs import code_of
from runbook.tools.speed.device_counts import device_count, nodes_and_devices
from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.phrases import (
    WAYS_TO_WRITE,
    accumulation,
    batch_tokens,
    is_stated,
    micro_batch_tokens,
    own_sentences,
    phrase_facts,
    plain_numbers,
    step_seconds,
)
from runbook.tools.speed.published_rows import zero_stage

Facts = dict[str, str]
"""The known facts about a training run. Most are named after the columns of `plan --predict`."""


class _Fact(NamedTuple):
    """A fact, and its names in program output and in text that people write."""

    name: str
    key: str = ""
    """The key in the run file, or empty if the fact has no key."""
    words: str = ""
    """Other names that people and other programs use, separated by `|`.

    `_` matches any separator.
    """


_SPLIT_NAMED = "(?:_model)?_parallel(?:ism)?(?:_(?:size|degree))?"
_SPLIT = rf"(?:{_SPLIT_NAMED}|_(?:size|degree|depth|stages))?"
"""Words that may follow `tensor` and `pipeline`, as in tensor parallel size and pipeline depth."""
_SEQUENCE = r"max_seq_len|sequence_length|context_length|seq(?:uence)?(?=(?: of)?[ =:]{1,3}\d{3})"
"""Names for a sequence length.

A number with fewer than three digits counts only if the text calls it a length.
"""

_NUMBERS = (
    _Fact("tp", "parallel.tensor", rf"TP(?:_size)?|tensor{_SPLIT}"),
    _Fact(
        "pp", "parallel.pipeline", rf"PP(?:_size)?|pipe_parallel_size|(?<!data )pipeline{_SPLIT}"
    ),
    _Fact("dp", words=rf"data{_SPLIT_NAMED}|DP"),
    _Fact("cp", "parallel.context", "CP"),
    _Fact("vp", "parallel.virtual_pipeline", "VPP?"),
    _Fact("layers", "training.shape.layers", "n_layers|num_hidden_layers"),
    _Fact("hidden", "training.shape.hidden", "d_model"),
    _Fact("heads", "training.shape.heads", "n_heads"),
    _Fact("kv_heads", "training.shape.kv_heads"),
    _Fact("ffn", "training.shape.ffn_hidden", "intermediate_size"),
    _Fact("vocabulary", words="(?:padded_)?vocab_size"),
    _Fact("seq_len", "training.sequence_length", _SEQUENCE),
    _Fact("save_interval", "training.save_interval"),
    _Fact(
        "micro_batch",
        "training.micro_batch",
        "(?:device_train_)?micro_?batch(?:_size)?|per_device_train_batch_size|MBS",
    ),
    _Fact("n_accel", words="world_size|trainer.devices"),
    _Fact("devices_per_node", words="(?:nproc|n?gpus|num_gpus|trainer.devices)_per_node"),
    _Fact("global_batch", "training.global_batch", "global_(?:train_)?batch(?:_size)?|GBS"),
    _Fact("experts", words="num_experts"),
    _Fact("experts_a_token", words="moe_router_topk"),
    _Fact("experts_over", words="expert_model_parallel_size|EP"),
)
_TEXTS = (
    _Fact("recompute", "training.recompute", "activation_checkpointing|gradient_checkpointing"),
    _Fact("precision", words="precision|params_dtype"),
    _Fact("zero_stage", "parallel.zero_stage", "sharding_strategy"),
    _Fact("sequence", words="sequence_parallel"),
    _Fact("flash", words="use_flash_attn|attn_impl(?:ementation)?"),
    _Fact("overlap_gradients", "training.overlap_gradients", "overlap_grad_reduce"),
    _Fact("weights", words="megatron_amp_O2"),
    _Fact("dispatcher", words="moe_token_dispatcher_type"),
)
_TOO_GENERAL = ("batch_size", "model_parallel_size", "checkpoint_activations")
"""Names in older programs that also occur within other names, or that are printed as switches."""
NUMBERS = tuple(fact.name for fact in _NUMBERS)
_NUMBER_VALUE = r"(?:[ \t]+(?:of|is|was|set to))?[\s=:.*\"']*(\d+)\b(?!\.\d)"
_TEXT_VALUE = r"(?:[ \t]+(?:is|was|set to))?[\s=:\"']+(?!-)([\w.]+)"
_OUR_VALUES = {
    "torch.float32": "fp32",
    "full_shard": "3",
    "shard_grad_op": "2",
    "torch": "no",
    "eager": "no",
    "true": "full",
    "on": "full",
    "enabled": "full",
    "off": "no",
    "disabled": "no",
}
_SWITCH = r"true|false|yes|no|on|off|enabled|disabled|none|0|1"
_ACCEPTED = {
    "recompute": rf"{_SWITCH}|full|selective|uniform|block|operators",
    "precision": r".*\d.*|half|single",
    "zero_stage": r"[0-3]|(?:full|hybrid|no)_shard|shard_grad_op",
    "sequence": _SWITCH,
    "flash": rf"{_SWITCH}|\w*flash\w*|torch|triton|eager|sdpa|math|plain|\w*fused\w*|auto",
    "overlap_gradients": _SWITCH,
    "weights": _SWITCH,
}
"""Patterns for the values that a fact may have. Any other word after the fact's name starts a new
phrase."""
_FULL_FORMATS = {"32": "fp32", "32-true": "fp32", "float32": "fp32", "float": "fp32"}
OFF = ("false", "none", "0", "no", "plain")
"""Values that switch an option off."""
_COLUMNS = {
    "tensor": "tp",
    "pipeline": "pp",
    "context": "cp",
    "virtual_pipeline": "vp",
    "sequence_length": "seq_len",
    "ffn_hidden": "ffn",
    "attention": "flash",
    "device": "accelerator",
    "devices": "n_accel",
}
"""Column names for keys whose last word differs from the column name."""
_NOT_A_RATE = r"(?!\s*(?:/|per|a)\s*(?:token|step|sample|sequence|iteration|pass))"
"""Used to exclude operation counts per step or per token."""
_SPEEDS = {
    "tflops": rf"(\d+(?:\.\d+)?)[^\w,;=]*(?:model )?TFLOPs?\b(?![ \t]?[=:]){_NOT_A_RATE}"
    r"|(?<!peak )\bTFLOPs?(?:/s)?(?:/GPU)?[ \t]?[=:][ \t]?(\d+(?:\.\d+)?)(?!\d|\W*TFLOP)",
    "tokens_per_second": r"(\d[\d,]*(?:\.\d+)?k?)[^\w.,;:]*tok(?:en)?s?\s*(?:/|per)\s*s"
    r"|tok(?:en)?s?/s(?:ec)?(?: ?(?:/|per) ?GPU)?[ =:]+(\d[\d,]{2,}(?:\.\d+)?k?)(?![\d,]*\W*tok)"
    r"|\b(?:wps|tps)\b(?: is| of)?(?: only| just)?(?: around| about)?[ :=~]+(\d[\d,]*(?:\.\d+)?k?)\b",
}
_UNITS = (*_SPEEDS, "mfu", "seconds")
KEYS = [
    *NUMBERS,
    *(fact.name for fact in _TEXTS),
    "activation",
    "accelerator",
    "code",
    "network",
    "model",
    "expected.model",
    *(f"expected.{unit}" for unit in _UNITS),
    *(f"reached.{unit}" for unit in _UNITS),
]
"""Keys that `--set` accepts. The keys in a run file are also accepted (parallel.tensor for tp)."""
NEEDED = (
    "accelerator=H100-SXM5",
    "n_accel=16",
    "layers=32",
    "hidden=4096",
    "tp=8",
    "micro_batch=1",
    "global_batch=64",
)
"""Examples that show how to state facts that `explain` would otherwise assume."""
_DEVICE = r"(?<![A-WYZa-wyz0-9])((?:GB?|[ABHV]|MI)\d{2,3}X?(?:[ _-]?(?:SXM\d?|PCIe|NVL|\d+ ?GB))*)"
_MODEL = (
    r"(?:\b|(?<=_))((?:(?:llama|gpt|mpt|opt|qwen|bloom|falcon|mi[sx]tral)[- ]?(?:\d(?:\.\d)?[- ])?)?"
    r"\d+(?:\.\d+)?[BM])\b"
)
SOCKETS = (
    r"NET/Socket|Using network Socket|NCCL_IB_DISABLE=1|NET/IB : No device"
    r"|\b(?:no|without|lacks?) (?:Infini[Bb]and|IB|RDMA)\b"
)
"""Matches lines which show that NCCL messages go through sockets."""
_NETWORK = (
    r"(?:(?<![\w.])(\d+) ?[x×] ?)?(\d+(?:\.\d+)?) ?"
    r"(?-i:[Gg]bps|Gb/s|G[Bb]it(?:s?/s|ps)?)\b"
    r"[^.]{0,30}(?:network|ethernet|bandwidth|roce|between)"
)
"""Matches statements about node network bandwidth: how many adapters, and the Gbit/s for each.

The unit is case-sensitive, because NVLink and storage bandwidths are given in bytes, as GB/s.
"""
_WITH_SPARSITY = ("A100", "H100", "H100-500W", "Blackwell", "Blackwell Ultra", "L40S")
"""Families whose datasheets also give a peak with sparsity, which is twice the dense peak."""
_OF_TWO_DEVICES = ("MI250X",)
"""Families with datasheets that give the peak for a card, which PyTorch counts as two devices."""
_ROUNDED_PEAK = 1e-3
_PEAK_FIGURE = (
    rf"(?<![\w.,])(\d{{3,4}}(?:\.\d+)?|\d,\d{{3}})[ -]?(?:model )?(?:T|tera)FLOPs?\b{_NOT_A_RATE}"
)
"""Figures in TFLOP/s. A number without a unit may be an iteration or batch number."""
_FP8 = (
    r"(?<![a-z])fp-?8(?:_(?:format|hybrid|e4m3))?"
    r"(?!\w|[ \t.:=\"']+(?:none|false|off|no)\b)"
)
"""Matches mentions of fp8, except where a program prints that fp8 is off."""
_SHARDS_STATES = r"\bfsdp\b|\bzero[- ]?(?:stage[- ]?)?[0-3]\b"
"""Phrases that say which states are sharded."""
_SOCKET_GBIT_S = "10"
"""Usual bandwidth, in Gbit/s, if NCCL uses sockets."""
_FLAGS = (
    ("precision", "training.precision"),
    ("recompute", "training.recompute"),
    ("activation", "model.activation"),
)
"""Facts that an option without a value sets, with their keys."""
_MEGATRON = r"--tensor-model-parallel|--recompute-granularity|megatron-(lm|core)"
_NEMO = r"NeMo|trainer\.devices"


def read_words(words: Sequence[str]) -> Facts:
    """Return the facts that `--set KEY=VALUE` gives.

    Raise `ParamsError` for an unknown key, naming the nearest keys, and for a value that should be
    a number but is not.
    """
    facts = Facts()
    for word in words:
        key, _, value = word.partition("=")
        last_part = key.rpartition(".")[2]
        name = key if key in KEYS else _COLUMNS.get(last_part, last_part)
        if not value or name not in KEYS:
            near = ", ".join(nearest_names(key, KEYS) or KEYS)
            raise ParamsError(SpeedMessage.NOT_A_FACT, word=word, near=near)
        is_numeric = name in NUMBERS or name.rpartition(".")[2] in _UNITS
        if is_numeric and not re.fullmatch(r"\d+(\.\d+)?", value):
            raise ParamsError(SpeedMessage.NOT_A_PLAIN_NUMBER, word=word, name=name)
        facts[name] = value
    return facts


def facts_of_run(choice: Choice) -> Facts:
    """Return the facts about the training run that a run file describes."""
    training = choice.training
    layout = choice.layout
    shape = choice.shape
    stated: dict[str, str | int] = {
        "model": choice.model_name,
        "accelerator": choice.site.hardware.device,
        "n_accel": layout.world_size,
        "code": code_of(choice),
        "precision": training.precision if training.fp8 == "none" else "fp8",
        "recompute": training.recompute,
        "flash": training.attention,
        "overlap_gradients": training.overlap_gradients,
        "save_interval": training.save_interval,
        "micro_batch": choice.micro_batch,
        "global_batch": choice.global_batch,
        "tp": layout.tensor,
        "pp": layout.pipeline,
        "cp": layout.context,
        "vp": layout.virtual_pipeline,
        "zero_stage": layout.zero_stage,
        "sequence": layout.sequence,
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "ffn": shape.ffn_hidden,
        "vocabulary": shape.vocabulary,
        "seq_len": shape.sequence_length,
        "activation": shape.activation,
    }
    return {name: str(value) for name, value in stated.items()}


def read_facts(text: str, printed: Mapping[str, str]) -> Facts:
    """Return every fact in a text and in the arguments that a program printed.

    If a fact has more than one value, the last one applies. A value for the writer's own run takes
    precedence over one for a published run. If there is more than one speed, the highest is the
    expected speed, and the lowest is the reached speed.
    """
    # Lines about losses and iterations are results, so their numbers are not arguments.
    lines = [line for line in text.splitlines() if line.count("|") < 3 and "loss" not in line]
    options = [f"--{name} {value}" for name, value in printed.items()]
    text = plain_numbers("\n".join([*lines, *options]))
    facts = _speed_facts(text, lines) | _setup_facts(text)
    own_text = own_sentences(text)
    if own_text != text:
        own_facts = _setup_facts(own_text)
        facts |= {name: own_facts[name] for name in own_facts if name != "expected.model"}
        own_speeds = _speed_facts(own_text, own_text.splitlines())
        facts = _with_expected_speeds(facts, own_speeds)
    facts["software"] = _software(text, printed)
    return facts


def _with_expected_speeds(facts: Facts, own_speeds: Facts) -> Facts:
    """Treat a speed that only other people reached as expected, if no expected speed is stated.

    A speed that the writer states stays the speed that was reached.
    """
    renamed = Facts()
    for name, value in facts.items():
        side, _, unit = name.partition(".")
        expected = f"expected.{unit}"
        is_of_others = side == "reached" and expected not in facts and name not in own_speeds
        renamed[expected if is_of_others else name] = value
    return renamed


def _setup_facts(text: str) -> Facts:
    """Return the facts about the set-up that a text states, without speeds."""
    facts = Facts()
    devices = device_count(text)
    if devices:
        facts["n_accel"] = str(devices)
    for key, pattern in _patterns():
        for value in re.findall(pattern, text, re.IGNORECASE):
            if _is_accepted(key, value):
                facts[key] = _our_value(key, value)
    nodes, devices = nodes_and_devices(text)
    if nodes:
        facts["n_accel"] = str(nodes * devices)
        facts["devices_per_node"] = str(devices)
    if re.search(_SHARDS_STATES, text, re.IGNORECASE):
        facts.setdefault("zero_stage", str(zero_stage(text.lower())))
    facts |= _network_facts(text, facts)
    facts |= _flag_facts(text)
    for name, value in phrase_facts(text).items():
        facts.setdefault(name, value)
    facts = _batch_of_tokens("micro_batch", micro_batch_tokens(text), facts)
    facts = _accumulated_batch(text, facts)
    return _batch_of_tokens("global_batch", batch_tokens(text), facts)


def _network_facts(text: str, facts: Facts) -> Facts:
    """Return the Gbit/s that each device has between nodes.

    The value is a device's share of the node network, or the usual rate over NCCL sockets.
    """
    node_network = _node_network(text)
    if node_network:
        return {"network": f"{node_network / _devices_of_node(text, facts):g}"}
    return {"network": _SOCKET_GBIT_S} if re.search(SOCKETS, text) else {}


def _is_accepted(key: str, value: str) -> bool:
    """Return whether a word that follows a fact name can be its value."""
    if key == "accelerator":
        return find_accelerator(value) is not None
    if key not in _ACCEPTED:
        return True
    return re.fullmatch(_ACCEPTED[key], value.rstrip("."), re.IGNORECASE) is not None


def _our_value(key: str, value: str) -> str:
    """Return a value in the form that the columns of `plan --predict` use."""
    if key in NUMBERS:
        return value
    plain = value.rstrip(".").lower()
    if key == "precision" and plain in _FULL_FORMATS:
        return _FULL_FORMATS[plain]
    return _OUR_VALUES.get(plain, value.rstrip("."))


def _accumulated_batch(text: str, facts: Facts) -> Facts:
    """Return the facts, with the global batch that follows from the micro-batch count."""
    count = accumulation(text)
    if not count or "global_batch" in facts or not {"micro_batch", "n_accel"} <= set(facts):
        return facts
    split = math.prod(int(facts.get(name, "1")) for name in ("tp", "pp", "cp"))
    replicas = max(1, int(facts["n_accel"]) // max(1, split))
    global_batch = count * int(facts["micro_batch"]) * replicas
    return facts | {"global_batch": str(global_batch)}


def _batch_of_tokens(name: str, tokens: float, facts: Facts) -> Facts:
    """Return the facts, with a batch of this many tokens converted to sequences.

    0 tokens means that no number was given. If the token count was also read as a sequence count,
    the latter is dropped, even if the sequence length is unknown.
    """
    figure = f"{tokens:.0f}"
    if not tokens or facts.get(name, figure) != figure:
        return facts
    other_facts = {key: value for key, value in facts.items() if key != name}
    if "seq_len" not in facts:
        return other_facts
    sequences = max(1, round(tokens / int(facts["seq_len"])))
    return other_facts | {name: str(sequences)}


def _flag_facts(text: str) -> Facts:
    """Return the facts that options without a value set."""
    facts = Facts()
    for name, key in _FLAGS:
        for flag, value in option_flags(key).items():
            if is_stated(_flag_pattern(flag), text):
                facts[name] = value
    return facts


def _node_network(text: str) -> float:
    """Return the node network bandwidth in Gbit/s that a text states, or 0.

    >>> _node_network("no InfiniBand, only 40Gbps ethernet"), _node_network("up to 10 Gbps networking")
    (40.0, 10.0)
    >>> _node_network("8x 400 Gb/s InfiniBand network per node"), _node_network("2 GB/s bandwidth")
    (3200.0, 0.0)
    """
    match = re.search(_NETWORK, text, re.IGNORECASE)
    if match is None:
        return 0.0
    adapters = int(match[1] or 1)
    return adapters * float(match[2])


def _devices_of_node(text: str, facts: Facts) -> int:
    """Return how many devices share the network bandwidth on a node.

    The text may state the number. Otherwise it depends on the accelerator.
    """
    match = re.search(r"(?:nproc[_-]per[_-]node|gpus[_-]per[_-]node)[=\s]+(\d+)", text)
    match = match or re.search(r"\((\d+) [\w ]{0,12}(?:each|per node)\)", text)
    if match:
        return int(match[1])
    device = find_accelerator(facts.get("accelerator", ""))
    return device.devices_per_node if device else 1


def _speed_facts(text: str, lines: Sequence[str]) -> Facts:
    """Return the highest speed as the expected speed, and the lowest as the reached speed."""
    stated = dict[str, list[str]]()
    for unit, pattern in _SPEEDS.items():
        matches = re.finditer(pattern, text, re.IGNORECASE)
        stated[unit] = [match[match.lastindex or 0] for match in matches]
    stated["mfu"] = []
    for line in lines:
        if "MFU" in line:
            stated["mfu"] += re.findall(r"(\d+(?:\.\d+)?) ?%", line)
    peaks = _peaks(text)
    facts = Facts()
    for unit, figures in stated.items():
        plain = [_plain_figure(figure) for figure in figures]
        if unit == "tflops":
            plain = [figure for figure in plain if not _is_among(float(figure), peaks)]
        ascending = sorted(plain, key=float)
        if ascending:
            facts[f"reached.{unit}"] = ascending[0]
        if len(ascending) > 1:
            facts[f"expected.{unit}"] = ascending[-1]
    times = step_seconds(text)
    if times and not facts:
        facts["reached.seconds"] = f"{times[-1]:g}"
        if len(times) > 1:
            facts["expected.seconds"] = f"{times[0]:g}"
    return facts


class DoubledPeak(NamedTuple):
    """A figure in a text that is twice the peak for a device that the text names."""

    tflops: float
    reason: str


def doubled_peak(text: str) -> DoubledPeak | None:
    """Return the first figure in a text that equals twice the 16-bit peak of a named device.

    The figure is the peak with sparsity, or that for a card with two devices. Dense fp8 training
    has the same peak as sparse 16-bit products, so the result is None for a text about fp8.

    >>> doubled_peak("420 of 1979 TFLOP/s on H200").tflops
    1979.0
    >>> doubled_peak("1979 TFLOP/s in fp8 on H200")
    >>> doubled_peak("120 of 383 TFLOP/s on MI250X").reason
    'the peak of a card that counts as two devices'
    """
    if is_stated(_FP8, text):
        return None
    sparse_peaks = [2 * peak for peak in _dense_peaks(text, _WITH_SPARSITY)]
    card_peaks = [2 * peak for peak in _dense_peaks(text, _OF_TWO_DEVICES)]
    for figure in re.findall(_PEAK_FIGURE, text, re.IGNORECASE):
        tflops = float(_plain_figure(figure))
        if _is_among(tflops, sparse_peaks):
            return DoubledPeak(tflops, "the peak with sparsity, which no training run uses")
        if _is_among(tflops, card_peaks):
            return DoubledPeak(tflops, "the peak of a card that counts as two devices")

    return None


def _peaks(text: str) -> list[float]:
    """Return the 16-bit peaks for the devices that a text names, and twice these peaks."""
    dense_peaks = _dense_peaks(text, _WITH_SPARSITY + _OF_TWO_DEVICES)
    return dense_peaks + [2 * peak for peak in dense_peaks]


def _dense_peaks(text: str, families: Sequence[str]) -> list[float]:
    """Return the dense 16-bit peaks for the devices in a text that belong to these families."""
    devices = [find_accelerator(name) for name in re.findall(_DEVICE, text)]
    return [device.peaks["bf16"] for device in devices if device and device.family in families]


def _is_among(figure: float, peaks: Sequence[float]) -> bool:
    """Return whether a figure equals one of the peaks, as rounded in datasheets."""
    return any(abs(figure / peak - 1) < _ROUNDED_PEAK for peak in peaks)


def _plain_figure(figure: str) -> str:
    """Return a figure without separators between thousands.

    >>> _plain_figure("3.7k"), _plain_figure("53K"), _plain_figure("14,451."), _plain_figure("420.5")
    ('3700', '53000', '14451', '420.5')
    """
    plain = figure.strip(".").replace(",", "").lower()
    if not plain.endswith("k"):
        return plain
    return f"{1000 * float(plain[:-1]):g}"


def _patterns() -> list[tuple[str, str]]:
    """Return a pattern for each fact.

    Later patterns for a fact take precedence over earlier ones.
    """
    patterns = [
        ("accelerator", _DEVICE),
        ("model", _MODEL),
        ("expected.model", _MODEL),
    ]
    patterns += WAYS_TO_WRITE
    patterns += [(fact.name, _named_value(_names(fact), _NUMBER_VALUE)) for fact in _NUMBERS]
    patterns += [(fact.name, _named_value(_names(fact), _TEXT_VALUE)) for fact in _TEXTS]
    return patterns


def _names(fact: _Fact) -> str:
    """Return every name for a fact, separated by `|`."""
    names = [fact.words] if fact.words else []
    if fact.key:
        # A single word such as layers is not used as a name, because sentences also contain it.
        names += [name for name in option_names(fact.key) if "_" in name]
    return "|".join(name for name in names if name not in _TOO_GENERAL)


def _flag_pattern(flag: str) -> str:
    """Return a pattern for an option without a value, unless it is printed as False."""
    return rf"--{flag.replace('_', '[_-]')}\b(?!-)(?!\s+false)"


def _named_value(names: str, value: str) -> str:
    """Return a pattern for a value after one of its names. Parts of longer names do not match."""
    any_separator = names.replace("_", "[ _-]?")
    return rf"(?<![a-z])(?<![a-z][_-])(?:{any_separator}){value}"


def _software(text: str, printed: Mapping[str, str]) -> str:
    """Return the program that wrote a text, or '' if nothing identifies it."""
    if re.search(_NEMO, text):
        return "nemo"
    if printed or re.search(_MEGATRON, text, re.IGNORECASE):
        return "megatron-core"
    return ""

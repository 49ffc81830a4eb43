"""Facts about a training that a log, a command line, a YAML file, a question or --set states."""

import re
from collections.abc import Mapping, Sequence

from runbook.core.errors import ParamsError
from runbook.params.schema.keys import nearest
from runbook.planning.cost.accelerators import find_accelerator
from runbook.planning.cost.step_inputs import code_of
from runbook.planning.layout import Choice

Facts = dict[str, str]
"""What is known, under the names of the columns of `plan --predict` and some more."""

NUMBERS = {
    "tp": "tensor_model_parallel_size|TP(?:_size)?",
    "pp": "pipeline_model_parallel_size|PP(?:_size)?",
    "dp": "data_parallel_size|DP",
    "cp": "context_parallel_size|CP",
    "vp": "virtual_pipeline_model_parallel_size|VPP?",
    "layers": "num_layers|n_layers",
    "hidden": "hidden_size|d_model",
    "heads": "num_attention_heads|n_heads",
    "kv_heads": "num_query_groups",
    "ffn": "ffn_hidden_size",
    "vocabulary": "(?:padded_)?vocab_size",
    "seq_len": "(?:encoder_)?seq_length|(?:max_)?seq_len|sequence_length",
    "save_interval": "save_interval",
    "micro_batch": "(?:device_train_)?micro_?batch(?:_size)?|MBS",
    "n_accel": "world_size|trainer.devices",
    "global_batch": "global_(?:train_)?batch(?:_size)?|GBS",
    "experts": "num_experts",
    "experts_a_token": "moe_router_topk",
    "experts_over": "expert_model_parallel_size|EP",
}
"""Names that programs and people use for a number: printed, as an option, in YAML or in a sentence.

`_` stands for any separator.
"""
_TEXTS = {
    "recompute": "recompute_granularity|activations_checkpoint_granularity"
    "|activation_checkpointing",
    "precision": "params_dtype|precision",
    "zero_stage": "sharding_strategy",
    "sequence": "sequence_parallel",
    "flash": "use_flash_attn|attn_impl",
    "overlap_gradients": "overlap_grad_reduce",
    "weights": "megatron_amp_O2",
    "dispatcher": "moe_token_dispatcher_type",
}
_NUMBER_VALUE = r"[\s=:.*\"']*(\d+)\b"
_TEXT_VALUE = r"[\s=:]+(?!-)([\w.]+)"
_OUR_VALUES = {
    "torch.float32": "fp32",
    "full_shard": "3",
    "shard_grad_op": "2",
    "torch": "no",
    "true": "full",
}
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
"""Columns by the last word of a run file's key, where the column has another name."""
_SPEEDS = {
    "tflops": r"(\d+(?:\.\d+)?)\W*(?:model )?TFLOPs?\b(?!\s*(?:/|per|a)\s*(?:token|step|sample|sequence|iteration|pass))",
    "tokens_per_second": r"(\d[\d,.]*k?)\W*tok(?:en)?s?\s*(?:/|per)\s*s",
}
_UNITS = (*_SPEEDS, "mfu", "seconds")
KEYS = [
    *NUMBERS,
    *_TEXTS,
    "activation",
    "accelerator",
    "code",
    "network",
    "model",
    "expected.model",
    *(f"expected.{unit}" for unit in _UNITS),
    *(f"reached.{unit}" for unit in _UNITS),
]
"""Keys that `--set` takes, also under a run file's own key (parallel.tensor for tp)."""
NEEDED = (
    "accelerator=H100-SXM5",
    "n_accel=16",
    "layers=32",
    "hidden=4096",
    "tp=8",
    "micro_batch=1",
    "global_batch=64",
)
"""Examples of the facts without which an explanation has to assume something."""
_DEVICE = r"(?<![A-WYZa-wyz0-9])((?:GB?|[ABHV]|MI)\d{2,3}X?(?:[ _-]?(?:SXM\d?|PCIe|NVL|\d+ ?GB))*)"
_MODEL = (
    r"\b((?:(?:llama|gpt|mpt|opt|qwen|bloom|falcon|mi[sx]tral)[- ]?(?:\d(?:\.\d)?[- ])?)?"
    r"\d+(?:\.\d+)?[BM])\b"
)
_DEVICE_COUNT = r"(\d+) ?(?:x|×)? ?(?:GPUs?\b|(?:NVIDIA )?[ABHV]\d00)"
_NODES_OF_DEVICES = (
    r"(\d+) ?(?:x|×)? ?nodes?,? ?(?:of|with|x|×|each with|having)? ?(\d+) ?(?:x|×)? ?"
    r"(?:GPUs?\b|devices?\b|(?:NVIDIA )?(?:GB?|[ABHV])\d{2,3})"
)
"""Nodes, and the devices of each: "2 nodes of 8 A100"."""
SOCKETS = (
    r"NET/Socket|Using network Socket|NCCL_IB_DISABLE=1|NET/IB : No device"
    r"|\b(?:no|without|lacks?) (?:Infini[Bb]and|IB|RDMA)\b"
)
"""What says that NCCL's messages go through sockets."""
_SOCKET_GBIT_S = "10"
"""Usual bandwidth where NCCL uses sockets."""
_FLAGS = (("precision", "bf16"), ("precision", "fp16"), ("activation", "swiglu"))
_MEGATRON = r"--tensor-model-parallel|--recompute-granularity|megatron-(lm|core)"
_NEMO = r"NeMo|trainer\.devices"


def read_words(words: Sequence[str]) -> Facts:
    """Return the facts of `--set KEY=VALUE`.

    Raise `ParamsError` for an unknown key, with the nearest ones, and for a number that is none.
    """
    facts = Facts()
    for word in words:
        key, _, value = word.partition("=")
        last_part = key.rpartition(".")[2]
        name = key if key in KEYS else _COLUMNS.get(last_part, last_part)
        if not value or name not in KEYS:
            near = ", ".join(nearest(key, KEYS) or KEYS)
            raise ParamsError(f"--set {word}: explain takes KEY=VALUE. Nearest: {near}.")
        is_numeric = name in NUMBERS or name.rpartition(".")[2] in _UNITS
        if is_numeric and not re.fullmatch(r"\d+(\.\d+)?", value):
            raise ParamsError(
                f"--set {word}: {name} is a number without unit or sign. Write --set {name}=128."
            )
        facts[name] = value
    return facts


def facts_of_run(choice: Choice) -> Facts:
    """Return the facts of a run file's training."""
    stated = {
        **dict(choice.training),
        **vars(choice.shape),
        **vars(choice),
        "model": choice.model_name,
    }
    facts = Facts()
    for key, value in stated.items():
        name = _COLUMNS.get(key, key)
        if name in KEYS:
            facts[name] = str(value)
    if choice.training.fp8 != "none":
        facts["precision"] = "fp8"
    facts["accelerator"] = choice.site.hardware.device
    facts["n_accel"] = str(choice.world_size)
    facts["code"] = code_of(choice)
    return facts


def read_facts(text: str, printed: Mapping[str, str]) -> Facts:
    """Return everything that a text and the printed arguments of a program state.

    Of several values the last one counts. Of several speeds the highest was expected and the lowest
    was reached.
    """
    # Lines of losses and of iterations are results. Their numbers are no arguments.
    lines = [line for line in text.splitlines() if line.count("|") < 3 and "loss" not in line]
    options = [f"--{name} {value}" for name, value in printed.items()]
    text = "\n".join([*lines, *options])
    facts = _speed_facts(text, lines)
    for key, pattern in _patterns():
        for value in re.findall(pattern, text, re.IGNORECASE):
            if key != "accelerator" or find_accelerator(value):
                facts[key] = _OUR_VALUES.get(value.lower(), value)
    for nodes, devices in re.findall(_NODES_OF_DEVICES, text, re.IGNORECASE):
        facts["n_accel"] = str(int(nodes) * int(devices))
    if re.search(SOCKETS, text):
        facts["network"] = _SOCKET_GBIT_S
    for key, flag in _FLAGS:
        if re.search(rf"--{flag}\b(?! false)", text, re.IGNORECASE):
            facts[key] = flag
    facts["software"] = _software(text, printed)
    return facts


def _speed_facts(text: str, lines: Sequence[str]) -> Facts:
    """Return the highest of several speeds as expected, and the lowest as reached."""
    stated = {unit: re.findall(pattern, text, re.IGNORECASE) for unit, pattern in _SPEEDS.items()}
    stated["mfu"] = []
    for line in lines:
        if "MFU" in line:
            stated["mfu"] += re.findall(r"(\d+(?:\.\d+)?) ?%", line)
    facts = Facts()
    for unit, figures in stated.items():
        plain = [_plain_figure(figure) for figure in figures]
        ascending = sorted(plain, key=float)
        if ascending:
            facts[f"reached.{unit}"] = ascending[0]
        if len(ascending) > 1:
            facts[f"expected.{unit}"] = ascending[-1]
    return facts


def _plain_figure(figure: str) -> str:
    """Return a figure without separators and thousands.

    >>> _plain_figure("3.7k"), _plain_figure("14,451."), _plain_figure("420.5")
    ('3700', '14451', '420.5')
    """
    plain = figure.strip(".").replace(",", "")
    if not plain.endswith("k"):
        return plain
    return f"{1000 * float(plain[:-1]):g}"


def _patterns() -> list[tuple[str, str]]:
    """Return a pattern for each fact. A later pattern of the same fact wins."""
    patterns = [
        ("n_accel", _DEVICE_COUNT),
        ("accelerator", _DEVICE),
        ("model", _MODEL),
        ("expected.model", _MODEL),
    ]
    patterns += [(key, _named_value(names, _NUMBER_VALUE)) for key, names in NUMBERS.items()]
    patterns += [(key, _named_value(names, _TEXT_VALUE)) for key, names in _TEXTS.items()]
    return patterns


def _named_value(names: str, value: str) -> str:
    """Return a pattern for a value after one of its names, which is no part of a longer name."""
    any_separator = names.replace("_", "[ _-]?")
    return rf"(?<![a-z])(?<![a-z][_-])(?:{any_separator}){value}"


def _software(text: str, printed: Mapping[str, str]) -> str:
    """Return the program that a text is from, or '' if nothing says it."""
    if re.search(_NEMO, text):
        return "nemo"
    if printed or re.search(_MEGATRON, text, re.IGNORECASE):
        return "megatron-core"
    return ""

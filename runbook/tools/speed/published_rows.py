"""Published results as the table of published_results.csv words them: what a row says, in our own terms.

Optional columns (`micro_batch`, `vp`, `layers`, `code`, ...) win over the words in `software`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from runbook.planning.cost.accelerators import find_accelerator
from runbook.planning.sizes import Cut

NEEDED = ("model", "accelerator")
"""Without these columns a file is no such table."""

_PRECISIONS = {
    "fp8": "fp8",
    "nvfp4": "",
    "fp4": "",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "tf32": "tf32",
    "fp32": "fp32",
}
_RECOMPUTE = (
    (
        r"act(ivation)?[ _.-]*(ckpt|checkpoint)\w*\s*=\s*false|no act\w*\.? ckpt|no recompute",
        "none",
    ),
    (r"selective (recompute|activation)", "selective"),
    (
        r"act(ivation)?[ _.-]*(ckpt|checkpoint)\w*\s*=\s*true|full (recomput(e|ation)|ac\b|activation)",
        "full",
    ),
    (r"\bsac\b|torchtitan", "operators"),
    (r"factor 3|no act", "none"),
    (r"factor 4|narayanan|\bhfu\)|megatron-deepspeed|bigscience|metaseq|argonne", "full"),
)
_SIZES = {
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "ffn": "ffn_hidden",
    "vocabulary": "vocabulary",
}
_YES_OR_NO = dict.fromkeys(("1", "yes", "true", "on"), "yes") | dict.fromkeys(
    ("0", "no", "false", "off"), "no"
)
_WORDS = {
    "recompute": {word: word for word in ("none", "selective", "operators", "full")}
    | {"some": "operators"},
    "zero_stage": {word: word for word in "0123"},
    "code": {word: word for word in ("fused", "unfused", "eager", "tuned")},
    "flash": _YES_OR_NO | {"2": "yes", "3": "yes"},
    "cuda_graphs": _YES_OR_NO | {"none": "no", "full": "yes"},
    "fp8_recipe": {
        word: word for word in ("delayed", "tensorwise", "current", "blockwise", "mxfp8", "hybrid")
    },
}
"""Words of the optional columns; all recipes of fp8 are planned alike."""
_MOST = 1e9
"""A larger number in a cell is a slip and says nothing."""
_VENDOR = r"nemo|meta internal|megascale|transformer engine|megatron-(bridge|core)|mlperf|nvidia\b(?!.*deepspeed)"
_OLD = r"megatron-lm v[12]\b|megatron-lm v2|bigscience|metaseq|deepspeed 0\.[0-9]\.|rocm 5"


@dataclass(frozen=True)
class PublishedRow(Cut):
    """One row; 0 or an empty word where it does not say."""

    number: int
    """1 for the first below the head."""
    model: str
    billions: float
    accelerator: str
    devices: int
    precision: str
    sequence_length: int
    data: int
    convention: str
    recompute: str
    flash: bool
    code: str
    cuda_graphs: bool
    network: float
    """Gbit/s of one device between nodes."""
    sizes: Mapping[str, int]
    """Of the model, by the catalogue's names: layers, hidden, heads, kv_heads, ffn_hidden, vocabulary."""
    unknown: tuple[str, ...]
    """Cells of the optional columns that were not understood, and so not used."""


def read_row(number: int, cells: Mapping[str, str | None]) -> PublishedRow:
    """The row in our terms; unknown words and empty cells leave a field unsaid."""

    def cell(name: str) -> str:
        return (cells.get(name) or "").strip()

    def count(name: str) -> int:
        return int(_number(cell(name)))

    unknown: list[str] = []

    def word(name: str) -> str:
        said = cell(name).lower().removesuffix(".0")
        if said and said not in _WORDS[name]:
            unknown.append(f"{name} {cell(name)}")
        return _WORDS[name].get(said, "")

    def size(name: str) -> int:
        if cell(name) and not count(name):
            unknown.append(f"{name} {cell(name)}")
        return count(name)

    flash = word("flash")
    graphs = word("cuda_graphs")
    _ = word("fp8_recipe")
    network = re.fullmatch(r"(\d+(?:\.\d+)?) ?(gb/s|gbps|gbit/s)?", cell("network").lower())
    if cell("network") and not network:
        unknown.append(f"network {cell('network')}")
    said = " ".join(cell(name) for name in ("software", "flops_convention", "note")).lower()
    context = " ".join((cell("software"), cell("note"))).lower()
    tensor = _after(r"(?:\btp ?=? ?|xtp)(\d+)", context) or (8 if "megatron tp" in context else 0)
    return PublishedRow(
        number=number,
        model=cell("model"),
        billions=_number(cell("params_b")) or billions_in(cell("model")),
        accelerator=cell("accelerator"),
        devices=_devices(cell("n_accel"), cell("accelerator")),
        precision=_precision(cell("precision"), context),
        sequence_length=count("seq_len"),
        global_batch=count("global_batch"),
        tensor=count("tp") or tensor,
        pipeline=count("pp") or _after(r"(?:\bpp ?=? ?|xpp)(\d+)", context),
        data=count("dp") or _after(r"fsdp ?(\d+) ?x", context),
        context=count("cp") or 1,
        virtual_pipeline=size("vp") or _after(r"\bvp[p]?[ =]*(\d+)", context) or 1,
        micro_batch=size("micro_batch")
        or _after(r"(?:micro-batch|local batch|mbs)[ =:]*(\d+)", context)
        or _after(r"\bb=(\d+) per", context),
        convention=convention(cell("flops_convention"), cell("software"), cell("date")),
        recompute=word("recompute")
        or next((name for pattern, name in _RECOMPUTE if re.search(pattern, said)), ""),
        zero_stage=int(word("zero_stage") or zero_stage(context)),
        flash=flash == "yes" if flash else has_flash(context, cell("date")),
        code=word("code") or code(context),
        cuda_graphs=graphs == "yes",
        network=float(network[1]) if network else 0.0,
        sizes={name: size(column) for column, name in _SIZES.items()},
        unknown=tuple(unknown),
    )


def billions_in(model: str) -> float:
    """Parameters a name gives, in billions; 0 where it gives none.

    >>> billions_in("GPT-3 13B"), billions_in("MPT 760M"), billions_in("GPT 1T"), billions_in("Llama")
    (13.0, 0.76, 1000.0, 0.0)
    """
    match = re.search(r"(?<![\d.])(\d+(?:\.\d+)?) ?([MBT])\b", model, re.IGNORECASE)
    return float(match[1]) * {"M": 1e-3, "B": 1.0, "T": 1e3}[match[2].upper()] if match else 0.0


def convention(text: str, software: str = "", date: str = "") -> str:
    """The name in `flops.CONVENTIONS` that a source's words mean; what it does not say, its software's usual one.

    >>> convention("Megatron-DeepSpeed factor 4, V=250880"), convention("6N + 12 l d s per token")
    ('megatron-deepspeed-f4', 'llm-foundry')
    >>> convention("", "Megatron-LM core 0.12", "2025-06"), convention("", "", "")
    ('megatron-causal', 'megatron-full')
    """
    said = text.lower()
    made = software.lower()
    for pattern, name in (
        (r"narayanan|\(hfu\)|96 ?b ?s ?l", "narayanan-2021"),
        (r"factor 4", "megatron-deepspeed-f4"),
        (r"factor 3", "megatron-deepspeed-f3"),
        (r"causal", "megatron-causal"),
        (r"6 ?n ?\(non|heads head_dim", "torchtitan"),
        (r"8 ?n ?\+ ?16", "llm-foundry-hardware"),
        (r"llm-foundry|12 ?l ?[dh] ?s", "llm-foundry"),
        (r"palm|paper table|mfu\)", "palm"),
        (r"^6 ?n( per token)?$", "six-n"),
        (r"full s\^2|full[- ]attention|2205\.05198|app\. a", "megatron-full"),
        (r"throughput_calculator|megatron-deepspeed", "megatron-deepspeed-f4"),
    ):
        if re.search(pattern, said):
            return name
    if re.search(r"deepspeed|metaseq|bigscience", made):
        if "num_floating" in said and date >= "2025-03":
            return "megatron-causal"
        return "megatron-deepspeed-f4"
    if re.search(r"llm-foundry|composer", made):
        return "llm-foundry"
    if "torchtitan" in made:
        return "torchtitan"
    recent = re.search(r"core (0\.1[2-9]|0\.2|1\.)|nemo 25\.(09|1)|nemo 26|megatron-bridge", made)
    if recent or ("num_floating" in said and date >= "2025-03"):
        return "megatron-causal"
    return "megatron-full"


def zero_stage(said: str) -> int:
    """Which states are shared over the copies.

    >>> [zero_stage(word) for word in ("fsdp full_shard", "shard_grad_op", "zero-2", "torch ddp", "megatron-lm")]
    [3, 2, 2, 0, 1]
    """
    if match := re.search(r"zero[- ]?(?:stage[- ]?)?([0-3])", said):
        return int(match[1])
    if "shard_grad_op" in said:
        return 2
    if "fsdp" in said or "torchtitan" in said:
        return 3
    return 0 if re.search(r"\bddp\b", said) else 1


def has_flash(said: str, date: str) -> bool:
    """Whether attention keeps no scores: where it says so, else by its age (fused attention spread from 2023 on)."""
    if re.search(r"(without|no) flash", said) and not re.search(r"flash attention \(", said):
        return False
    if re.search(r"flash|sdpa|transformer engine", said):
        return True
    if re.search(_OLD, said) and "llm-foundry" not in said:
        return False
    year = re.search(r"20\d\d", date)
    return not year or int(year[0]) >= 2023


def code(said: str) -> str:
    """How well a software's layers are fused: unfused, eager, fused or tuned."""
    if "eager" in said:
        return "eager"
    if re.search(r"(?<!bigscience megatron-)deepspeed|gpt-neox|hugging ?face", said):
        return "unfused"
    return "tuned" if re.search(_VENDOR, said) else "fused"


def _number(text: str) -> float:
    match = re.match(r"\s*~?(\d[\d,]*(?:\.\d+)?(?:e\d+)?)", text, re.IGNORECASE)
    value = float(match[1].replace(",", "")) if match else 0.0
    return value if value <= _MOST else 0.0


def _devices(text: str, accelerator: str) -> int:
    count = int(_number(text))
    if "node" not in text.lower():
        return count
    device = find_accelerator(accelerator)
    return count * device.devices_per_node if device else 0


def _precision(text: str, said: str) -> str:
    plain = text.lower()
    named = next((name for word, name in _PRECISIONS.items() if word in plain), plain)
    if text:
        return named
    return next((name for word, name in _PRECISIONS.items() if word in said), "bf16")


def _after(pattern: str, said: str) -> int:
    match = re.search(pattern, said)
    return int(match[1]) if match else 0

"""Reads rows from a table of published results, such as published_results.csv.

Optional columns (`micro_batch`, `vp`, `layers`, `code`, ...) take precedence over words in
`software`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runbook.plan_file.schema import Layout
from runbook.planning.cost.accelerators import find_accelerator

NEEDED = ("model", "accelerator")
"""Columns required in a table of published results."""

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
_ACTIVATION_CHECKPOINTS = r"act(ivation)?[ _.-]*(ckpt|checkpoint)\w*\s*="
_RECOMPUTE = (
    (rf"{_ACTIVATION_CHECKPOINTS}\s*false|no act\w*\.? ckpt|no recompute", "none"),
    (r"selective (recompute|activation)", "selective"),
    (rf"{_ACTIVATION_CHECKPOINTS}\s*true|full (recomput(e|ation)|ac\b|activation)", "full"),
    (r"\bsac\b|torchtitan", "operators"),
    (r"factor 3|no act", "none"),
    (r"factor 4|narayanan|\bhfu\)|megatron-deepspeed|bigscience|metaseq|argonne", "full"),
)
"""Patterns for the words that sources use about recomputation. The first matching pattern
applies."""
_SIZES = {
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "ffn": "ffn_hidden",
    "vocabulary": "vocabulary",
}
"""Names that the catalogue has for model sizes, by column."""
_YES_OR_NO = {
    "1": "yes",
    "yes": "yes",
    "true": "yes",
    "on": "yes",
    "0": "no",
    "no": "no",
    "false": "no",
    "off": "no",
}
_FP8_RECIPES = ("delayed", "tensorwise", "current", "blockwise", "mxfp8", "hybrid")


def _as_they_are(*values: str) -> dict[str, str]:
    """Return a mapping from each word to itself."""
    return {value: value for value in values}


_WORDS = {
    "recompute": {**_as_they_are("none", "selective", "operators", "full"), "some": "operators"},
    "zero_stage": _as_they_are("0", "1", "2", "3"),
    "code": _as_they_are(
        "fused", "unfused", "eager", "tuned", "plain", "compiled", "compiled-dropout"
    ),
    "flash": {**_YES_OR_NO, "2": "yes", "3": "yes"},
    "cuda_graphs": {**_YES_OR_NO, "none": "no", "full": "yes"},
    "overlap_tensor": _YES_OR_NO,
    "fp8_recipe": _as_they_are(*_FP8_RECIPES),
}
"""The words that each optional column accepts, and their meanings."""
_VOCABULARY = r"\bv(?:ocab(?:ulary)?)?[ =]+(\d{4,})"
"""Phrases that state the vocabulary size: "vocab 131072", "V=250880"."""
_RECIPES_IN_WORDS = ((r"mx[- ]?fp8|fp8[- ]mx", "mxfp8"), (r"fp8[- ]?blockwise", "blockwise"))
"""Words in a source that name an FP8 recipe, each with the recipe.

All other recipes are equally costly.
"""
_NUMBER_WORDS = {"one": 1, "two": 2, "four": 4, "six": 6, "eight": 8}
_LARGEST_NUMBER = 1e9
"""A larger number in a cell is ignored as a typing error."""
_TUNED_SOFTWARE = (
    r"nemo|meta internal|megascale|transformer engine|megatron-(bridge|core)|mlperf"
    r"|nvidia\b(?!.*deepspeed)"
)
_OLD_SOFTWARE = r"megatron-lm v[12]\b|megatron-lm v2|bigscience|metaseq|deepspeed 0\.[0-9]\.|rocm 5"
_CONVENTIONS = (
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
)
"""Names in `flops.CONVENTIONS`, by words in a source. The first matching pattern applies."""
_CAUSAL_SOFTWARE = r"core (0\.1[2-9]|0\.2|1\.)|nemo 25\.(09|1)|nemo 26|megatron-bridge"
"""Versions that count half of the attention operations, because attention is causal."""
_MEGATRONS_LOSS = r"megatron-(lm|core|deepspeed)|bigscience|gpt-neox"
_FUSED_LOSS_OF_NEMO = "2024"
"""NeMo 1.23 from early 2024 still calls Megatron's loss (nemo/collections/nlp, gpt_model.py)."""
_EARLY_STOP = "2023-10"
"""Date of PyTorch 2.1, the first version in which recomputation stops early."""
_SECOND_VENDOR_ATTENTION = "2024-09"
"""Date since which NVIDIA's releases contain cuDNN 9.3, or a later version."""
_SECOND_BLACKWELL = "2025-08"
"""Date since which NVIDIA's releases contain CUDA 13, or a later version."""
_FITTED_PROGRAMS = (
    r"nemo|megatron|mlperf|nvidia|llm-foundry|torchtitan|fms-fsdp|deepspeed|bigscience|gpt-neox"
    r"|nanogpt|metaseq|meta internal"
)
"""Programs that the step model was fitted to, each with rows in the fit."""
_BILLIONS = {"M": 1e-3, "B": 1.0, "T": 1e3}


@dataclass(frozen=True)
class PublishedRow:
    """A row in the table.

    Values that the row does not state, including layout sizes, are 0 or an empty string.
    """

    number: int
    """Number of the row. The first row below the header has number 1."""
    model: str
    billions: float
    accelerator: str
    precision: str
    sequence_length: int
    layout: Layout
    micro_batch: int
    global_batch: int
    convention: str
    recompute: str
    flash: bool
    code: str
    interleaves: bool
    """Whether the software's recipes interleave stages, if the row does not state it."""
    overlaps_tensor: bool
    half_sums: bool
    first_sharding: bool
    has_ddp_buckets: bool
    first_megatron: bool
    launches_block: bool
    has_no_overlap: bool
    """Whether the source says that no computation hides the replicas' communication."""
    stops_early: bool
    fused_loss: bool
    first_flash: bool
    cuda_graphs: bool
    plain_activation: bool
    fp8_recipe: str
    first_vendor_attention: bool
    first_blackwell: bool
    is_other_program: bool
    experts: int
    """Number of experts per layer. The model is dense if this is 0 or 1."""
    head_width: int
    """Width of an attention head, or 0 for hidden / heads."""
    devices_per_node: int
    """Number of devices per node in this system, or 0 for the number usual for the device."""
    network: float
    """Gbit/s per device between nodes."""
    sizes: Mapping[str, int]
    """Model sizes, by the names in the catalogue.

    The names are layers, hidden, heads, kv_heads, ffn_hidden and vocabulary.
    """
    unknown: tuple[str, ...]
    """Cells in optional columns that were not understood and are not used."""


class _Cells:
    """The cells in a row, and a note on each cell that was not understood."""

    def __init__(self, cells: Mapping[str, str | None]) -> None:
        self._cells = cells
        self.unknown: list[str] = []

    def text(self, name: str) -> str:
        """Return a cell without surrounding spaces, or '' if it is empty or missing."""
        return (self._cells.get(name) or "").strip()

    def count(self, name: str) -> int:
        """Return the number at the beginning of a cell, or 0."""
        return int(_number(self.text(name)))

    def size(self, name: str) -> int:
        """Return the number in an optional column, or 0. Add a note for a cell without a number."""
        count = self.count(name)
        if self.text(name) and not count:
            self._note(name)
        return count

    def word(self, name: str) -> str:
        """Return our word for a cell in an optional column, or ''.

        Add a note for an unknown word.
        """
        text = self.text(name).lower().removesuffix(".0")
        if text and text not in _WORDS[name]:
            self._note(name)
        return _WORDS[name].get(text, "")

    def gbit_s(self, name: str) -> float:
        """Return a bandwidth in Gbit/s, or 0. Add a note for a cell that is not a bandwidth."""
        text = self.text(name)
        bandwidth = re.fullmatch(r"(\d+(?:\.\d+)?) ?(gb/s|gbps|gbit/s)?", text.lower())
        if bandwidth:
            return float(bandwidth[1])
        if text:
            self._note(name)
        return 0.0

    def _note(self, name: str) -> None:
        self.unknown.append(f"{name} {self.text(name)}")


def read_row(number: int, cells: Mapping[str, str | None]) -> PublishedRow:
    """Return the row with our names for its values.

    Unknown words and empty cells count as missing.
    """
    row = _Cells(cells)
    software = row.text("software")
    note = row.text("note")
    context = " ".join((software, note)).lower()
    stated = " ".join((software, row.text("flops_convention"), note)).lower()
    # Cells with words are read first, because `unknown` lists them in this order.
    flash = row.word("flash")
    cuda_graphs = row.word("cuda_graphs")
    overlap_tensor = row.word("overlap_tensor")
    fp8_recipe = row.word("fp8_recipe")
    network = row.gbit_s("network")
    devices_per_node = row.size("devices_per_node") or _devices_of_node(context)
    virtual_pipeline = row.size("vp") or _number_after(r"\bvp[p]?[ =]*(\d+)", context)
    micro_batch = row.size("micro_batch") or _stated_micro_batch(context)
    recompute = row.word("recompute") or _first_match(_RECOMPUTE, stated)
    layout = Layout(
        tensor=_fitting_count(row.text("tp")) or _stated_tensor(context),
        pipeline=row.count("pp") or _number_after(r"(?:\bpp ?=? ?|xpp)(\d+)", context),
        data=row.count("dp") or _number_after(r"fsdp ?(\d+) ?x", context),
        context=row.count("cp") or 1,
        virtual_pipeline=virtual_pipeline,
        world_size=_devices(row.text("n_accel"), row.text("accelerator")),
        first_stage_layers=row.size("first_stage_layers"),
        last_stage_layers=row.size("last_stage_layers"),
        zero_stage=int(row.word("zero_stage") or zero_stage(context)),
    )
    return PublishedRow(
        number=number,
        model=row.text("model"),
        billions=_number(row.text("params_b")) or billions_in(row.text("model")),
        accelerator=row.text("accelerator"),
        precision=_precision(row.text("precision"), context),
        sequence_length=row.count("seq_len"),
        layout=layout,
        micro_batch=micro_batch,
        global_batch=row.count("global_batch"),
        convention=convention(row.text("flops_convention"), software, row.text("date")),
        recompute=recompute,
        flash=flash == "yes" if flash else has_flash(context, row.text("date")),
        code=row.word("code") or code(context),
        interleaves=has_interleaving(context),
        overlaps_tensor=(overlap_tensor == "yes" if overlap_tensor else overlaps_tensor(context)),
        half_sums=has_half_sums(context, row.text("precision")),
        first_sharding="fsdp" in context and "2000" < row.text("date") < "2024",
        has_ddp_buckets=has_ddp_buckets(context),
        first_megatron=is_first_megatron(context, row.text("date")),
        launches_block="cuda_launch_blocking=1" in context,
        has_no_overlap="no overlap" in context,
        stops_early=stops_early(context, row.text("precision"), row.text("date")),
        fused_loss=has_fused_loss(context, row.text("date")),
        first_flash=has_first_flash(context, row.text("date")),
        cuda_graphs=cuda_graphs == "yes",
        plain_activation="nemotron" in row.text("model").lower(),
        fp8_recipe=fp8_recipe or _first_match(_RECIPES_IN_WORDS, stated),
        first_vendor_attention=is_release_before(
            _SECOND_VENDOR_ATTENTION, context, row.text("date")
        ),
        first_blackwell=is_release_before(_SECOND_BLACKWELL, context, row.text("date")),
        is_other_program=is_other_program(software),
        experts=row.size("experts"),
        head_width=row.size("head_width"),
        devices_per_node=devices_per_node,
        network=network,
        sizes=_sizes(row, stated),
        unknown=tuple(row.unknown),
    )


def _sizes(row: _Cells, stated: str) -> dict[str, int]:
    """Return the sizes in the model columns. A phrase may also state the vocabulary."""
    sizes = {name: row.size(column) for column, name in _SIZES.items()}
    if not sizes["vocabulary"]:
        sizes["vocabulary"] = _number_after(_VOCABULARY, stated)
    return sizes


def _fitting_count(cell: str) -> int:
    """Return the number in a cell before the word "fits", or else its first number, or else 0.

    >>> _fitting_count("8"), _fitting_count("1 (as printed; 2 fits)"), _fitting_count("")
    (8, 2, 0)
    """
    fitting = re.search(r"(\d+) fits", cell)
    return int(fitting[1]) if fitting else int(_number(cell))


def _stated_tensor(context: str) -> int:
    """Return the tensor-parallel size that a text states, or 0.

    "Megatron TP" without a number counts as 8.
    """
    tensor = _number_after(r"(?:\btp ?=? ?|xtp)(\d+)", context)
    if not tensor and "megatron tp" in context:
        return 8
    return tensor


def _stated_micro_batch(context: str) -> int:
    """Return the micro-batch that a text states, or 0."""
    named = _number_after(r"(?:micro-batch|local batch|mbs)[ =:]*(\d+)", context)
    return named or _number_after(r"\bb=(\d+) per", context)


def billions_in(model: str) -> float:
    """Return the parameter count that a name states, in billions, or 0.

    >>> billions_in("GPT-3 13B"), billions_in("MPT 760M"), billions_in("GPT 1T"), billions_in("Llama")
    (13.0, 0.76, 1000.0, 0.0)
    """
    match = re.search(r"(?<![\d.])(\d+(?:\.\d+)?) ?([MBT])\b", model, re.IGNORECASE)
    if match is None:
        return 0.0
    return float(match[1]) * _BILLIONS[match[2].upper()]


def convention(text: str, software: str = "", date: str = "") -> str:
    """Return the name in `flops.CONVENTIONS` for the words used in a source.

    The default is the usual convention in the software.

    >>> convention("Megatron-DeepSpeed factor 4, V=250880"), convention("6N + 12 l d s per token")
    ('megatron-deepspeed-f4', 'llm-foundry')
    >>> convention("", "Megatron-LM core 0.12", "2025-06"), convention("", "", "")
    ('megatron-causal', 'megatron-full')
    """
    source_text = text.lower()
    program = software.lower()
    named = _first_match(_CONVENTIONS, source_text)
    if named:
        return named
    counts_causal = "num_floating" in source_text and date >= "2025-03"
    if re.search(r"deepspeed|metaseq|bigscience", program):
        if counts_causal:
            return "megatron-causal"
        return "megatron-deepspeed-f4"

    if re.search(r"llm-foundry|composer", program):
        return "llm-foundry"
    if "torchtitan" in program:
        return "torchtitan"
    if counts_causal or re.search(_CAUSAL_SOFTWARE, program):
        return "megatron-causal"
    return "megatron-full"


def zero_stage(text: str) -> int:
    """Return the ZeRO stage that a text describes.

    >>> [zero_stage(word) for word in ("fsdp full_shard", "shard_grad_op", "zero-2", "torch ddp", "megatron-lm")]
    [3, 2, 2, 0, 1]
    """
    stage = re.search(r"zero[- ]?(?:stage[- ]?)?([0-3])", text)
    if stage:
        return int(stage[1])
    if "shard_grad_op" in text:
        return 2
    if "fsdp" in text or "torchtitan" in text:
        return 3
    return 0 if re.search(r"\bddp\b", text) else 1


def has_flash(text: str, date: str) -> bool:
    """Return whether attention stores no scores.

    If the text does not say, the date decides, because fused attention became common after 2022.
    """
    if re.search(r"(without|no) flash", text) and not re.search(r"flash attention \(", text):
        return False
    if re.search(r"flash|sdpa|transformer engine", text):
        return True
    if re.search(_OLD_SOFTWARE, text) and "llm-foundry" not in text:
        return False
    year = re.search(r"20\d\d", date)
    return year is None or int(year[0]) >= 2023


def has_interleaving(text: str) -> bool:
    """Return whether a program's recipes interleave pipeline stages.

    NVIDIA's recipes have done so since 2021 (arXiv:2104.04473), but those in Megatron forks have
    not.

    >>> has_interleaving("megatron-lm v2.5"), has_interleaving("bigscience megatron-deepspeed")
    (True, False)
    """
    return code(text) == "tuned" or "megatron-lm" in text


def has_first_flash(text: str, date: str) -> bool:
    """Return whether fused attention is FlashAttention 1, which version 2 replaced in 2023.

    >>> has_first_flash("llm-foundry", "2023-24"), has_first_flash("flashattention-2", "2023-08")
    (True, False)
    """
    if re.search(r"flash ?attention-2|torchtitan", text):
        return False
    if "llm-foundry" in text:
        return True
    return "2000" < date < "2023-08"


def has_ddp_buckets(text: str) -> bool:
    """Return whether a program reduces gradients with PyTorch's DistributedDataParallel.

    nanotron uses it too (`ddp_bucket_cap_mb`, 25 by default).

    >>> [has_ddp_buckets(name) for name in ("nanotron 0.5", "pytorch ddp", "megatron-lm")]
    [True, True, False]
    """
    return re.search(r"nanotron|\bddp\b", text) is not None


def is_first_megatron(text: str, date: str) -> bool:
    """Return whether a program is Megatron-LM from 2021 or 2022 (`StepSetup.first_megatron`).

    >>> [is_first_megatron("megatron-lm", date) for date in ("2021-04", "2022-05", "2023", "")]
    [True, True, False, False]
    """
    return "megatron-lm" in text and "2000" < date < "2023"


def has_half_sums(text: str, precision: str) -> bool:
    """Return whether FSDP reduces gradients in 16 bits.

    llm-foundry's tables list "PURE" for rows with precision bf16, and "DEFAULT", which sums in 32
    bits, for rows with amp_bf16.

    >>> has_half_sums("llm-foundry + composer fsdp", "bf16"), has_half_sums("torchtitan", "bf16")
    (True, False)
    """
    return "pure bf16" in text or ("llm-foundry" in text and precision.strip().lower() == "bf16")


def has_fused_loss(text: str, date: str) -> bool:
    """Return whether the loss is computed by a few fused kernels.

    The loss is fused in current NeMo and in PyTorch programs, but not in Megatron-LM. NeMo in 2023
    used Megatron's loss (`step_inputs.setup_for` plans it this way). A program without a date
    counts as new.

    >>> has_fused_loss("megatron-core r0.8.0", "2024"), has_fused_loss("nemo, megatron-core", "")
    (False, True)
    >>> has_fused_loss("nemo 23.04", "2023-04")
    False
    """
    if "nemo" in text:
        return not date or date >= _FUSED_LOSS_OF_NEMO
    return not re.search(_MEGATRONS_LOSS, text)


def stops_early(text: str, precision: str, date: str) -> bool:
    """Return whether recomputation is done by PyTorch 2.1 or later, or by JAX.

    See `StepSetup.stops_early`. JAX's compiler drops unused results.

    llm-foundry measured its rows with precision bf16 using PyTorch 1.13, and those with amp_bf16
    using 2.1 (benchmarking/sweep.sh of May and October 2023). A program without a date counts as
    new.

    >>> [stops_early("llm-foundry, fsdp", name, "2023-24") for name in ("bf16", "amp_bf16")]
    [False, True]
    >>> [stops_early("fsdp", "bf16", date) for date in ("2022", "")]
    [False, True]
    """
    if "maxtext" in text:
        return True
    by_pytorch = "fsdp" in text or "torchtitan" in text
    is_first = "llm-foundry" in text and has_half_sums(text, precision)
    return by_pytorch and not is_first and (not date or date >= _EARLY_STOP)


def is_release_before(month: str, text: str, date: str) -> bool:
    """Return whether a vendor's stack is older than this month.

    The release that the text names counts, or else the date. A submission to MLPerf contains what
    becomes a release later, and a program without a date counts as new.

    >>> [is_release_before("2024-09", text, "2025") for text in ("nemo 24.07", "nemo 24.12", "nemo")]
    [True, False, False]
    >>> [is_release_before("2024-09", text, "2024-05") for text in ("nemo", "nemo (mlperf v4.0)")]
    [True, False]
    """
    if "mlperf" in text:
        return False
    release = re.search(r"nemo (2\d)\.(\d\d)", text)
    if release:
        return f"20{release[1]}-{release[2]}" < month
    return "2000" < date < month


def overlaps_tensor(context: str) -> bool:
    """Return whether tensor-parallel communication is hidden behind matrix products.

    Megatron-LM hides it only if it is configured to. NeMo recipes and MLPerf programs are.

    >>> [overlaps_tensor(name) for name in ("nemo 25.04", "megatron-lm core 0.14")]
    [True, False]
    >>> overlaps_tensor("megatron-lm core 0.14, tp-comm-overlap")
    True
    """
    if "megatron-lm" not in context:
        return True
    return "tp-comm-overlap" in context or "overlapped by hand" in context


def is_other_program(software: str) -> bool:
    """Return whether a named program is none of those that the step model was fitted to.

    >>> [is_other_program(name) for name in ("InternEvo", "Megatron-LM v2.5", "torchtitan", "")]
    [True, False, False, False]
    """
    return bool(software) and not re.search(_FITTED_PROGRAMS, software.lower())


def code(text: str) -> str:
    """Return how far a program fuses layers: unfused, eager, fused or tuned.

    A compiler fuses the layers of any program.

    >>> [code(text) for text in ("fsdp, not compiled", "hugging face, torch.compile")]
    ['eager', 'fused']
    """
    if re.search(r"eager|not compiled", text):
        return "eager"
    if re.search(r"hugging ?face.*torch\.compile", text):
        return "fused"
    if re.search(r"(?<!bigscience megatron-)deepspeed|gpt-neox|hugging ?face", text):
        return "unfused"
    return "tuned" if re.search(_TUNED_SOFTWARE, text) else "fused"


def _first_match(table: Iterable[tuple[str, str]], text: str) -> str:
    """Return the name for the first pattern that is found in the text, or ''."""
    for pattern, name in table:
        if re.search(pattern, text):
            return name

    return ""


def _number(text: str) -> float:
    """Return the number at the beginning of a text, or 0."""
    match = re.match(r"\s*~?(\d[\d,]*(?:\.\d+)?(?:e\d+)?)", text, re.IGNORECASE)
    if match is None:
        return 0.0
    number = float(match[1].replace(",", ""))
    return number if number <= _LARGEST_NUMBER else 0.0


def _devices(text: str, accelerator: str) -> int:
    """Return the device count from a cell that counts devices or nodes, or 0."""
    count = int(_number(text))
    if "node" not in text.lower():
        return count
    device = find_accelerator(accelerator)
    return count * device.devices_per_node if device else 0


def _devices_of_node(context: str) -> int:
    """Return how many devices per node a text states, or 0.

    >>> _devices_of_node("nodes of four devices"), _devices_of_node("64 nodes of 8 a100, nemo")
    (4, 8)
    >>> _devices_of_node("two nodes of the cluster")
    0
    """
    match = re.search(rf"\bnodes of (\d+|{'|'.join(_NUMBER_WORDS)})\b", context)
    if match is None:
        return 0
    return _NUMBER_WORDS.get(match[1]) or int(match[1])


def _precision(text: str, context: str) -> str:
    """Return our name for a precision, from its cell or else from the context.

    The default is bf16.
    """
    if text:
        cell = text.lower()
        return next((name for word, name in _PRECISIONS.items() if word in cell), cell)

    return next((name for word, name in _PRECISIONS.items() if word in context), "bf16")


def _number_after(pattern: str, text: str) -> int:
    """Return the number that a pattern's first group matches, or 0."""
    match = re.search(pattern, text)
    return int(match[1]) if match else 0

"""Why a training is slower than expected: what its log, command line or a question says, and the gap in parts.

Times are those of one step with the run's own operations, so that another batch or another model compares with it.
"""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from runbook.core.errors import ParamsError
from runbook.core.table import Table
from runbook.core.units import four_digits
from runbook.log_readers.record import ParsedLog
from runbook.params.schema.entries import Model
from runbook.params.schema.keys import nearest
from runbook.plan_file.schema import Shape
from runbook.planning.cost.accelerators import find_accelerator
from runbook.planning.cost.flops import flops
from runbook.planning.cost.iteration import StepSetup, iteration, known
from runbook.planning.cost.step_inputs import CODE
from runbook.planning.layout import Choice
from runbook.planning.layout_search import MICRO_BATCHES
from runbook.planning.sizes import shape_of
from runbook.tools.speed.predict import free_bytes, sequence_bytes, setup_of, shape_for
from runbook.tools.speed.published_rows import billions_in, read_row

Facts = dict[str, str]
"""What is known, under the names of `plan --predict`'s columns and some more."""
_NUMBERS = {
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
"""How programs and people call a number, printed, as an option, in YAML or in a sentence; `_` is any separator."""
_TEXTS = {
    "recompute": "recompute_granularity|activations_checkpoint_granularity|activation_checkpointing",
    "precision": "params_dtype|precision",
    "zero_stage": "sharding_strategy",
    "sequence": "sequence_parallel",
    "flash": "use_flash_attn|attn_impl",
    "overlap_gradients": "overlap_grad_reduce",
    "weights": "megatron_amp_O2",
    "dispatcher": "moe_token_dispatcher_type",
}
_VALUES = {
    "torch.float32": "fp32",
    "full_shard": "3",
    "shard_grad_op": "2",
    "torch": "no",
    "true": "full",
}
_OFF = ("false", "none", "0", "no", "plain")
_OURS = {
    "tensor": "tp",
    "pipeline": "pp",
    "context": "cp",
    "virtual_pipeline": "vp",
    "sequence_length": "seq_len",
}
_OURS |= {"ffn_hidden": "ffn", "attention": "flash", "device": "accelerator", "devices": "n_accel"}
"""Columns by the last word of a run file's key, where it has another name."""
_SPEEDS = {
    "tflops": r"(\d+(?:\.\d+)?)\W*(?:model )?TFLOP",
    "tokens_per_second": r"(\d[\d,.]*)\W*tok(?:en)?s?\s*/\s*s",
}
KEYS = [
    *_NUMBERS,
    *_TEXTS,
    "activation",
    "accelerator",
    "code",
    "network",
    "model",
    "expected.model",
]
_UNITS = (*_SPEEDS, "mfu", "seconds")
KEYS += [f"{which}.{what}" for which in ("expected", "reached") for what in _UNITS]
"""What `--set` takes, also under a run file's own key (parallel.tensor for tp)."""
NEEDED = (
    "accelerator=H100-SXM5",
    "n_accel=16",
    "layers=32",
    "hidden=4096",
    "tp=8",
    "micro_batch=1",
    "global_batch=64",
)
_DEVICE = r"(?<![A-WYZa-wyz0-9])((?:GB?|[ABHV]|MI)\d{2,3}X?(?:[ _-]?(?:SXM\d?|PCIe|NVL|\d+ ?GB))*)"
_MODEL = r"\b((?:(?:llama|gpt|mpt|opt|qwen|bloom|falcon|mi[sx]tral)[- ]?(?:\d(?:\.\d)?[- ])?)?\d+(?:\.\d+)?[BM])\b"
_LEAST_GAIN = 0.004
_SLOW = 1.3
_OTHER_FLOPS = 0.07
"""Share of a step that a named change brings at least; how many times the median a slow step is; two figures of one
speed that differ by a larger share count other operations."""
_LOST = {
    "restarts": "find what ended the jobs (runbook logs LOG), and save more often",
    "warm-up": "leave the first steps out of the figure",
    "saves": "save less often, or in the background",
    "slow steps": "look at what these steps met: a slow rank, other users, a cold cache",
    "stragglers": "look at the node of the slowest rank",
    "data wait": "put the tokens on a faster disk; use more workers",
}
"""What steps lose by the log, and what to do about it."""
Change = tuple[str, StepSetup, str, str, str]
"""Name, set-up, sign, remedy, and words for --set."""


@dataclass(frozen=True)
class GapPart:
    """One part of the gap; its seconds are those of a step, `words` the change as --set takes it."""

    name: str
    seconds: float
    evidence: str
    remedy: str
    words: str = ""


@dataclass(frozen=True)
class Explanation:
    """Seconds of a step, expected and reached, and the parts of the gap, which add up to it; None: not known."""

    expected: float | None
    reached: float | None
    parts: Sequence[GapPart]
    missing: Sequence[str]
    """Words for --set that would say what nothing else did."""
    assumed: Sequence[str]
    source: str
    """Where the expectation is from."""
    planned: float | None = None
    """What the plan's model of a step expects of this very set-up."""
    step_tflop: float = 0.0
    """Operations of a step on one device, in our convention."""

    def as_dict(self) -> dict[str, object]:
        """Plain values; null where nothing is known."""
        gap = max(0.0, self.reached - self.expected) if self.reached and self.expected else None
        causes = dict.fromkeys(part.name for part in self.parts if part.name != "unexplained")
        times = {"expected": self.expected, "planned": self.planned, "reached": self.reached}
        speeds = {
            f"{name}_tflops": four_digits(self.step_tflop / one) if one else None
            for name, one in times.items()
        }
        rest = {"gap": gap, "unit": "seconds a step", "first_causes": list(causes)[:3]}
        return vars(self) | speeds | rest | {"parts": [vars(part) for part in self.parts]}

    def as_table(self) -> Table:
        """The parts, and below them what was expected, planned, reached, assumed and not said."""
        rows = [vars(part) | {"seconds": four_digits(part.seconds)} for part in self.parts]
        times = {
            f"expected ({self.source})": self.expected,
            "planned": self.planned,
            "reached": self.reached,
        }
        notes = [
            f"{name}: {f'{one:.4g} s a step' if one else 'not known'}"
            for name, one in times.items()
        ]
        notes[1] += ", by the plan's model of a step for this set-up"
        notes += [f"would bring most: --set {part.words}" for part in self.parts if part.words][:1]
        notes += [f"assumed: {one}" for one in self.assumed] + [
            f"not said: --set {one}" for one in self.missing
        ]
        return Table(rows, "Why a step takes longer than expected", notes)


def read_words(words: Sequence[str]) -> Facts:
    """The facts of `--set KEY=VALUE`; `ParamsError` for a key that is not known, with the nearest, or for no number."""
    facts = Facts()
    for word in words:
        key, _, value = word.partition("=")
        last = key.rpartition(".")[2]
        name = key if key in KEYS else _OURS.get(last, last)
        if not value or name not in KEYS:
            near = ", ".join(nearest(key, KEYS) or KEYS)
            raise ParamsError(f"--set {word}: explain takes KEY=VALUE. Nearest: {near}.")
        if (name in _NUMBERS or name.rpartition(".")[2] in _UNITS) and not re.fullmatch(
            r"\d+(\.\d+)?", value
        ):
            raise ParamsError(
                f"--set {word}: {name} is a number without unit or sign. Write --set {name}=128."
            )
        facts[name] = value
    return facts


def facts_of_run(choice: Choice) -> Facts:
    """The facts of a run file's training."""
    stated = {
        **dict(choice.training),
        **vars(choice.shape),
        **vars(choice),
        "model": choice.model_name,
    }
    facts = {
        name: str(value) for key, value in stated.items() if (name := _OURS.get(key, key)) in KEYS
    }
    facts |= {"precision": "fp8"} if choice.training.fp8 != "none" else {}
    facts |= {"accelerator": choice.site.hardware.device, "n_accel": str(choice.world_size)}
    return facts | {"code": CODE[choice.training.framework]}


def read_facts(text: str, printed: Mapping[str, str]) -> Facts:
    """Everything that a text says; of several values the last counts, of several speeds the highest was expected."""
    lines = [line for line in text.splitlines() if line.count("|") < 3 and "loss" not in line]
    facts = Facts()
    text = "\n".join([*lines, *(f"--{name} {value}" for name, value in printed.items())])
    rates = {what: re.findall(pattern, text, re.IGNORECASE) for what, pattern in _SPEEDS.items()}
    rates["mfu"] = [
        share
        for line in lines
        if "MFU" in line
        for share in re.findall(r"(\d+(?:\.\d+)?) ?%", line)
    ]
    for what, stated in rates.items():
        ranked = sorted((figure.strip(".").replace(",", "") for figure in stated), key=float)
        facts |= {f"reached.{what}": slow for slow in ranked[:1]} | {
            f"expected.{what}": fast for fast in ranked[1:]
        }
    patterns = {
        "n_accel": r"(\d+) ?(?:x|×)? ?(?:GPUs?\b|(?:NVIDIA )?[ABHV]\d00)",
        "accelerator": _DEVICE,
    }
    patterns |= {"model": _MODEL, "expected.model": _MODEL}
    for table, value in ((_NUMBERS, r"[\s=:.*\"']*(\d+)\b"), (_TEXTS, r"[\s=:]+(?!-)([\w.]+)")):
        for key, names in table.items():
            patterns[f"{key} "] = (
                rf"(?<![a-z])(?<![a-z][_-])(?:{names.replace('_', '[ _-]?')}){value}"
            )
    for key, pattern in patterns.items():
        for value in re.findall(pattern, text, re.IGNORECASE):
            if key != "accelerator" or find_accelerator(value):
                facts[key.strip()] = _VALUES.get(value.lower(), value)
    if re.search(r"NET/Socket|NCCL_IB_DISABLE=1|NET/IB : No device", text):
        facts["network"] = "10"  # Gbit/s, as sockets usually have
    for key, flag in (("precision", "bf16"), ("precision", "fp16"), ("activation", "swiglu")):
        facts |= {key: flag} if re.search(rf"--{flag}\b(?! false)", text, re.IGNORECASE) else {}
    megatron = printed or re.search(
        r"--tensor-model-parallel|--recompute-granularity|megatron-(lm|core)", text, re.I
    )
    nemo = re.search(r"NeMo|trainer\.devices", text)
    return facts | {"software": "nemo" if nemo else "megatron-core" if megatron else ""}


def explain(text: str, log: ParsedLog, facts: Facts, models: Mapping[str, Model]) -> Explanation:
    """The gap between what these facts let expect and what the log, or they, say was reached."""
    steady, measured = _measured(text, log, facts)
    reached = steady + sum(part.seconds for part in measured)
    missing = [word for word in NEEDED if word.partition("=")[0] not in facts]
    answer = _setup(facts, models)
    if isinstance(answer, str):
        expected = float(facts.get("expected.seconds") or 0)
        parts = fill(reached - (expected or steady), measured)
        source = "as given" if expected else "nothing says it"
        return Explanation(expected or None, reached or None, parts, missing, [answer], source)
    setup, table_shape, assumed = answer
    table = _rates(setup, facts, "expected")
    own = _rates(setup, facts, "reached")
    shared = next((what for what in table if what in own), "")
    reached = reached or own.get(shared) or max(own.values(), default=0.0)
    planned = iteration(setup).seconds
    step_tflop = operations(setup) / setup.world / 1e12
    if not reached:
        assumed.append(
            "no --set reached.tflops=...: what the plan expects of this set-up stands for what was reached"
        )
        reached = planned
    printed = [record.tflops for record in log.records if record.tflops]
    if (
        steady
        and printed
        and abs(steady * statistics.median(printed) / step_tflop - 1) > _OTHER_FLOPS
    ):
        here = f"{step_tflop / steady:.0f} in ours"
        assumed.append(
            f"the log prints {statistics.median(printed):.0f} TFLOP/s, by another convention: {here}"
        )
    modelled, best = _modelled(setup, facts, table_shape)
    expected = table.get(shared) or next(iter(table.values()), min(best, reached))
    if not steady and (other := min(own.values(), default=reached)) < (1 - _OTHER_FLOPS) * reached:
        sign = (
            f"two figures of one speed differ by {reached / other:.3g} x (2: a peak with sparsity)"
        )
        measured.append(
            GapPart("FLOPs convention", reached - other, sign, "compare tokens/s of a device")
        )
    last = log.records[-1].iteration if log.records else 0
    signs = _unpriced(setup, facts, table_shape, last, reached)
    source = "as given" if table else "the plan with every change below"
    parts = fill(reached - expected, measured, modelled, signs)
    return Explanation(expected, reached, parts, missing, assumed, source, planned, step_tflop)


def fill(gap: float, *groups: Sequence[GapPart]) -> list[GapPart]:
    """Parts that add up to the gap, largest first, what is unexplained last; none where there is no gap.

    Each group takes what those before it left; the parts of one that is larger than that shrink alike.
    """
    rest = max(0.0, gap)
    kept = list[GapPart]()
    for group in groups:
        have = sum(part.seconds for part in group)
        share = min(1.0, rest / have) if have else 0.0
        kept += [replace(part, seconds=part.seconds * share) for part in group]
        rest -= have * share
    last = GapPart(
        "unexplained", rest, "nothing that was said or measured accounts for it", "profile a step"
    )
    return [
        part
        for part in (*sorted(kept, key=lambda part: -part.seconds), last)
        if part.seconds > 1e-9
    ]


def _setup(
    facts: Facts, models: Mapping[str, Model]
) -> tuple[StepSetup, Shape | None, list[str]] | str:
    """The training as the model of a step takes it, the table's other shape, what was assumed; or why not."""
    if "accelerator" not in facts:
        return "nothing can be expected without the accelerator's name: no peak is guessed"
    size = {key: float(facts.get(key) or 0) for key in _NUMBERS}
    off = {key for key, value in facts.items() if value.lower() in _OFF}
    wanted, own = (billions_in(facts.get(key, "")) for key in ("expected.model", "model"))
    own = 12e-9 * size["layers"] * size["hidden"] ** 2 or own
    copies = size["dp"] * (size["tp"] or 1) * (size["pp"] or 1)
    cells = {
        "n_accel": f"{copies:.0f}",
        **facts,
        "params_b": f"{own:.6f}",
        "flash": "no" if "flash" in off else "yes",
    }
    cells |= {"recompute": "none"} if "recompute" in off else {}
    cells |= (
        {"model": "llama" if facts.get("activation") == "swiglu" else "gpt"}
        if size["layers"]
        else {}
    )
    cells |= {"code": "eager"} if "weights" in off else {}
    if size["experts"] > 1:
        cells["ffn"] = f"{(size['ffn'] or 4 * size['hidden']) * (size['experts_a_token'] or 2):.0f}"
    found = setup_of(row := read_row(1, cells), models)
    if isinstance(found, str) or (reason := known(found[0].device, found[0].precision)):
        return found if isinstance(found, str) else reason
    setup = found[0]
    late = "overlap_gradients" in off and found[0].zero_stage < 2
    setup = replace(
        setup,
        virtual_pipeline=int(size["vp"] or 1),
        sequence=setup.sequence and "sequence" not in off,
    )
    even = (
        round(setup.global_batch / setup.world) or 1
    )  # one that every layout divides, where none was said
    batch = setup.global_batch if "global_batch" in facts else even * setup.world
    setup = replace(setup, shown_data=1.0 if late else 0.0, global_batch=batch)
    if not wanted or not own or size["experts"] > 1 or 0.75 < wanted / own < 1.33:
        return setup, None, [*found[2], *row.unknown]
    model, _ = shape_for(
        replace(row, model=facts.get("expected.model", ""), billions=wanted), models
    )
    return (
        setup,
        shape_of(model, sequence_length=setup.shape.sequence_length),
        [*found[2], *row.unknown],
    )


def _rates(setup: StepSetup, facts: Facts, which: str) -> dict[str, float]:
    """Seconds of a step by each figure that was given of the speed; a total of all devices is divided by them."""
    peak = setup.device.peaks["fp8" if setup.precision == "fp8" else "fp16"]
    tokens = setup.shape.sequence_length
    units = {
        "tokens_per_second": flops(setup.shape, 1) / tokens / 1e12,
        "tflops": 1.0,
        "mfu": peak / 100,
    }
    given = {
        what: float(value)
        for what in (*units, "seconds")
        if (value := facts.get(f"{which}.{what}"))
    }
    rates = {what: value * units[what] for what, value in given.items() if what in units}
    seconds = {what: operations(setup) / rate / 1e12 for what, rate in rates.items() if rate}
    found = {
        what: one if rates[what] > 2 * peak else one / setup.world for what, one in seconds.items()
    }
    return {what: value for what, value in given.items() if what == "seconds" and value} | found


def operations(setup: StepSetup) -> float:
    """Of a step on all devices, in our convention."""
    return flops(setup.shape, setup.num_microbatches * setup.micro_batch * setup.data)


def price(setup: StepSetup) -> float:
    """Seconds for each operation."""
    return iteration(setup).seconds / operations(setup)


def fits(setup: StepSetup) -> bool:
    """Whether states and the activations of all micro-batches under way fit, by rough count."""
    under_way = min(setup.pipeline, setup.num_microbatches) * setup.micro_batch
    return under_way * sequence_bytes(setup) <= free_bytes(setup)


def _modelled(setup: StepSetup, facts: Facts, table: Shape | None) -> tuple[list[GapPart], float]:
    """What each change alone would bring, together as much as all bring; and seconds of a step with all of them."""
    work = operations(setup)
    before = price(setup)
    best = setup
    gains = [
        (before - price(one), name, told) for name, one, *told in _changes(setup, facts, table)
    ]
    found = sorted((gain for gain in gains if gain[0] > _LEAST_GAIN * before), reverse=True)
    for _, name, _ in found:
        best = min(
            [best, *(one for other, one, *_ in _changes(best, facts, table) if other == name)],
            key=price,
        )
    share = work * (before - price(best)) / sum(gain for gain, *_ in found) if found else 0.0
    return [GapPart(name, gain * share, *told) for gain, name, told in found], work * price(best)


def _changes(setup: StepSetup, facts: Facts, table: Shape | None) -> Iterator[Change]:
    """Every change with a sign, where it may bring something or not."""
    kept = replace(setup, recompute="selective")
    cut = setup.tensor > 1
    usual = find_accelerator(setup.device.name) or setup.device
    now = setup.device.network_bandwidth
    if setup.precision == "fp32":
        sign = "fp32: neither --bf16 nor --fp16"
        words = "training.precision=bf16"
        yield "precision", replace(setup, precision="bf16"), sign, "train in bf16", words
    if setup.recompute in ("full", "operators"):
        sign = "activations are recomputed: work that no figure counts"
        remedy = "keep activations" + (
            "" if fits(kept) else ": more pipeline, or a smaller micro-batch, makes room"
        )
        yield "recompute", kept, sign, remedy, "training.recompute=selective"
    if not setup.flash:
        sign = "attention keeps its scores"
        words = "training.attention=flash2"
        yield "flash attention", replace(setup, flash=True), sign, "fused attention", words
    if setup.code == "eager":
        sign = "layers are not fused, or weights are cast for every product (megatron_amp_O2=False)"
        yield (
            "kernels",
            replace(setup, code="tuned"),
            sign,
            "Transformer Engine, megatron_amp_O2=True",
            "",
        )
    if setup.shown_data or (cut and not setup.sequence):
        waits = {
            "training.overlap_gradients=true": setup.shown_data,
            "parallel.sequence=true": cut > setup.sequence,
        }
        options = " ".join(option for option, holds in waits.items() if holds)
        better = replace(setup, shown_data=0.0, sequence=cut)
        yield (
            "communication",
            better,
            "messages are waited for",
            "let them run beside the work",
            options,
        )
    if now < usual.network_bandwidth:
        sign = f"{now * 8e-9:g} Gbit/s a device between nodes, as given or as NCCL took sockets"
        yield (
            "network",
            replace(setup, device=usual),
            sign,
            "InfiniBand or RoCE; see NCCL_DEBUG=INFO",
            "",
        )
    yield _bubble(setup)
    yield from () if "experts" in facts else _layouts(setup)  # the memory of experts is not counted
    if table:
        tried = [replace(setup, shape=table, micro_batch=size) for size in reversed(MICRO_BATCHES)]
        sign = f"{setup.shape.layers} layers x {setup.shape.hidden}, the table's model has {table.layers} x {table.hidden}"
        better = next(filter(fits, tried), tried[-1])
        yield "another model", better, sign, "compare with a table of this size", ""


def _bubble(setup: StepSetup) -> Change:
    """More micro-batches, interleaved chunks."""
    count = setup.num_microbatches
    stages = setup.pipeline
    better = setup
    words = []
    chunks = max(
        (size for size in (1, 2, 3, 4, 5) if setup.shape.layers // stages % size == 0), default=1
    )
    if count < (4 * stages if stages > 1 else 2):
        better = replace(setup, global_batch=max(4 * stages, 8) * setup.data * setup.micro_batch)
        words.append(f"training.global_batch={better.global_batch}")
    if stages > 1 and setup.virtual_pipeline < chunks and better.num_microbatches % stages == 0:
        better = replace(better, virtual_pipeline=chunks)
        words.append(f"parallel.virtual_pipeline={chunks}")
    sign = (
        f"{count} micro-batch(es) a step for {stages} stage(s) of {setup.virtual_pipeline} chunk(s)"
    )
    return (
        "pipeline bubble",
        better,
        sign,
        "more micro-batches a step, interleaved chunks",
        " ".join(words),
    )


def _layouts(setup: StepSetup) -> Iterator[Change]:
    """The best cut over the same devices, and the best micro-batch of the present one."""
    found = [setup]
    most = setup.global_batch // setup.data
    for tensor, pipeline, zero in product((1, 2, 4, 8), (1, 2, 4, 8, 16), {1, setup.zero_stage}):
        data, rest = divmod(setup.world, tensor * pipeline * setup.context)
        odd = setup.shape.heads % tensor or setup.shape.layers % (pipeline * setup.virtual_pipeline)
        if (
            rest
            or odd
            or tensor > setup.device.devices_per_node
            or setup.global_batch % (data * setup.micro_batch)
        ):
            continue
        cut = replace(
            setup, tensor=tensor, pipeline=pipeline, data=data, zero_stage=zero, sequence=tensor > 1
        )
        found.append(cut if pipeline > 1 else replace(cut, virtual_pipeline=1))
    new = min((one for one in found if one is setup or fits(one)), key=price)
    old, best = (
        f"tensor {one.tensor}, pipeline {one.pipeline}, ZeRO {one.zero_stage}"
        for one in (setup, new)
    )
    words = f"parallel.tensor={new.tensor} parallel.pipeline={new.pipeline} parallel.zero_stage={new.zero_stage}"
    yield "layout", new, f"{old}: {best} fits as well", "cut no finer than memory asks for", words
    larger = [
        replace(setup, micro_batch=size)
        for size in MICRO_BATCHES
        if size <= most and most % size == 0
    ]
    new = min([setup, *(one for one in larger if fits(one))], key=price)
    sign = f"micro-batch {setup.micro_batch}, {setup.num_microbatches} times a step: small matrices"
    yield (
        "micro-batch",
        new,
        sign,
        f"{new.micro_batch} fits by our count",
        f"training.micro_batch={new.micro_batch}",
    )


def _measured(text: str, log: ParsedLog, facts: Facts) -> tuple[float, list[GapPart]]:
    """Seconds of a steady step, and what the log itself shows on top, in seconds of each step that counts."""
    steps = [(record.iteration, record.seconds) for record in log.records if record.seconds]
    if not steps:
        return 0.0, []
    first = min(10, len(steps) // 10)
    every = float(facts.get("save_interval") or 0)
    steady = statistics.median(seconds for _, seconds in steps[first:])
    count = len({step for step, _ in steps})
    lost = dict.fromkeys(_LOST, 0.0) | {"restarts": (len(steps) - count) * steady}
    for place, (step, seconds) in enumerate(steps):
        if place < first:
            kind = "warm-up"
        elif every and step % every <= 1:
            kind = "saves"
        else:
            kind = "slow steps"
        lost[kind] += seconds - steady if seconds > _SLOW * steady else 0.0
    waits = [
        float(ms) / 1000
        for ms in re.findall(r"batch[- ]generator[ .]*:\s*\(?(?:[\d.]+, )?([\d.]+)", text)
    ]
    waits = waits or [
        float(seconds) for seconds in re.findall(r'"data_wait_seconds": *([\d.e+-]+)', text)
    ]
    if facts.get("pp", "1") == "1":
        ranks = re.findall(r"forward-compute[ .]*: \(([\d.]+), ([\d.]+)\)", text)
    else:
        ranks = []
    lags = [(float(slowest) - float(fastest)) / 1000 for fastest, slowest in ranks]
    for name, within in (("data wait", waits), ("stragglers", lags)):
        seconds = min(statistics.median(within or [0.0]), steady / 2)
        lost[name], steady = seconds * count, steady - seconds
    kept = [(name, seconds) for name, seconds in lost.items() if seconds > 0.002 * steady * count]
    return steady, [
        GapPart(name, one / count, f"{one:.3g} s in {count} steps", _LOST[name])
        for name, one in kept
    ]


def _unpriced(
    setup: StepSetup, facts: Facts, table: Shape | None, last: int, reached: float
) -> list[GapPart]:
    """Causes with a sign that nothing prices, each with the most it may have, as a share of a step."""
    experts, over = (float(facts.get(key) or 1) for key in ("experts", "experts_over"))
    gathers = experts > 1 and facts.get("dispatcher", "allgather") == "allgather"
    signs = (
        (
            table,
            "another model",
            0.4,
            "a small model's steps are the host's: launches, logging",
            "as above",
        ),
        (
            setup.tensor > 1 and over < experts,
            "layout",
            0.3,
            f"{experts:g} experts over {over:g} ranks, cut by tensor "
            f"{setup.tensor}: small matrices",
            "more --expert-model-parallel-size, less tensor",
        ),
        (
            gathers,
            "token dispatch",
            0.25,
            "tokens are gathered on all ranks, not sent to their experts",
            "--moe-token-dispatcher-type alltoall, --moe-grouped-gemm",
        ),
        (
            experts > 1 and last < 400,
            "warm-up",
            0.15,
            f"at {last} steps the router is not balanced: some ranks get most tokens",
            "measure later, or from a trained checkpoint",
        ),
    )
    return [
        GapPart(name, share * reached, f"{sign} (no price: {share:.0%} of a step at most)", remedy)
        for holds, name, share, sign, remedy in signs
        if holds
    ]

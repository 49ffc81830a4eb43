"""Searches for the best layout, and shows what changing a single value would do."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, get_args

from runbook.core.checks import Check
from runbook.core.table import UNKNOWN, Table
from runbook.core.units import four_digits, show_bytes, show_device_hours, show_duration
from runbook.params.settings import Settings
from runbook.plan_file.rules.layout import engine_rules
from runbook.plan_file.schema import Layout, Recompute
from runbook.planning.choice import Choice, Machine, full_choice
from runbook.planning.cost import flops, memory
from runbook.planning.cost.accelerators import Accelerator
from runbook.planning.cost.calibration import Calibrations
from runbook.planning.cost.iteration import iteration
from runbook.planning.cost.memory import RESERVE
from runbook.planning.cost.step_inputs import modelled_device, setup_for
from runbook.planning.cost.time_and_money import estimate
from runbook.planning.layout_rules import check_layout
from runbook.planning.messages import PlanningMessage
from runbook.planning.plan_tables import AGAINST_PLAN, shown
from runbook.planning.schedule import check_schedule

MICRO_BATCHES = (1, 2, 4, 8, 16)
RECOMPUTE: tuple[Recompute, ...] = ("none", "full")
"""Selective recomputation drops attention scores, which fused attention never stores.

With fused attention, `selective` is therefore the same as `none`, and is not tried.
"""
MOST_CHUNKS = 8


@dataclass(frozen=True)
class SearchSpace:
    """The values to try for each combination of tensor and pipeline sizes."""

    micro_batches: tuple[int, ...] = MICRO_BATCHES
    recompute: tuple[Recompute, ...] = RECOMPUTE
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    """ZeRO stages to try. Stages above 1 are tried only with DeepSpeed.

    With one replica and one context-parallel rank, nothing is sharded, so only the first stage the
    program accepts is tried.
    """
    most_chunks: int = MOST_CHUNKS
    """Largest number of interleaved chunks per stage."""


EVERYTHING = SearchSpace()


@dataclass(frozen=True)
class RankedLayout:
    """A layout that satisfies the rules and fits into memory, and the cost of training with it."""

    choice: Choice
    """The training run with this layout, and with the micro-batch and recomputation that were
    tried.
    """
    memory_bytes: int
    seconds_per_step: float
    tokens_per_second: float
    tflops_per_device: float
    mfu: float
    days: float | None
    cost: float | None

    @property
    def layout(self) -> Layout:
        """Return the layout of `choice`."""
        return self.choice.layout

    def as_dict(self) -> dict[str, object]:
        """Return the values for --json."""
        return {
            "nodes": self.choice.nodes,
            "devices": self.layout.world_size,
            "tensor": self.layout.tensor,
            "pipeline": self.layout.pipeline,
            "virtual_pipeline": self.layout.virtual_pipeline,
            "data": self.layout.data,
            "micro_batch": self.choice.micro_batch,
            "recompute": self.choice.training.recompute,
            "zero_stage": self.layout.zero_stage,
            "sequence": self.layout.sequence,
            "memory_bytes": self.memory_bytes,
            "seconds_per_step": self.seconds_per_step,
            "tokens_per_second": self.tokens_per_second,
            "tflops_per_device": self.tflops_per_device,
            "mfu": self.mfu,
            "days": self.days,
            "cost": self.cost,
            "nodes_in_multiples_of": self.choice.node_multiple,
        }


@dataclass(frozen=True)
class Search:
    """Search result: the layouts, best first, and why the others were rejected."""

    ranked: tuple[RankedLayout, ...]
    looked_at: int
    broke_a_rule: int
    did_not_fit: int
    reason: str = ""
    """Why there is no layout, and the remedy; empty if there is a layout."""


def search(choice: Choice, tokens: float = 0.0) -> Search:
    """Try every layout for the model on these nodes.

    Days and cost are computed for a training run over `tokens`; if this is 0, they are not
    reported.
    """
    device = modelled_device(choice)
    if isinstance(device, str):
        return Search(
            (),
            0,
            0,
            0,
            device,
        )

    if not device.memory_bytes:
        name = choice.site.hardware.device
        where = f"params/sites/{choice.site.site}.yaml"
        reason = PlanningMessage.NAME_WITHOUT_MEMORY.fill(device=name, where=where)
        return Search(
            (),
            0,
            0,
            0,
            reason,
        )

    ranked = list[RankedLayout]()
    rejected = _Rejected()
    num_layouts = 0
    for variant in layouts(choice):
        num_layouts += 1
        memory_bytes = fullest_device(variant)
        if not fits(memory_bytes, device):
            rejected.too_large.append(memory_bytes)
            continue

        failures = _failures(check_layout(variant))
        if failures:
            rejected.broken_rules[failures[0].as_text()] += 1
        else:
            ranked.append(_ranked(variant, memory_bytes, tokens, device))

    ranked.sort(key=lambda layout: (layout.seconds_per_step, layout.memory_bytes))
    if ranked:
        reason = ""
    else:
        reason = _why_none(choice, device, num_layouts, rejected)

    return Search(
        ranked=tuple(ranked),
        looked_at=num_layouts,
        broke_a_rule=rejected.broken_rules.total(),
        did_not_fit=len(rejected.too_large),
        reason=reason,
    )


@dataclass
class _Rejected:
    """Layouts a search rejected."""

    too_large: list[int] = field(default_factory=list)
    """Bytes on the fullest device, for each layout that did not fit."""
    broken_rules: Counter[str] = field(default_factory=Counter)
    """How many layouts were rejected by each rule; only the first broken rule counts."""


def fullest_device(choice: Choice, *, keeps_scores: bool = False) -> int:
    """Return the bytes needed on the fullest device, with or without stored attention scores."""
    # The first stage keeps the most activations, and the last stage has the logits.
    ends = {0, choice.layout.pipeline - 1}
    stages = [memory.stage_memory(choice, stage) for stage in ends]
    if keeps_scores:
        return max(stage.most for stage in stages)
    return max(stage.least for stage in stages)


def fits(memory_bytes: int, device: Accelerator) -> bool:
    """Return whether a plan may use this many bytes on a device."""
    return memory_bytes <= RESERVE * device.memory_bytes


def _failures(checks: Iterable[Check]) -> list[Check]:
    return [check for check in checks if check.verdict == "fail"]


def growth(
    choice: Choice, tokens: float = 0.0, most_devices: int = 10_000
) -> list[RankedLayout | str]:
    """Return the best layout for the planned number of nodes, for twice as many, and so on.

    Where no layout fits, the list has the reason instead.
    """
    rows: list[RankedLayout | str] = []
    nodes = choice.nodes
    while nodes * choice.devices_per_node <= most_devices:
        result = search(choice.on_nodes(nodes), tokens)
        if result.ranked:
            rows.append(result.ranked[0])
        else:
            rows.append(f"{nodes} nodes: {result.reason}")

        nodes *= 2

    return rows


def layouts(choice: Choice, space: SearchSpace = EVERYTHING) -> Iterator[Choice]:
    """Yield the training run in every layout that divides evenly.

    `check_layout` applies the other rules.
    """
    layout = choice.layout
    trainings = [choice.training.model_copy(update={"recompute": mode}) for mode in space.recompute]
    zero_stages = []
    for stage in space.zero_stages:
        if stage <= 1 or choice.deepspeed:
            zero_stages.append(stage)

    for tensor, pipeline in _evenly_divided(choice):
        model_ranks = tensor * pipeline * layout.context
        replicas = layout.world_size // model_ranks
        chunks = _chunks(choice, pipeline, space.most_chunks)
        # ZeRO shards states over replicas and context-parallel ranks. If there is only one
        # such rank, a higher stage saves nothing.
        shares_states = replicas * layout.context > 1
        different_stages = zero_stages if shares_states else _first_accepted(choice, zero_stages)
        for micro_batch, zero_stage, training, virtual_pipeline in product(
            space.micro_batches, different_stages, trainings, chunks
        ):
            fills_batch = choice.global_batch % (micro_batch * replicas) == 0
            if fills_batch:
                changed = replace(
                    layout,
                    tensor=tensor,
                    pipeline=pipeline,
                    virtual_pipeline=virtual_pipeline,
                    sequence=_sequence_parallel(choice, tensor),
                    zero_stage=zero_stage,
                )
                variant = choice.in_layout(changed)
                yield replace(variant, micro_batch=micro_batch, training=training)


def _first_accepted(choice: Choice, zero_stages: Sequence[int]) -> Sequence[int]:
    """Return the first ZeRO stage the program accepts, or the first stage if it accepts none.

    DeepSpeed needs a stage above 0 for fp16.
    """
    for stage in zero_stages:
        results = engine_rules(choice.program, stage, choice.training.precision)
        if all(result.holds for result in results):
            return [stage]
    return zero_stages[:1]


def _evenly_divided(choice: Choice) -> Iterator[tuple[int, int]]:
    """Yield tensor x pipeline sizes that divide the heads, the layers and the devices."""
    layout = choice.layout
    tensor_sizes = _divisors(choice.devices_per_node)
    pipeline_sizes = _divisors(choice.model.layers)
    for tensor, pipeline in product(tensor_sizes, pipeline_sizes):
        divides_devices = layout.world_size % (tensor * pipeline * layout.context) == 0
        divides_heads = choice.model.heads % tensor == 0
        if divides_devices and divides_heads:
            yield tensor, pipeline


def _chunks(choice: Choice, pipeline: int, most_chunks: int) -> list[int]:
    """Return the chunk counts that divide the layers in a stage; DeepSpeed only allows 1."""
    if pipeline == 1 or choice.deepspeed:
        most_chunks = 1
    stage_layers = choice.model.layers // pipeline
    return [chunks for chunks in range(1, most_chunks + 1) if stage_layers % chunks == 0]


def _sequence_parallel(choice: Choice, tensor: int) -> bool:
    """Return whether to use sequence parallelism.

    With tensor parallelism it saves memory at no cost.
    """
    if tensor == 1 or choice.own_trainer:
        return False
    return choice.layout.sequence or not choice.deepspeed


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _ranked(
    choice: Choice,
    memory_bytes: int,
    tokens: float,
    device: Accelerator,
) -> RankedLayout:
    layout = choice.layout
    shape = choice.shape
    seconds = iteration(setup_for(choice, device)).seconds
    step_flops = flops.flops(shape, choice.global_batch)
    tflops = step_flops / seconds / layout.world_size / 1e12
    tokens_per_second = choice.global_batch * shape.sequence_length / seconds
    days = tokens / tokens_per_second / 86400 if tokens else None
    price = choice.site.price_per_device_hour
    cost = None
    if days is not None and price is not None:
        cost = four_digits(days * 24 * layout.world_size * price)
    return RankedLayout(
        choice=choice,
        memory_bytes=memory_bytes,
        seconds_per_step=four_digits(seconds),
        tokens_per_second=four_digits(tokens_per_second),
        tflops_per_device=four_digits(tflops),
        mfu=four_digits(tflops / device.peaks[choice.training.precision]),
        days=None if days is None else four_digits(days),
        cost=cost,
    )


def _why_none(
    choice: Choice,
    device: Accelerator,
    num_layouts: int,
    rejected: _Rejected,
) -> str:
    """Return why a search found no layout, and what to change in the run file."""
    layout = choice.layout
    world = layout.world_size
    if not num_layouts and world % layout.context:
        return PlanningMessage.CONTEXT_DOES_NOT_DIVIDE.fill(
            context=layout.context,
            devices=world,
        )

    if not num_layouts:
        return PlanningMessage.NO_LAYOUT_DIVIDES.fill(
            layers=choice.model.layers,
            heads=choice.model.heads,
            devices=world,
            global_batch=choice.global_batch,
        )

    reasons = []
    if rejected.too_large:
        reason = PlanningMessage.LAYOUTS_TOO_LARGE.fill(
            too_large=len(rejected.too_large),
            layouts=num_layouts,
            share=RESERVE,
            memory=show_bytes(device.memory_bytes),
            least_gib=min(rejected.too_large) / 2**30,
        )
        reasons.append(reason)

    if rejected.broken_rules:
        rule, count = rejected.broken_rules.most_common(1)[0]
        reason = PlanningMessage.LAYOUTS_BREAK_RULE.fill(
            broken=rejected.broken_rules.total(),
            layouts=num_layouts,
            count=count,
            rule=rule,
        )
        reasons.append(reason)

    return "; ".join(reasons)


@dataclass(frozen=True)
class Alternative:
    """The training run as planned, or a variant with one change.

    Numbers are None if they are unknown or if a rule is broken.
    """

    change: str
    """The values for --set that select this variant, or a name for it."""
    devices: int
    memory_bytes: int | None
    memory_limit_bytes: int
    seconds_per_iteration: float | None = None
    seconds: float | None = None
    device_hours: float | None = None
    cost: float | None = None
    problem: str = ""
    """The first rule the variant breaks; empty if it breaks none."""


def what_if(
    settings: Settings, machine: Machine | None = None, measured: Calibrations | None = None
) -> list[Alternative]:
    """Return the planned training run, and one variant for each usual change to a single value.

    All variants use the same text and global batch.
    """
    planned = full_choice(settings)
    changes = [("as planned", planned), *_changes(planned)]
    return [_alternative(change, choice, machine, measured) for change, choice in changes]


def _changes(choice: Choice) -> Iterator[tuple[str, Choice]]:
    """Yield each change: the values for --set, and the resulting choice.

    The best layout found by `plan --search` comes last.
    """
    for key, values in _changed_sizes(choice).items():
        for value in values:
            yield f"{key}={value}", _with_size(choice, key, value)

    training = choice.training
    modes = {"recompute": get_args(Recompute), "precision": ("bf16", "fp32")}
    for key, names in modes.items():
        for name in names:
            if name != getattr(training, key):
                yield f"training.{key}={name}", _with_training(choice, key, name)

    for best in search(choice).ranked[:1]:
        yield f"{' '.join(layout_words(best))} (best by --search)", best.choice


def _changed_sizes(choice: Choice) -> dict[str, list[int]]:
    """Return other values to try for each size, by run-file key."""
    layout = choice.layout
    return {
        "jobs.training.nodes": _doubled_and_halved(choice.nodes),
        "training.micro_batch": _doubled_and_halved(choice.micro_batch),
        "parallel.tensor": _doubled_and_evenly_halved(layout.tensor),
        "parallel.pipeline": _doubled_and_evenly_halved(layout.pipeline),
        "parallel.zero_stage": [stage for stage in range(4) if stage != layout.zero_stage],
    }


def _doubled_and_halved(size: int) -> list[int]:
    return [changed for changed in (2 * size, size // 2) if changed]


def _doubled_and_evenly_halved(size: int) -> list[int]:
    return [2 * size, size // 2] if size % 2 == 0 else [2 * size]


def _with_training(choice: Choice, key: str, value: str) -> Choice:
    return replace(choice, training=choice.training.model_copy(update={key: value}))


def _with_size(choice: Choice, key: str, value: int) -> Choice:
    """Return the training run with a different value for one of `_changed_sizes`."""
    if key == "jobs.training.nodes":
        return choice.on_nodes(value)
    if key == "training.micro_batch":
        return replace(choice, micro_batch=value)
    size: dict[str, Any] = {key.rpartition(".")[2]: value}
    return choice.in_layout(replace(choice.layout, **size))


def layout_words(best: RankedLayout) -> list[str]:
    """Return the values for --set that select a layout, each as key=value."""
    layout = best.layout
    settings = {
        "parallel.tensor": layout.tensor,
        "parallel.pipeline": layout.pipeline,
        "parallel.virtual_pipeline": layout.virtual_pipeline,
        "training.micro_batch": best.choice.micro_batch,
        "parallel.zero_stage": layout.zero_stage,
        "training.recompute": best.choice.training.recompute,
    }
    return [f"{key}={value}" for key, value in settings.items()]


def _alternative(
    change: str,
    choice: Choice,
    machine: Machine | None,
    measured: Calibrations | None,
) -> Alternative:
    result = Alternative(change, choice.layout.world_size, None, 0)
    failures = _failures((*check_layout(choice), *check_schedule(choice)))
    if not failures:
        phase = memory.phase_memory(choice, memory.all_stages(choice), machine)
        result = replace(
            result,
            memory_bytes=phase.least_bytes if choice.on_cpu else max(phase.least_by_stage),
            memory_limit_bytes=phase.limit_bytes,
        )
        failures = _failures([memory.check_memory(choice, phase)])

    if failures:
        return replace(result, problem=f"{failures[0].value}; {failures[0].rule}")
    calibration = measured.holds_for(choice) if measured else None
    speed = estimate(choice, machine, calibration)
    return replace(
        result,
        seconds_per_iteration=speed.seconds_per_iteration,
        seconds=speed.seconds,
        device_hours=speed.device_hours,
        cost=speed.cost,
    )


def what_if_table(alternatives: Sequence[Alternative], currency: str = "") -> Table:
    """Return a row for each change.

    A change that breaks a rule becomes a note that names the rule.
    """
    planned_seconds = alternatives[0].seconds if alternatives else None
    rows = []
    for alternative in alternatives:
        if not alternative.problem:
            rows.append(_what_if_row(alternative, planned_seconds, currency))

    notes = []
    for alternative in alternatives:
        if alternative.problem:
            notes.append(f"{alternative.change}: {alternative.problem}")

    if notes:
        notes.insert(0, "Not possible:")
    return Table(rows, "What if", notes)


def _what_if_row(
    alternative: Alternative, planned_seconds: float | None, currency: str
) -> dict[str, str]:
    ratio = ""
    if alternative.seconds and planned_seconds:
        ratio = f"{alternative.seconds / planned_seconds:.2f} x"
    cost = UNKNOWN
    if alternative.cost is not None:
        cost = f"{alternative.cost:,.0f} {currency}".strip()
    return {
        "change": alternative.change,
        "devices": f"{alternative.devices:,}",
        "memory": _memory(alternative),
        "a step": shown(alternative.seconds_per_iteration, show_duration),
        "the whole training": shown(alternative.seconds, show_duration),
        AGAINST_PLAN: ratio,
        "device hours": shown(alternative.device_hours, show_device_hours),
        "cost": cost,
    }


def _memory(alternative: Alternative) -> str:
    """Return the memory as text, with the percentage of the available memory if both are known."""
    share = ""
    if alternative.memory_bytes and alternative.memory_limit_bytes:
        share = f" ({alternative.memory_bytes / alternative.memory_limit_bytes:.0%})"
    return shown(alternative.memory_bytes, show_bytes) + share

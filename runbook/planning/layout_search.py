"""Search over layouts, and what one changed value would bring."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, get_args

from runbook.core.table import UNKNOWN, Table
from runbook.core.units import four_digits, show_bytes, show_device_hours, show_duration
from runbook.params.settings import Settings
from runbook.plan_file.schema import Recompute
from runbook.planning.cost import flops, memory
from runbook.planning.cost.accelerators import Accelerator
from runbook.planning.cost.iteration import iteration
from runbook.planning.cost.memory import RESERVE
from runbook.planning.cost.speed import Calibrations, estimate
from runbook.planning.cost.step_inputs import modelled_device, setup_for
from runbook.planning.layout import Choice, Machine, full_choice
from runbook.planning.layout_rules import check_layout
from runbook.planning.plan_tables import shown
from runbook.planning.schedule import check_schedule
from runbook.planning.sizes import same_fields

MICRO_BATCHES = (1, 2, 4, 8, 16)
RECOMPUTE = ("none", "full")
"""Selective recomputation drops attention scores, which fused attention never keeps: it is the same as none."""
MOST_CHUNKS = 8


@dataclass(frozen=True)
class Candidate:
    """A layout that keeps the rules and fits."""

    nodes: int
    devices: int
    tensor: int
    pipeline: int
    virtual_pipeline: int
    data: int
    micro_batch: int
    recompute: str
    zero_stage: int
    sequence: bool
    memory_bytes: int
    seconds_per_step: float
    tokens_per_second: float
    tflops_per_device: float
    mfu: float
    days: float | None
    cost: float | None
    nodes_in_multiples_of: int


@dataclass(frozen=True)
class Search:
    """All that was found, best first."""

    candidates: tuple[Candidate, ...]
    looked_at: int
    broke_a_rule: int
    did_not_fit: int
    reason: str = ""
    """Which rule left none, and what to change; empty where there is one."""


def search(choice: Choice, tokens: float = 0.0) -> Search:
    """Every cut of the choice's model over its nodes; `tokens` of the whole training give days and cost (0: none)."""
    device = modelled_device(choice)
    if isinstance(device, str):
        return Search((), 0, 0, 0, device)
    if not device.memory_bytes:
        name = choice.site.hardware.device
        where = f"params/sites/{choice.site.site}.yaml"
        return Search(
            (),
            0,
            0,
            0,
            f"the name {name} leaves its memory open: write hardware.device_memory in {where}",
        )
    found: list[Candidate] = []
    looked = too_large = thriftiest = 0
    broken: Counter[str] = Counter()
    for tried in _choices(choice):
        looked += 1
        # The first stage keeps most activations, the last has the logits.
        need = max(memory.stage_memory(tried, stage).least for stage in {0, tried.pipeline - 1})
        if need > RESERVE * device.memory_bytes:
            too_large += 1
            thriftiest = min(thriftiest or need, need)
        elif failed := [check for check in check_layout(tried) if check.verdict == "fail"]:
            broken[failed[0].as_text()] += 1
        else:
            found.append(_candidate(tried, need, tokens, device))
    found.sort(key=lambda one: (one.seconds_per_step, one.memory_bytes))
    reason = "" if found else _why_none(choice, device, looked, broken, thriftiest)
    return Search(tuple(found), looked, broken.total(), too_large, reason)


def growth(
    choice: Choice, tokens: float = 0.0, most_devices: int = 10_000
) -> list[Candidate | str]:
    """The best layout of the same training on twice the nodes, again and again; a reason where there is none."""
    rows: list[Candidate | str] = []
    per_node = choice.devices_per_node
    nodes = choice.nodes
    while nodes * per_node <= most_devices:
        result = search(replace(choice, nodes=nodes), tokens)
        rows.append(
            result.candidates[0] if result.candidates else f"{nodes} nodes: {result.reason}"
        )
        nodes *= 2
    return rows


def _choices(choice: Choice) -> Iterator[Choice]:
    """Every cut that divides evenly, the finer rules left to `check_layout`; sequence parallelism only saves memory."""
    layers = choice.model.layers
    heads = choice.model.heads
    trainings = [choice.training.model_copy(update={"recompute": mode}) for mode in RECOMPUTE]
    zero_stages = (0, 1, 2, 3) if choice.deepspeed else (0, 1)
    for tensor, pipeline in product(_divisors(choice.devices_per_node), _divisors(layers)):
        copies, left_over = divmod(choice.world_size, tensor * pipeline * choice.context)
        if left_over or heads % tensor:
            continue
        deepest = 1 if pipeline == 1 or choice.deepspeed else MOST_CHUNKS
        chunks = [size for size in range(1, deepest + 1) if layers // pipeline % size == 0]
        for micro, zero, training, virtual in product(
            MICRO_BATCHES, zero_stages, trainings, chunks
        ):
            if choice.global_batch % (micro * copies) == 0 and (
                zero == 0 or copies * choice.context > 1
            ):
                yield replace(
                    choice,
                    tensor=tensor,
                    pipeline=pipeline,
                    virtual_pipeline=virtual,
                    sequence=tensor > 1
                    and not choice.own_trainer
                    and (choice.sequence or not choice.deepspeed),
                    zero_stage=zero,
                    micro_batch=micro,
                    training=training,
                )


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def _candidate(choice: Choice, need: int, tokens: float, device: Accelerator) -> Candidate:
    shape = choice.shape
    seconds = iteration(setup_for(choice, device)).seconds
    work = flops.flops(shape, choice.global_batch) / seconds / choice.world_size / 1e12
    per_second = choice.global_batch * shape.sequence_length / seconds
    days = tokens / per_second / 86400 if tokens else None
    price = choice.site.price_per_device_hour
    return Candidate(
        **same_fields(Candidate, choice),
        devices=choice.world_size,
        recompute=choice.training.recompute,
        memory_bytes=need,
        seconds_per_step=four_digits(seconds),
        tokens_per_second=four_digits(per_second),
        tflops_per_device=four_digits(work),
        mfu=four_digits(work / device.peaks[choice.training.precision]),
        days=None if days is None else four_digits(days),
        cost=None
        if days is None or price is None
        else four_digits(days * 24 * choice.world_size * price),
        nodes_in_multiples_of=choice.node_multiple,
    )


def _why_none(
    choice: Choice, device: Accelerator, looked: int, broken: Counter[str], thriftiest: int
) -> str:
    world = choice.world_size
    if not looked and world % choice.context:
        return f"parallel.context={choice.context} does not divide {world} devices: change it or jobs.training.nodes"
    if not looked:
        return (
            f"no cut of {choice.model.layers} layers and {choice.model.heads} heads over {world} devices divides a "
            f"global batch of {choice.global_batch}: change jobs.training.nodes or training.global_batch"
        )
    reasons = []
    if thriftiest:
        reasons.append(
            f"{looked - broken.total()} of {looked} layouts do not fit into {RESERVE:.0%} of "
            f"{show_bytes(device.memory_bytes)}, the thriftiest needs {thriftiest / 2**30:.1f} GiB of each device: "
            "take more nodes, or an engine that shares more states (parallel.zero_stage with DeepSpeed)"
        )
    if broken:
        rule, count = broken.most_common(1)[0]
        reasons.append(
            f"{broken.total()} of {looked} layouts fit and break a rule, {count} of them this: {rule}"
        )
    return "; ".join(reasons)


@dataclass(frozen=True)
class Alternative:
    """One way to do the training; figures are None where they cannot be known or a rule is broken."""

    change: str
    """Words for --set, or what it is."""
    devices: int
    memory_bytes: int | None
    memory_limit_bytes: int
    seconds_per_iteration: float | None = None
    seconds: float | None = None
    device_hours: float | None = None
    cost: float | None = None
    problem: str = ""
    """The first rule it breaks, or an empty word."""


def what_if(
    settings: Settings, machine: Machine | None = None, measured: Calibrations | None = None
) -> list[Alternative]:
    """The plan, and every single change of it that is usual; the same text and global batch throughout."""
    choice = full_choice(settings)
    wanted = [("as planned", choice), *_changes(choice)]
    return [_alternative(change, other, machine, measured) for change, other in wanted]


def _changes(choice: Choice) -> Iterator[tuple[str, Choice]]:
    """Changes of one value, each with the words that make it; the best layout by `plan --search` last."""
    training = choice.training
    sizes = {
        "jobs.training.nodes": [nodes for nodes in (2 * choice.nodes, choice.nodes // 2) if nodes],
        "training.micro_batch": [
            size for size in (2 * choice.micro_batch, choice.micro_batch // 2) if size
        ],
        "parallel.tensor": [2 * choice.tensor] + [choice.tensor // 2] * (choice.tensor % 2 == 0),
        "parallel.pipeline": [2 * choice.pipeline]
        + [choice.pipeline // 2] * (choice.pipeline % 2 == 0),
        "parallel.zero_stage": [stage for stage in range(4) if stage != choice.zero_stage],
    }
    for key, values in sizes.items():
        for value in values:
            field: dict[str, Any] = {key.rpartition(".")[2]: value}
            yield f"{key}={value}", replace(choice, **field)
    modes = {
        "recompute": [mode for mode in get_args(Recompute) if mode != training.recompute],
        "precision": [name for name in ("bf16", "fp32") if name != training.precision],
    }
    for key, names in modes.items():
        for name in names:
            yield (
                f"training.{key}={name}",
                replace(choice, training=training.model_copy(update={key: name})),
            )
    for best in search(choice).candidates[:1]:
        cut = ("tensor", "pipeline", "virtual_pipeline", "micro_batch", "zero_stage")
        words = [
            f"{'training' if key == 'micro_batch' else 'parallel'}.{key}={getattr(best, key)}"
            for key in cut
        ]
        yield (
            f"{' '.join(words)} training.recompute={best.recompute} (best by --search)",
            replace(
                choice,
                training=training.model_copy(update={"recompute": best.recompute}),
                **{key: getattr(best, key) for key in (*cut, "sequence")},
            ),
        )


def _alternative(
    change: str, choice: Choice, machine: Machine | None, measured: Calibrations | None
) -> Alternative:
    result = Alternative(change, choice.world_size, None, 0)
    broken = [
        check
        for check in (*check_layout(choice), *check_schedule(choice))
        if check.verdict == "fail"
    ]
    if not broken:
        found = memory.phase_memory(choice, memory.all_stages(choice), machine)
        need = found.least_bytes if choice.on_cpu else max(found.least_by_stage)
        result = replace(result, memory_bytes=need, memory_limit_bytes=found.limit_bytes)
        fits = memory.check_memory(choice, found)
        broken = [fits] if fits.verdict == "fail" else []
    if broken:
        return replace(result, problem=f"{broken[0].value}; {broken[0].rule}")
    speed = estimate(choice, machine, measured.holds_for(choice) if measured else None)
    return replace(result, **same_fields(Alternative, speed))


def what_if_table(alternatives: Sequence[Alternative], currency: str = "") -> Table:
    """One row a change, those that break a rule at the end with the rule."""
    planned = alternatives[0].seconds if alternatives else None
    rows = [
        {
            "change": one.change,
            "devices": f"{one.devices:,}",
            "memory": _memory(one),
            "a step": shown(one.seconds_per_iteration, show_duration),
            "the whole training": shown(one.seconds, show_duration),
            "against the plan": ""
            if not (one.seconds and planned)
            else f"{one.seconds / planned:.2f} x",
            "device hours": shown(one.device_hours, show_device_hours),
            "cost": UNKNOWN if one.cost is None else f"{one.cost:,.0f} {currency}".strip(),
        }
        for one in alternatives
        if not one.problem
    ]
    broken = [f"{one.change}: {one.problem}" for one in alternatives if one.problem]
    return Table(rows, "What if", ["Not possible:", *broken] if broken else [])


def _memory(one: Alternative) -> str:
    if one.memory_bytes and one.memory_limit_bytes:
        share = f" ({one.memory_bytes / one.memory_limit_bytes:.0%})"
    else:
        share = ""
    return shown(one.memory_bytes, show_bytes) + share

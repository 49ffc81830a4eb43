"""The training as planned beside the same training with one thing changed: does it fit, how long, what does it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from runbook.params.schema import Precision, Recompute
from runbook.plan import memory, memory_rules
from runbook.plan.calibration import Measured
from runbook.plan.checks import Check
from runbook.plan.choices import Choice, Chosen, full_choice
from runbook.plan.layout import Layout, lay_out
from runbook.plan.layout_rules import check_layout
from runbook.plan.machine import Machine
from runbook.plan.schedule import check_schedule, duration
from runbook.plan.search import search
from runbook.plan.speed import Speed, estimate


@dataclass(frozen=True)
class Alternative:
    """One way to do the training; figures are None where they cannot be known or a rule is broken."""

    change: str
    """Words for --set, or what it is."""
    devices: int
    memory_bytes: int | None
    memory_limit_bytes: int
    seconds_per_iteration: float | None
    seconds: float | None
    device_hours: float | None
    cost: float | None
    problem: str
    """The first rule it breaks, or an empty word."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def what_if(chosen: Chosen, machine: Machine | None = None, measured: Measured | None = None) -> list[Alternative]:
    """The plan, and every single change of it that is usual; the same text and global batch throughout."""
    choice = full_choice(chosen)
    found = [judge_choice("as planned", choice, machine, measured)]
    for change, other in changes(choice):
        found.append(judge_choice(change, other, machine, measured))
    return found


def changes(choice: Choice) -> Iterator[tuple[str, Choice]]:
    """Changes of one value, each with the words that make it; the best layout by `plan --search` last."""
    for nodes in (2 * choice.nodes, choice.nodes // 2):
        if nodes:
            yield f"jobs.training.nodes={nodes}", replace(choice, nodes=nodes)
    for size in (2 * choice.micro_batch, choice.micro_batch // 2):
        if size:
            yield f"training.micro_batch={size}", replace(choice, micro_batch=size)
    for tensor in _beside(choice.tensor):
        yield f"parallel.tensor={tensor}", replace(choice, tensor=tensor)
    for pipeline in _beside(choice.pipeline):
        yield f"parallel.pipeline={pipeline}", replace(choice, pipeline=pipeline)
    for stage in range(4):
        if stage != choice.zero_stage:
            yield f"parallel.zero_stage={stage}", replace(choice, zero_stage=stage)
    for mode in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL):
        if mode is not choice.training.recompute:
            yield f"training.recompute={mode}", _trained(choice, recompute=mode)
    for precision in (Precision.BF16, Precision.FP32):
        if precision is not choice.training.precision:
            yield f"training.precision={precision}", _trained(choice, precision=precision)
    best = search(choice).candidates[:1]
    for one in best:
        words = (
            f"parallel.tensor={one.tensor} parallel.pipeline={one.pipeline} "
            f"parallel.virtual_pipeline={one.virtual_pipeline} training.micro_batch={one.micro_batch} "
            f"parallel.zero_stage={one.zero_stage} training.recompute={one.recompute}"
        )
        yield (
            f"{words} (best by --search)",
            replace(
                _trained(choice, recompute=Recompute(one.recompute)),
                tensor=one.tensor,
                pipeline=one.pipeline,
                virtual_pipeline=one.virtual_pipeline,
                sequence=one.sequence,
                zero_stage=one.zero_stage,
                micro_batch=one.micro_batch,
            ),
        )


def judge_choice(
    change: str, choice: Choice, machine: Machine | None = None, measured: Measured | None = None
) -> Alternative:
    """The figures of one choice, or the first rule that it breaks."""
    layout = lay_out(choice)
    broken = [check for check in [*check_layout(choice, layout), *check_schedule(choice, layout)] if _fails(check)]
    limit = memory_rules.memory_limit(choice, machine)
    if broken:
        return _broken(change, layout, limit, None, broken[0])
    stages = memory.all_stages(choice, layout, choice.shape)
    need = max(stage.least for stage in stages)
    if choice.on_cpu:
        need, _ = memory.node_bytes(stages, choice.devices_per_node)
    fits = memory_rules.check_memory(choice, stages, machine)
    if _fails(fits):
        return _broken(change, layout, limit, need, fits)
    calibration = measured.holds_for(choice, layout) if measured else None
    speed: Speed = estimate(choice, layout, duration(choice, layout), machine, calibration)
    return Alternative(
        change,
        layout.world_size,
        need,
        limit,
        speed.seconds_per_iteration,
        speed.seconds,
        speed.device_hours,
        speed.cost,
        "",
    )


def _broken(change: str, layout: Layout, limit: int, need: int | None, check: Check) -> Alternative:
    return Alternative(change, layout.world_size, need, limit, None, None, None, None, f"{check.value}; {check.rule}")


def _fails(check: Check) -> bool:
    return check.verdict == "fail"


def _trained(choice: Choice, **changed: Any) -> Choice:
    return replace(choice, training=choice.training.model_copy(update=changed))


def _beside(size: int) -> list[int]:
    return [2 * size] + ([size // 2] if size > 1 and size % 2 == 0 else [])

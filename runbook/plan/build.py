"""The whole plan: every number computed from what a person chose, every rule checked."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from runbook.plan import flops, memory, memory_rules, sizes
from runbook.plan.booking import check_disk, check_queues
from runbook.plan.calibration import Measured
from runbook.plan.checkpoint import Storage, storage
from runbook.plan.checks import Check, raise_if_failed
from runbook.plan.choices import Choice, Chosen, full_choice, smoke_choice
from runbook.plan.cpu_speed import check_cpu
from runbook.plan.data import DataPlan, check_data, check_epochs, plan_data
from runbook.plan.data_work import data_work
from runbook.plan.endurance import endurance
from runbook.plan.layout import Layout, lay_out
from runbook.plan.layout_rules import check_layout
from runbook.plan.machine import Machine
from runbook.plan.schedule import Duration, LearningRate, check_schedule, duration, learning_rate
from runbook.plan.spec import check_folders, phase_spec
from runbook.plan.speed import estimate
from runbook.plan.volumes import check_volumes

SCHEMA = 1


@dataclass(frozen=True)
class Plan:
    """The content of plan.json, and the checks it passed."""

    content: Mapping[str, Any]
    checks: tuple[Check, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, the caller's own copy."""
        return {**copy.deepcopy(dict(self.content)), "checks": [check.as_dict() for check in self.checks]}


@dataclass(frozen=True)
class _Phase:
    """One training phase, computed."""

    choice: Choice
    layout: Layout
    length: Duration
    rate: LearningRate
    checks: tuple[Check, ...]

    @property
    def fits(self) -> bool:
        """Whether what follows from the layout can be computed."""
        return not any(check.verdict == "fail" for check in self.checks)


def make_plan(settings: Chosen, machine: Machine | None = None, measured: Measured | None = None) -> Plan:
    """Compute everything a run needs; raise one `PlanError` that lists every rule the values break.

    Pure: no file, clock, network or environment. Facts of the machine at hand come in as `machine`; without them
    what depends on them is `unknown`. What smoke tests measured there (`measured`) corrects the step times.
    """
    data = plan_data(settings)
    phases = [_compute(choice, data) for choice in (smoke_choice(settings), full_choice(settings))]
    checks = [*check_data(settings, data), *check_queues(settings)]
    content: dict[str, Any] = {}
    for phase in phases:
        checks += [*phase.checks, *check_cpu(phase.choice, machine)]
        if phase.fits:
            stages = memory.all_stages(phase.choice, phase.layout, phase.choice.shape)
            checks.append(memory_rules.check_memory(phase.choice, stages, machine))
            checks += memory_rules.check_host_memory(phase.choice, stages)
    if all(phase.fits for phase in phases):
        content = _content(settings, data, phases, machine, measured or Measured(""))
        specs = list(content["phases"].values())
        checks += check_folders(specs[0], specs[1])
        checks += check_disk(_disk_bytes(content), machine)
        checks += check_volumes(settings, content)
    raise_if_failed(checks)
    return Plan(content, tuple(checks))


def _compute(choice: Choice, data: DataPlan) -> _Phase:
    layout = lay_out(choice)
    length = duration(choice, layout)
    checks = [*check_layout(choice, layout), *check_schedule(choice, layout)]
    checks += check_epochs(choice.phase, length.tokens, data)
    return _Phase(choice, layout, length, learning_rate(choice, layout, length), tuple(checks))


def _content(
    settings: Chosen, data: DataPlan, phases: list[_Phase], machine: Machine | None, measured: Measured
) -> dict[str, Any]:
    specs = {
        phase.choice.phase: phase_spec(settings, phase.choice, phase.layout, phase.length, phase.rate, data)
        for phase in phases
    }
    stores = {phase.choice.phase: _storage(phase, specs[phase.choice.phase]) for phase in phases}
    calibrations = {phase.choice.phase: measured.holds_for(phase.choice, phase.layout) for phase in phases}
    speeds = {
        phase.choice.phase: estimate(
            phase.choice, phase.layout, phase.length, machine, calibrations[phase.choice.phase]
        )
        for phase in phases
    }
    full = phases[-1].choice
    last = speeds[full.phase]
    return {
        "schema": SCHEMA,
        "run": settings.run.run,
        "site": settings.site.site,
        "variant": settings.variant,
        "model": {
            **settings.model.model_dump(mode="json"),
            "name": settings.run.model,
            "parameters": specs[full.phase]["model"]["parameters"],
            "padded_vocabulary": specs[full.phase]["model"]["padded_vocabulary"],
        },
        "phases": specs,
        "data": data.as_dict(),
        "data_work": [way.as_dict() for way in data_work(settings, data, machine)],
        "labels": [_label(phase.choice) for phase in phases],
        "parameters": {phase.choice.phase: _parameters(phase) for phase in phases},
        "memory": {phase.choice.phase: _memory(phase, machine) for phase in phases},
        "flops": {phase.choice.phase: _flops(phase) for phase in phases},
        "checkpoint": {name: asdict(store) for name, store in stores.items()},
        "time": {name: asdict(speed) for name, speed in speeds.items()},
        "calibration": {name: one and one.as_dict() for name, one in calibrations.items()},
        "endurance": endurance(
            full, settings.run.jobs.training, phases[-1].layout.world_size, stores[full.phase].checkpoint_bytes, last
        ).as_dict(),
    }


def _label(choice: Choice) -> dict[str, Any]:
    parameters = sizes.whole(choice.shape).total
    return {
        "model": choice.model_name,
        "label": choice.model.label,
        "parameters": parameters,
        "fits": sizes.label_fits(choice.model.label, parameters),
        "text": sizes.label_text(choice.model.label, parameters),
    }


def _parameters(phase: _Phase) -> dict[str, Any]:
    shape, layout = phase.choice.shape, phase.layout
    ranks = [
        sizes.on_rank(shape, tensor=layout.tensor, pipeline=layout.pipeline, stage=stage).total
        for stage in range(layout.pipeline)
    ]
    return {
        "whole": sizes.whole(shape).as_dict(),
        "per_rank_by_stage": ranks,
        "padded_vocabulary": shape.padded_vocabulary,
        "first_loss": round(sizes.expected_first_loss(shape), 4),
    }


def _memory(phase: _Phase, machine: Machine | None) -> dict[str, Any]:
    stages = memory.all_stages(phase.choice, phase.layout, phase.choice.shape)
    fullest = max(stages, key=lambda stage: stage.most)
    least, most = fullest.least, fullest.most
    if phase.choice.on_cpu:
        least, most = memory.node_bytes(stages, phase.choice.devices_per_node)
    return {
        "fullest_stage": fullest.as_dict(),
        "least_by_stage": [stage.least for stage in stages],
        "limit_of": "node" if phase.choice.on_cpu else "device",
        "limit_bytes": memory_rules.memory_limit(phase.choice, machine),
        "least_bytes": least,
        "most_bytes": most,
    }


def _flops(phase: _Phase) -> dict[str, Any]:
    shape = phase.choice.shape
    per_step = {name: flops.flops(shape, phase.layout.global_batch, name) for name in flops.CONVENTIONS}
    tokens = phase.layout.global_batch * shape.sequence_length
    return {
        "convention": flops.OURS,
        "per_iteration": per_step,
        "per_token": {name: value / tokens for name, value in per_step.items()},
    }


def _storage(phase: _Phase, spec: dict[str, Any]) -> Storage:
    keep: int = spec["checkpoint"]["keep"]
    return storage(spec["model"]["parameters"], phase.choice.training.precision, keep)


def _disk_bytes(content: Mapping[str, Any]) -> int:
    checkpoints = sum(store["disk_bytes"] for store in content["checkpoint"].values())
    return int(checkpoints + content["data"]["estimated_bytes"])

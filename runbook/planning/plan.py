"""The whole plan: every number computed from what a person chose, every rule checked."""

from dataclasses import replace

from runbook.core.checks import raise_if_failed
from runbook.params.settings import Settings
from runbook.plan_file.schema import PlannedModel
from runbook.planning.cost import flops, memory
from runbook.planning.cost.cpu import check_cpu
from runbook.planning.cost.endurance import endurance, storage
from runbook.planning.cost.speed import Calibrations, estimate
from runbook.planning.cost.step_inputs import check_device
from runbook.planning.layout import FULL, Choice, Machine, full_choice, smoke_choice
from runbook.planning.layout_rules import check_layout
from runbook.planning.phase_plan import check_folders, phase_plan
from runbook.planning.plan_record import (
    SCHEMA,
    CatalogueModel,
    ComputesOn,
    Label,
    PhaseFlops,
    PhaseMemory,
    PhaseParameters,
    Plan,
)
from runbook.planning.schedule import check_schedule, duration
from runbook.planning.site_limits import check_disk, check_queues, check_volumes, needs
from runbook.planning.sizes import expected_first_loss, label_fits, label_text, on_rank, same_fields, whole
from runbook.planning.token_files import DataPlan, check_data, check_epochs, data_work, plan_data


def make_plan(settings: Settings, machine: Machine | None = None, measured: Calibrations | None = None) -> Plan:
    """Compute everything a run needs; raise one `PlanError` that lists every rule the values break.

    Pure: no file, clock, network or environment. Facts of the machine at hand come in as `machine`; without them
    what depends on them is `unknown`. What smoke tests measured there (`measured`) corrects the step times.
    """
    data = plan_data(settings)
    smoke, full = smoke_choice(settings), full_choice(settings)
    checks = [*check_data(settings, data), *check_queues(settings), *check_device(full)]
    computable = True
    for choice in (smoke, full):
        rules = [*check_layout(choice), *check_schedule(choice)]
        rules += check_epochs(choice.phase, duration(choice).tokens, data)
        checks += [*rules, *check_cpu(choice, machine)]
        if any(check.verdict == "fail" for check in rules):
            computable = False
        else:
            stages = memory.all_stages(choice)
            checks.append(memory.check_memory(choice, stages, machine))
            checks += memory.check_host_memory(choice, stages)
    if not computable:
        raise_if_failed(checks)
    plan = _plan(settings, data, (smoke, full), machine, measured or Calibrations(""))
    checks += check_folders(*plan.phases.values())
    checks += check_disk(sum(needs(plan).values()), machine)
    checks += check_volumes(settings, plan)
    raise_if_failed(checks)
    return replace(plan, checks=tuple(checks))


def _plan(
    settings: Settings, data: DataPlan, choices: tuple[Choice, Choice], machine: Machine | None, measured: Calibrations
) -> Plan:
    by_phase = {choice.phase: choice for choice in choices}
    phases = {name: phase_plan(settings, choice, data) for name, choice in by_phase.items()}
    calibrations = {name: measured.holds_for(choice) for name, choice in by_phase.items()}
    speeds = {name: estimate(choice, machine, calibrations[name]) for name, choice in by_phase.items()}
    stores = {}
    for name, choice in by_phase.items():
        checkpoint = phases[name].checkpoint
        copies = checkpoint.keep + 1 if checkpoint.saves else 0
        stores[name] = storage(phases[name].model.parameters, choice.training.precision, copies)
    site, model = settings.site, phases[FULL].model
    fact = site.facts.get("hardware.device")
    catalogue = settings.model.model_dump(mode="json") | {
        "name": settings.run.model,
        "parameters": model.parameters,
        "padded_vocabulary": model.padded_vocabulary,
    }
    return Plan(
        schema=SCHEMA,
        run=settings.run.run,
        site=site.site,
        variant=settings.variant,
        computes_on=ComputesOn(
            **same_fields(ComputesOn, site.hardware), source=fact.source if fact else f"params/sites/{site.site}.yaml"
        ),
        model=CatalogueModel(**catalogue),
        phases=phases,
        data=data,
        data_work=data_work(settings, data, machine),
        labels=tuple(_label(phase.model) for phase in phases.values()),
        parameters={name: _parameters(choice) for name, choice in by_phase.items()},
        memory={name: _memory(choice, machine) for name, choice in by_phase.items()},
        flops={name: _flops(choice) for name, choice in by_phase.items()},
        checkpoint=stores,
        time=speeds,
        calibration=calibrations,
        endurance=endurance(by_phase[FULL], settings.run.jobs.training, stores[FULL].checkpoint_bytes, speeds[FULL]),
        checks=(),
    )


def _label(model: PlannedModel) -> Label:
    fits, text = label_fits(model.label, model.parameters), label_text(model.label, model.parameters)
    return Label(model=model.name, label=model.label, parameters=model.parameters, fits=fits, text=text)


def _parameters(choice: Choice) -> PhaseParameters:
    shape, cut = choice.shape, {"tensor": choice.tensor, "pipeline": choice.pipeline}
    ranks = (on_rank(shape, **cut, stage=stage, layers=count) for stage, count in enumerate(choice.stage_layers))
    return PhaseParameters(
        whole=whole(shape),
        per_rank_by_stage=tuple(rank.total for rank in ranks),
        padded_vocabulary=shape.padded_vocabulary,
        first_loss=round(expected_first_loss(shape), 4),
    )


def _memory(choice: Choice, machine: Machine | None) -> PhaseMemory:
    stages = memory.all_stages(choice)
    fullest = max(stages, key=lambda stage: stage.most)
    least, most = fullest.least, fullest.most
    if choice.on_cpu:
        least, most = memory.node_bytes(stages, choice.devices_per_node)
    return PhaseMemory(
        fullest_stage=fullest,
        least_by_stage=tuple(stage.least for stage in stages),
        limit_of="node" if choice.on_cpu else "device",
        limit_bytes=memory.memory_limit(choice, machine),
        least_bytes=least,
        most_bytes=most,
    )


def _flops(choice: Choice) -> PhaseFlops:
    per_step = {name: flops.flops(choice.shape, choice.global_batch, name) for name in flops.CONVENTIONS}
    tokens = choice.global_batch * choice.sequence_length
    return PhaseFlops(flops.OURS, per_step, {name: value / tokens for name, value in per_step.items()})

"""Makes the complete plan: computes all numbers from the user's choices, and checks all rules."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runbook.core.checks import Check
from runbook.core.errors import RecordError, raise_if_failed
from runbook.params.schema.value_types import parse_names
from runbook.params.settings import Settings
from runbook.plan_file import schema
from runbook.plan_file.alarms import AlarmSettings
from runbook.plan_file.deepspeed import own_config
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.identity import fingerprint
from runbook.plan_file.json_records import FLAT, as_json, from_json
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.schema import HasShape, ModelShape, PhasePlan, PlannedModel
from runbook.planning.advice import PlannedCosts, advise
from runbook.planning.choice import Choice, Machine, full_choice, smoke_choice
from runbook.planning.cost import flops, memory
from runbook.planning.cost.calibration import Calibration, Calibrations
from runbook.planning.cost.checkpoint_size import Storage, storage
from runbook.planning.cost.cpu import check_cpu
from runbook.planning.cost.long_training import LongTraining, estimate_long_training
from runbook.planning.cost.step_inputs import check_device, peak_of
from runbook.planning.cost.time_and_money import Speed, estimate
from runbook.planning.data_plan import (
    GPT2_END_OF_DOCUMENT,
    DataPlan,
    TextFiles,
    plan_data,
    text_on_site,
)
from runbook.planning.data_rules import check_data, check_epochs
from runbook.planning.fewer_nodes import FewerNodes, check_fewer_nodes
from runbook.planning.layout_rules import check_layout
from runbook.planning.messages import PlanningMessage
from runbook.planning.near_copy_memory import check_near_copies
from runbook.planning.network_rules import check_network
from runbook.planning.schedule import batch_of, check_schedule, duration, learning_rate
from runbook.planning.site_limits import check_nodes, check_queues, check_time_limit, check_volumes
from runbook.planning.sizes import (
    Parameters,
    expected_first_loss,
    label_fits,
    label_text,
    on_rank,
    stated_shape,
    whole,
)
from runbook.planning.token_preparation import PreparationCost, data_work
from runbook.planning.unattended import check_unattended

SCHEMA = 1


@dataclass(frozen=True)
class ComputesOn:
    """The number of devices per node, and where it is stated.

    The source is the site file, or the program that listed the GPUs in this machine.
    """

    device: str
    devices_per_node: int
    device_memory: int
    source: str


@dataclass(frozen=True, kw_only=True)
class CatalogueModel(HasShape):
    """A model in the catalogue, and the values it is trained with.

    A size of 0 means the default.
    """

    shape: ModelShape = field(metadata=FLAT)
    name: str
    label: str
    parameters: int
    source: str
    note: str
    training: dict[str, Any]


@dataclass(frozen=True)
class Label:
    """The usual label for a model, such as 1.3B, compared with the actual number of parameters."""

    model: str
    label: str
    parameters: int
    fits: bool
    text: str


@dataclass(frozen=True)
class PhaseParameters:
    """Parameter counts for one phase, by part and by rank, and the expected first loss."""

    whole: Parameters
    per_rank_by_stage: tuple[int, ...]
    padded_vocabulary: int
    first_loss: float


@dataclass(frozen=True)
class PhaseFlops:
    """FLOPs in one phase, by convention.

    `convention` names the convention the trainer and the plan report.
    """

    convention: str
    per_iteration: dict[str, float]
    per_token: dict[str, float]


@dataclass(frozen=True)
class Plan:
    """The content of plan.json, with a section for each phase."""

    schema: int
    run: str
    site: str
    variant: str
    computes_on: ComputesOn
    model: CatalogueModel
    phases: dict[str, PhasePlan]
    data: DataPlan
    data_work: tuple[PreparationCost, ...]
    labels: tuple[Label, ...]
    parameters: dict[str, PhaseParameters]
    memory: dict[str, memory.PhaseMemory]
    flops: dict[str, PhaseFlops]
    checkpoint: dict[str, Storage]
    time: dict[str, Speed]
    calibration: dict[str, Calibration | None]
    endurance: LongTraining
    checks: tuple[Check, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, in a copy the caller may change."""
        content: dict[str, Any] = as_json(self)
        return content


def parse_plan(text: str, source: Path) -> Plan:
    """Parse the text of a plan.json and return the plan.

    Raise `RecordError` with the file, every problem and the remedy.
    """
    try:
        return from_json(
            Plan,
            json.loads(text),
            name="plan.json",
            failure=f"{source} is not a plan of this version:",
        )
    except RefusedError as error:
        raise RecordError(PlanningMessage.OLD_PLAN, error=error) from None
    except (ValueError, RecursionError) as error:
        raise RecordError(PlanningMessage.PLAN_NOT_JSON, source=source, error=error) from error


def make_plan(
    settings: Settings,
    machine: Machine | None = None,
    measured: Calibrations | None = None,
    given_checks: Sequence[Check] = (),
    text_files: Mapping[str, TextFiles] = MappingProxyType({}),
) -> Plan:
    """Compute everything a run needs.

    Raise a single `PlanError` that lists every broken rule. The function is pure: it uses no file,
    clock, network or environment. `machine` has the facts about this machine; without it, checks
    that need these facts are `unknown`. `measured` contains step times from smoke tests on this
    machine, which correct the planned ones. `given_checks` are checks on files, which only the
    caller may read; they count like all other checks in the plan. `text_files` are the files of
    texts whose tokens are not counted, by the name of the text.
    """
    data = plan_data(settings)
    smoke = smoke_choice(settings)
    full = full_choice(settings)
    checks = [
        *check_data(settings, data),
        *given_checks,
        *check_queues(settings),
        *check_network(settings),
        *check_device(full),
    ]
    computable = True
    memories = dict[str, memory.PhaseMemory]()
    for choice in (smoke, full):
        rules = [*check_layout(choice), *check_schedule(choice)]
        rules += check_epochs(choice.phase, duration(choice).tokens, data, text_files)
        checks += check_nodes(settings, choice)
        checks += [*rules, *check_cpu(choice, machine)]
        if any(check.verdict == "fail" for check in rules):
            computable = False
        else:
            stages = memory.all_stages(choice)
            memories[choice.phase] = memory.phase_memory(choice, stages, machine)
            checks.append(memory.check_memory(choice, memories[choice.phase]))
            checks += memory.check_host_memory(choice, stages)
            node_memory = (
                machine.memory_bytes if machine else 0
            ) or settings.site.hardware.node_memory
            checks += check_near_copies(choice, stages, node_memory)

    if not computable:
        raise_if_failed(checks)
    plan = _plan(
        settings,
        data,
        (smoke, full),
        machine,
        measured or Calibrations(""),
    )
    checkpoints = sum(store.disk_bytes for store in plan.checkpoint.values())
    costs = PlannedCosts(plan.checkpoint[FULL], plan.time[FULL], plan.endurance)
    for choice in (smoke, full):
        checks += check_time_limit(settings, choice, plan.time[choice.phase])
    checks += advise(full, costs)
    checks += check_unattended(settings, plan.endurance)
    checks += check_fewer_nodes(settings, full)
    wants = {"checkpoints": checkpoints, "data": data.estimated_bytes}
    checks += check_volumes(settings, wants, text_on_site(settings))
    raise_if_failed(checks)
    return replace(plan, checks=tuple(checks), memory=memories)


def _plan(
    settings: Settings,
    data: DataPlan,
    choices: tuple[Choice, Choice],
    machine: Machine | None,
    measured: Calibrations,
) -> Plan:
    by_phase = {choice.phase: choice for choice in choices}
    phases = {name: phase_plan(settings, choice, data) for name, choice in by_phase.items()}
    calibrations = {name: measured.holds_for(choice) for name, choice in by_phase.items()}
    speeds = {}
    for name, choice in by_phase.items():
        speeds[name] = estimate(choice, machine, calibrations[name])

    stores = {name: storage(phase, by_phase[name].program) for name, phase in phases.items()}
    site = settings.site
    model = phases[FULL].model
    fact = site.facts.get("hardware.device")
    return Plan(
        schema=SCHEMA,
        run=settings.run.run,
        site=site.site,
        variant=settings.variant,
        computes_on=ComputesOn(
            device=site.hardware.device,
            devices_per_node=site.hardware.devices_per_node,
            device_memory=site.hardware.device_memory,
            source=fact.source if fact else f"params/sites/{site.site}.yaml",
        ),
        model=_catalogue_model(settings, model),
        phases=phases,
        data=data,
        data_work=data_work(settings, data, machine),
        labels=tuple(_label(phase.model) for phase in phases.values()),
        parameters={name: _parameters(choice) for name, choice in by_phase.items()},
        memory={},
        flops={name: _flops(choice) for name, choice in by_phase.items()},
        checkpoint=stores,
        time=speeds,
        calibration=calibrations,
        endurance=estimate_long_training(
            by_phase[FULL], settings.run.jobs.training, stores[FULL].checkpoint_bytes, speeds[FULL]
        ),
        checks=(),
    )


def _catalogue_model(settings: Settings, planned: PlannedModel) -> CatalogueModel:
    model = settings.model
    padded = planned.shape.padded_vocabulary
    return CatalogueModel(
        shape=dataclasses.replace(stated_shape(model), padded_vocabulary=padded),
        name=settings.run.model,
        label=model.label,
        parameters=planned.parameters,
        source=model.source,
        note=model.note,
        training=model.model_dump(mode="json")["training"],
    )


def _label(model: PlannedModel) -> Label:
    fits = label_fits(model.label, model.parameters)
    text = label_text(model.label, model.parameters)
    return Label(
        model=model.name,
        label=model.label,
        parameters=model.parameters,
        fits=fits,
        text=text,
    )


def _parameters(choice: Choice) -> PhaseParameters:
    layout = choice.layout
    shape = choice.shape
    cut = {"tensor": layout.tensor, "pipeline": layout.pipeline}
    ranks = (
        on_rank(shape, **cut, stage=stage, layers=count)
        for stage, count in enumerate(choice.stage_layers)
    )
    return PhaseParameters(
        whole=whole(shape),
        per_rank_by_stage=tuple(rank.total for rank in ranks),
        padded_vocabulary=shape.padded_vocabulary,
        first_loss=round(expected_first_loss(shape), 4),
    )


def _flops(choice: Choice) -> PhaseFlops:
    per_step = {}
    for name in flops.CONVENTIONS:
        per_step[name] = flops.flops(choice.shape, choice.global_batch, name)

    tokens = choice.global_batch * choice.sequence_length
    return PhaseFlops(
        flops.OURS, per_step, {name: value / tokens for name, value in per_step.items()}
    )


def phase_plan(settings: Settings, choice: Choice, data: DataPlan) -> PhasePlan:
    """Return the input for the trainer. Relative paths start from the folder with plan.json."""
    training = choice.training
    length = duration(choice)
    phase = PhasePlan(
        phase=choice.phase,
        engine=training.engine,
        seed=training.seed,
        device=choice.site.hardware.device,
        model=_model(choice),
        parallel=choice.layout,
        batch=batch_of(choice),
        duration=length,
        learning_rate=learning_rate(choice, length),
        optimizer=training.optimizer,
        precision=schema.PlannedPrecision(
            format=training.precision,
            initial_loss_scale=training.initial_loss_scale,
            loss_scale_window=training.loss_scale_window,
            static_loss_scale=training.static_loss_scale,
            fp8=training.fp8,
            hysteresis=training.loss_scale_hysteresis,
            minimum_loss_scale=training.min_loss_scale,
        ),
        recompute=training.recompute,
        data=_data(settings, choice, data),
        evaluation=schema.Evaluation(training.eval_interval, training.eval_iterations),
        checkpoint=_checkpoint(settings, choice),
        log=_log(settings, choice),
        limits=_limits(settings, choice),
        sampling=schema.Sampling(
            prompt="" if choice.smoke else training.sample_prompt,
            prompt_ids=(),
            tokens=training.sample_tokens,
            end_of_document=GPT2_END_OF_DOCUMENT if settings.run.data.tokenizer == "gpt2" else -1,
        ),
        fingerprint="",
        tuning=choice.tuning,
    )
    phase = dataclasses.replace(phase, fingerprint=fingerprint(phase))
    return dataclasses.replace(
        phase, deepspeed=own_config(phase) if choice.own_trainer and choice.deepspeed else {}
    )


def _model(choice: Choice) -> schema.PlannedModel:
    return schema.PlannedModel(
        shape=choice.shape,
        name=choice.model_name,
        label=choice.model.label,
        init_std=choice.training.init_std,
        dropout=choice.training.dropout,
        parameters=whole(choice.shape).total,
    )


def _data(settings: Settings, choice: Choice, data: DataPlan) -> schema.PlannedData:
    uses = ("train", "validation", "test")
    sources = {use: data.weighted(use) for use in uses}
    # The documents' programs do not use token counts, so their files get equal shares.
    if not choice.own_trainer:
        sources = {
            use: tuple(dataclasses.replace(file, text="") for file in files)
            for use, files in sources.items()
        }

    cache = _place(
        settings,
        choice,
        "data",
        "cache",
        in_run="data/cache",
    )
    return schema.PlannedData(
        mock=data.mock,
        **sources,
        split=data.split,
        cache=cache,
    )


def _limits(settings: Settings, choice: Choice) -> schema.Limits:
    """Return the limits for a phase. A smoke test is not ended by a time or step limit."""
    limits = dataclasses.replace(
        choice.training.limits, fewer_replicas=FewerNodes(settings, choice).replicas
    )
    if choice.smoke:
        return dataclasses.replace(limits, exit_duration_seconds=0, exit_interval=0)
    return limits


def _checkpoint(settings: Settings, choice: Choice) -> schema.Checkpoint:
    training = choice.training
    folder = _place(
        settings,
        choice,
        "checkpoints",
        "checkpoints",
        in_run="checkpoints",
    )
    if choice.smoke:
        return schema.Checkpoint(folder, interval=0, keep=1)
    return schema.Checkpoint(
        folder,
        interval=training.save_interval,
        keep=training.keep_checkpoints,
        keep_every=training.keep_every,
        asynchronous=training.async_save,
        resume_changed=training.resume_changed,
        saves=choice.own_trainer or training.save_interval > 0,
        near_interval=training.near_interval if choice.own_trainer else 0,
        near_folder=training.near_folder if training.near_interval else schema.NEAR_FOLDER,
    )


def _alarm_settings(choice: Choice) -> AlarmSettings:
    """Return the alarm settings.

    In a smoke test every step is checked, since there are only a few.
    """
    if choice.smoke:
        return AlarmSettings()
    return AlarmSettings(alarms_after=choice.training.alarms_after)


def _log(settings: Settings, choice: Choice) -> schema.Log:
    folder = "smoke/" if choice.smoke else ""
    peak = peak_of(choice.site, choice.training.precision) if choice.own_trainer else None
    return schema.Log(
        interval=1 if choice.smoke else choice.training.log_interval,
        metrics=f"{folder}metrics.jsonl",
        validation=f"{folder}validation.jsonl",
        samples=f"{folder}samples.jsonl",
        events="events.jsonl",
        tensorboard=_place(
            settings,
            choice,
            "tensorboard",
            "tensorboard",
            in_run="tensorboard",
        ),
        peak_tflops=peak or 0.0,
        alarm_webhook=choice.training.alarm_webhook,
        alarm_command=choice.training.alarm_command,
        alarms=_alarm_settings(choice),
        trackers=() if choice.smoke else parse_names(choice.training.trackers),
        tracker_project=choice.training.tracker_project,
    )


def _place(
    settings: Settings,
    choice: Choice,
    site_key: str,
    name: str,
    *,
    in_run: str,
) -> str:
    base = settings.site.paths.get(site_key, "")
    if not base:
        return f"smoke/{in_run}" if choice.smoke else in_run
    return f"{base.rstrip('/')}/{settings.name}/{'smoke-' if choice.smoke else ''}{name}"

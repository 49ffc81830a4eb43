"""Rules for layouts: how they must divide model and devices, and what each engine allows."""

from collections.abc import Iterator

from runbook.core.checks import Check, check_of, counted
from runbook.core.units import show_bytes
from runbook.params.schema.site import AUTO
from runbook.plan_file.diagnostics import RuleResult
from runbook.plan_file.rules.layout import (
    chunk_rules,
    engine_rules,
    shape_rules,
    sharing_rules,
)
from runbook.plan_file.rules.replay import replay_problems
from runbook.plan_file.rules.tuning import tuning_problems
from runbook.planning.choice import Choice
from runbook.planning.cost.step_inputs import memory_of
from runbook.planning.messages import PlanningMessage
from runbook.planning.precision_rules import precision_rules
from runbook.planning.rule_codes import PlanCode
from runbook.planning.sizes import on_rank

HEAD_SIZE_UNIT = 8
"""Flash attention and the matrix units require a head size that is a multiple of this."""


def check_layout(choice: Choice) -> list[Check]:
    """Apply every rule about devices, shape and batch to the run.

    If the devices do not divide evenly, the number of replicas is undefined, so no rule about the
    batch is applied. Rules shared by both phases are reported once, for the full training.
    """
    world = check_of(_world_size(choice), choice.phase)
    checks = [world, *_devices(choice), *_shape(choice)]
    if not choice.smoke:
        engine = engine_rules(choice.program, choice.layout.zero_stage, choice.training.precision)
        checks += [check_of(result) for result in engine]

    checks += choice.checks_of(_zero_stage(choice))
    checks += choice.checks_of(
        sharing_rules(choice.shape, choice.layout, choice.program, choice.keys)
    )
    if not choice.smoke:
        checks += [check_of(result) for result in precision_rules(choice)]
        checks += [check_of(problem) for problem in _tuning(choice)]
        checks += [check_of(problem) for problem in _replay(choice)]

    if world.verdict != "fail":
        checks += _batch(choice)
        checks += choice.checks_of(
            chunk_rules(choice.layout, choice.num_microbatches, choice.program, choice.keys)
        )

    return checks


def _tuning(choice: Choice) -> Iterator[RuleResult]:
    return tuning_problems(
        choice.tuning,
        choice.layout,
        choice.shape.layers,
        choice.training.recompute,
        deepspeed=choice.program == "deepspeed",
    )


def _replay(choice: Choice) -> Iterator[RuleResult]:
    training = choice.training
    return replay_problems(
        training.replay_interval if choice.own_trainer else 0,
        choice.tuning,
        training.fp8,
        deepspeed=choice.program == "deepspeed",
    )


def _world_size(choice: Choice) -> RuleResult:
    layout = choice.layout
    keys = choice.keys
    group = layout.ranks_per_replica
    factors = f"{keys.tensor}={layout.tensor} x {keys.pipeline}={layout.pipeline}"
    if layout.context > 1:
        factors += f" x parallel.context={layout.context}"
    divides = layout.world_size % group == 0
    if divides:
        groups = PlanningMessage.REPLICAS_OF_DEVICES.fill(replicas=layout.data, group=group)
    else:
        groups = PlanningMessage.GROUPS_OF_DEVICES.fill(group=group)

    return RuleResult(
        code=PlanCode.WORLD_SIZE,
        holds=divides,
        values={
            "world_size": layout.world_size,
            "nodes": counted(choice.nodes, "node"),
            "devices_per_node": choice.devices_per_node,
            "groups": groups,
            "factors": factors,
            "job_key": keys.job,
            "node_multiple": choice.node_multiple,
            "tensor_key": keys.tensor,
            "pipeline_key": keys.pipeline,
        },
        keys=(f"{keys.job}.nodes", keys.tensor, keys.pipeline, "parallel.context"),
    )


def _devices(choice: Choice) -> Iterator[Check]:
    hardware = choice.site.hardware
    if choice.on_cpu:
        # If it is unknown how many cores there are, 01-environment counts them.
        if hardware.cores_per_node:
            yield check_of(_processes_on_node(choice), choice.phase, otherwise="warn")
    elif hardware.device != AUTO:
        yield check_of(_devices_on_node(choice), choice.phase)
    elif not choice.smoke:
        yield check_of(
            RuleResult(
                code=PlanCode.NO_GPU_SEEN,
                holds=False,
                values={"site": choice.site.site},
                keys=("site",),
            )
        )

    if choice.layout.tensor > 1:
        yield check_of(_tensor_inside_node(choice), choice.phase, otherwise="warn")


def _processes_on_node(choice: Choice) -> RuleResult:
    cores = choice.site.hardware.cores_per_node
    return RuleResult(
        code=PlanCode.PROCESSES_ON_NODE,
        holds=choice.devices_per_node <= cores,
        values={
            "devices_per_node": choice.devices_per_node,
            "cores": cores,
            "job_key": choice.keys.job,
        },
        keys=(f"{choice.keys.job}.devices_per_node",),
    )


def _devices_on_node(choice: Choice) -> RuleResult:
    site_devices = choice.site.hardware.devices_per_node
    return RuleResult(
        code=PlanCode.DEVICES_ON_NODE,
        holds=choice.devices_per_node <= site_devices,
        values={
            "devices_per_node": choice.devices_per_node,
            "site_devices": site_devices,
            "site": choice.site.site,
            "job_key": choice.keys.job,
        },
        keys=(f"{choice.keys.job}.devices_per_node",),
    )


def _tensor_inside_node(choice: Choice) -> RuleResult:
    layout = choice.layout
    return RuleResult(
        code=PlanCode.TENSOR_INSIDE_NODE,
        holds=choice.devices_per_node % layout.tensor == 0,
        values={
            "tensor": layout.tensor,
            "tensor_key": choice.keys.tensor,
            "devices_per_node": choice.devices_per_node,
        },
        keys=(choice.keys.tensor,),
    )


def _shape(choice: Choice) -> Iterator[Check]:
    shape = choice.shape
    yield _head_size(choice)
    yield from choice.checks_of(shape_rules(shape, choice.layout, choice.model_name, choice.keys))
    training = choice.training
    if training.sample_prompt and not choice.smoke:
        sample = RuleResult(
            code=PlanCode.SAMPLE_FITS,
            holds=training.sample_tokens < shape.positions,
            values={
                "sample_tokens": training.sample_tokens,
                "positions": shape.positions,
                "most_tokens": shape.positions // 2,
            },
            keys=("training.sample_tokens",),
        )
        yield check_of(sample, choice.phase)


def _head_size(choice: Choice) -> Check:
    shape = choice.shape
    is_whole = shape.hidden % shape.heads == 0
    # Rotary embeddings rotate pairs of numbers.
    has_odd_pair = shape.head_size % 2 == 1 and shape.position_embedding == "rope"
    result = RuleResult(
        code=PlanCode.HEAD_SIZE,
        holds=is_whole and shape.head_size % HEAD_SIZE_UNIT == 0,
        values={
            "hidden": shape.hidden,
            "heads": shape.heads,
            "head_size": f"= {shape.head_size} per head" if is_whole else "is not whole",
            "model": choice.model_name,
        },
        keys=("model",),
    )
    trains = is_whole and not has_odd_pair and choice.site.hardware.device == "cpu"
    return check_of(result, choice.phase, otherwise="warn" if trains else "fail")


def _zero_stage(choice: Choice) -> Iterator[RuleResult]:
    """Check that a device has room for the complete weights that ZeRO 3 starts with."""
    layout = choice.layout
    memory = memory_of(choice.site)
    if choice.program != "deepspeed" or layout.zero_stage != 3 or not memory:
        return
    bytes_per_weight = 4 if choice.training.precision == "fp32" else 2
    weights = on_rank(choice.shape, tensor=layout.tensor, pipeline=1, stage=0).total
    needed = bytes_per_weight * weights
    keys = choice.keys
    yield RuleResult(
        code=PlanCode.ZERO_3_AT_START,
        holds=needed <= memory,
        values={
            "needed": show_bytes(needed),
            "memory": show_bytes(memory),
            "tensor_key": keys.tensor,
            "pipeline_key": keys.pipeline,
        },
        keys=(keys.tensor, "training.engine", keys.pipeline),
    )


def _batch(choice: Choice) -> Iterator[Check]:
    layout = choice.layout
    keys = choice.keys
    sequences_at_once = choice.micro_batch * layout.data
    multiple = round(choice.global_batch / sequences_at_once)
    divides = RuleResult(
        code=PlanCode.BATCH_DIVIDES,
        holds=choice.global_batch % sequences_at_once == 0,
        values={
            "global_batch": choice.global_batch,
            "micro_batch": choice.micro_batch,
            "data": layout.data,
            "step": sequences_at_once,
            "batch_key": keys.global_batch,
            "nearest": max(1, multiple) * sequences_at_once,
        },
        keys=(keys.global_batch,),
    )
    yield check_of(divides, choice.phase)
    if layout.pipeline > 1:
        filled = RuleResult(
            code=PlanCode.PIPELINE_FILLED,
            holds=choice.num_microbatches >= layout.pipeline,
            values={
                "num_microbatches": choice.num_microbatches,
                "pipeline": layout.pipeline,
                "bubble": choice.bubble,
                "batch_key": keys.global_batch,
                "pipeline_key": keys.pipeline,
            },
            keys=(keys.global_batch, keys.pipeline),
        )
        yield check_of(filled, choice.phase, otherwise="warn")

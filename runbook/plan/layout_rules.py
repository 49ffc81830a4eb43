"""Every rule about devices, shape and batch, and which of them a choice breaks."""

from __future__ import annotations

from collections.abc import Callable

from runbook.plan import engine_rules
from runbook.plan.checks import Check, counted, judge
from runbook.plan.choices import Choice
from runbook.plan.layout import Layout
from runbook.plan.sizes import Shape


def check_layout(choice: Choice, layout: Layout) -> list[Check]:
    """Every rule about devices, shape and batch; rules about things the run does not use are left out.

    Where the devices do not divide there is no number of copies, and nothing is said about the batch.
    """
    world = _world(choice, layout, choice.shape)
    rules = RULES if world.verdict == "fail" else RULES + BATCH_RULES
    found = [world, *(rule(choice, layout, choice.shape) for rule in rules)]
    return [check for check in found if check is not None]


def _world(choice: Choice, layout: Layout, shape: Shape) -> Check:
    group = choice.tensor * choice.pipeline * choice.context
    keys = choice.keys
    world = layout.world_size
    nodes = counted(choice.nodes, "node")
    factors = f"{keys.tensor}={choice.tensor} x {keys.pipeline}={choice.pipeline}"
    if choice.context > 1:
        factors += f" x parallel.context={choice.context}"
    divides = world % group == 0
    copies = f" = {layout.data} copies of {group}" if divides else f" do not divide into groups of {group}"
    return judge(
        f"{choice.phase}: world size",
        divides,
        f"{world} devices ({nodes} x {choice.devices_per_node}){copies} ({factors})",
        "world size = tensor x pipeline x context x data copies",
        f"Change {keys.job}.nodes to {_nodes_that_fit(choice, group)}, or choose {keys.tensor} x {keys.pipeline} "
        f"so that it divides {world}.",
    )


def _nodes_that_fit(choice: Choice, group: int) -> str:
    fitting = next(nodes for nodes in range(1, group + 1) if nodes * choice.devices_per_node % group == 0)
    return f"a multiple of {fitting}"


def _devices_on_node(choice: Choice, layout: Layout, shape: Shape) -> Check:
    has = choice.site.hardware.devices_per_node
    cores = choice.site.hardware.cores_per_node
    if choice.on_cpu:
        return judge(
            f"{choice.phase}: processes on a node",
            not cores or choice.devices_per_node <= cores,
            f"{choice.devices_per_node} processes on {cores or 'an unknown number of'} cores",
            "each process has a core of its own",
            f"Lower {choice.keys.job}.devices_per_node to at most {cores}; more is only slower.",
            otherwise="warn",
        )
    return judge(
        f"{choice.phase}: devices on a node",
        choice.devices_per_node <= has,
        f"{choice.devices_per_node} of {has} devices a node of {choice.site.site} has",
        "a job asks for no more devices than a node has",
        f"Set {choice.keys.job}.devices_per_node to at most {has}, or 0 for all of them.",
    )


def _tensor_in_node(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    if choice.tensor == 1:
        return None
    return judge(
        f"{choice.phase}: tensor inside a node",
        choice.devices_per_node % choice.tensor == 0,
        f"{choice.keys.tensor}={choice.tensor} on nodes of {choice.devices_per_node} devices",
        "the devices that share a matrix sit in one node, where the links are fast",
        f"Choose a {choice.keys.tensor} that divides {choice.devices_per_node}.",
        otherwise="warn",
    )


def _head_size(choice: Choice, layout: Layout, shape: Shape) -> Check:
    whole_heads = shape.hidden % shape.heads == 0
    size = f"= {shape.head_size} a head" if whole_heads else "is not whole"
    return judge(
        f"{choice.phase}: head size",
        whole_heads and shape.head_size % 8 == 0,
        f"hidden {shape.hidden} / {shape.heads} heads {size}",
        "the head size is a multiple of 8 (flash attention and the matrix units need it)",
        f"Choose heads for model {choice.model_name} so that hidden / heads is 64, 96 or 128.",
    )


def _heads_by_tensor(choice: Choice, layout: Layout, shape: Shape) -> Check:
    return judge(
        f"{choice.phase}: heads by tensor",
        shape.heads % choice.tensor == 0,
        f"{shape.heads} heads over {choice.keys.tensor}={choice.tensor}",
        "attention heads divide by tensor",
        f"Choose a {choice.keys.tensor} that divides {shape.heads}.",
    )


def _key_value_heads(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    if shape.kv_heads == shape.heads:
        return None
    return judge(
        f"{choice.phase}: key-value heads",
        shape.heads % shape.kv_heads == 0 and shape.kv_heads % choice.tensor == 0,
        f"{shape.kv_heads} key-value heads for {shape.heads} heads over {choice.keys.tensor}={choice.tensor}",
        "heads divide by key-value heads, and key-value heads by tensor",
        f"Choose a {choice.keys.tensor} that divides {shape.kv_heads}, or another kv_heads for {choice.model_name}.",
    )


def _feed_forward_by_tensor(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    if choice.tensor == 1:
        return None
    return judge(
        f"{choice.phase}: feed-forward by tensor",
        shape.ffn_hidden % choice.tensor == 0,
        f"feed-forward width {shape.ffn_hidden} over {choice.keys.tensor}={choice.tensor}",
        "the feed-forward width divides by tensor",
        f"Choose a {choice.keys.tensor} that divides {shape.ffn_hidden}.",
    )


def _layers_by_pipeline(choice: Choice, layout: Layout, shape: Shape) -> Check:
    chunks = choice.pipeline * choice.virtual_pipeline
    virtual = f" x parallel.virtual_pipeline={choice.virtual_pipeline}" if choice.virtual_pipeline > 1 else ""
    return judge(
        f"{choice.phase}: layers by pipeline",
        shape.layers % chunks == 0,
        f"{shape.layers} layers over {choice.keys.pipeline}={choice.pipeline}{virtual}",
        "layers divide by pipeline x virtual pipeline",
        f"Choose stages so that their product divides {shape.layers}.",
    )


def _batch(choice: Choice, layout: Layout, shape: Shape) -> Check:
    step = layout.micro_batch * layout.data
    return judge(
        f"{choice.phase}: batch",
        layout.global_batch % step == 0,
        f"{layout.global_batch} sequences over {layout.micro_batch} micro x {layout.data} copies = {step}",
        "the global batch divides by micro-batch x data copies",
        f"Set {choice.keys.global_batch} to {_nearest_multiple(layout.global_batch, step)}.",
    )


def _nearest_multiple(value: int, step: int) -> int:
    return max(step, round(value / step) * step)


def _pipeline_filled(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    if choice.pipeline == 1:
        return None
    idle = f"{layout.bubble:.0%} idle beside the work"
    return judge(
        f"{choice.phase}: pipeline filled",
        layout.num_microbatches >= choice.pipeline,
        f"{layout.num_microbatches} micro-batches for {choice.pipeline} stages: {idle}",
        "at least as many micro-batches as stages",
        f"Raise {choice.keys.global_batch}, or lower {choice.keys.pipeline}.",
        otherwise="warn",
    )


def _positions(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    if shape.position_embedding != "learned":
        return None
    return judge(
        f"{choice.phase}: positions",
        shape.sequence_length <= shape.positions,
        f"sequences of {shape.sequence_length} tokens, {shape.positions} learned positions",
        "a sequence is no longer than the model has positions",
        f"Lower {choice.keys.sequence_length} to {shape.positions}, or give model {choice.model_name} more positions.",
    )


def _sample(choice: Choice, layout: Layout, shape: Shape) -> Check | None:
    training = choice.training
    if choice.smoke or not training.sample_prompt:
        return None
    return judge(
        f"{choice.phase}: sample",
        training.sample_tokens < shape.positions,
        f"training.sample_tokens={training.sample_tokens} after the prompt, {shape.positions} positions",
        "prompt and continuation fit into the model's positions",
        f"Lower training.sample_tokens to at most {shape.positions // 2}.",
    )


Rule = Callable[[Choice, Layout, Shape], Check | None]

RULES: tuple[Rule, ...] = (
    _devices_on_node,
    _tensor_in_node,
    _head_size,
    _heads_by_tensor,
    _key_value_heads,
    _feed_forward_by_tensor,
    _layers_by_pipeline,
    _positions,
    _sample,
    engine_rules.precision_there,
    engine_rules.zero_stage,
    engine_rules.whole_at_start,
    engine_rules.loss_scale,
    engine_rules.zero_in_fp16,
    engine_rules.sequence_parallel,
    engine_rules.context_parallel,
)

BATCH_RULES: tuple[Rule, ...] = (_batch, _pipeline_filled, engine_rules.virtual_pipeline)

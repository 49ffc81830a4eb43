"""Translates a training run's description into input for the planner."""

import math
from dataclasses import replace

from runbook.params.schema.entries import Model
from runbook.params.schema.run_file import Training
from runbook.params.schema.site import Site
from runbook.plan_file.phase_names import FULL
from runbook.plan_file.rules.phase_keys import FULL_KEYS
from runbook.plan_file.schema import ModelShape
from runbook.planning.choice import Choice
from runbook.planning.cost.iteration import StepSetup
from runbook.planning.layout_search import fits, fullest_device

_HIGHEST_MEGATRON_STAGE = 1
"""Highest ZeRO stage in Megatron's own optimizer.

Megatron shards only the optimizer states. DeepSpeed also shards gradients and weights, as FSDP
does.
"""


def choice_of(setup: StepSetup) -> Choice:
    """Return a described training run as input for the planner."""
    layout = setup.layout
    devices_per_node = math.gcd(layout.world_size, setup.device.devices_per_node)
    return Choice(
        phase=FULL,
        keys=FULL_KEYS,
        model_name="described",
        model=_model(setup.shape),
        layout=replace(layout, sequence=layout.sequence and layout.tensor > 1),
        devices_per_node=devices_per_node,
        micro_batch=setup.micro_batch,
        global_batch=setup.global_batch,
        sequence_length=setup.shape.sequence_length,
        training=_training(setup),
        site=_site(setup, devices_per_node),
    )


def fits_device(setup: StepSetup) -> bool:
    """Return whether the training fits in device memory, according to the planner."""
    needed = fullest_device(choice_of(setup), keeps_scores=not setup.flash)
    return fits(needed, setup.device)


def _model(shape: ModelShape) -> Model:
    """Return the model for a described training run, with every field that its shape states.

    All other fields have a GPT's defaults. If stated fields were ignored, a Llama model would lack
    its output layer.
    """
    return Model(
        label="described",
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        ffn_hidden=shape.ffn_hidden,
        sequence_length=shape.sequence_length,
        # Sequences may be longer than in the catalogue; each token then has a learned position.
        positions=max(shape.positions, shape.sequence_length),
        vocabulary=shape.vocabulary,
        tied_embeddings=shape.tied_embeddings,
        position_embedding=shape.position_embedding,
        normalization=shape.normalization,
        activation=shape.activation,
        biases=shape.biases,
        qkv_biases=shape.qkv_biases,
        norm_epsilon=shape.norm_epsilon,
        rope_base=round(shape.rope_base),
        source="described",
    )


def _training(setup: StepSetup) -> Training:
    is_sharded = setup.layout.zero_stage > _HIGHEST_MEGATRON_STAGE
    is_deepspeed = is_sharded or setup.code == "unfused"
    return Training.model_validate(
        {
            "iterations": 1,
            "framework": "megatron-deepspeed" if is_deepspeed else "megatron-lm",
            "precision": _PRECISIONS.get(setup.precision, "bf16"),
            "recompute": "full" if setup.recompute == "full" else "none",
            "micro_batch": setup.micro_batch,
            "global_batch": setup.global_batch,
        }
    )


_PRECISIONS = {"fp16": "fp16", "fp32": "fp32", "tf32": "fp32"}
"""Weight format used with each format for matrix products. 8-bit formats keep bf16 weights."""


def _site(setup: StepSetup, devices_per_node: int) -> Site:
    device = setup.device
    return Site.model_validate(
        {
            "site": "described",
            "title": "described",
            "scheduler": "local",
            "hardware": {
                "device": device.name,
                "device_memory": device.memory_bytes,
                "devices_per_node": devices_per_node,
                "nodes": setup.layout.world_size // devices_per_node,
            },
        }
    )

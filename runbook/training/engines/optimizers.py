"""The optimizer for each engine, configured by `optimizer` in the plan."""

from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

from runbook.plan_file.schema import PhasePlan
from runbook.training.engines import gpt_model


def shares_optimizer(spec: PhasePlan) -> bool:
    """Return whether each replica updates only its own part of the weights.

    This is not the case for a single replica, which would only exchange gradients and weights with
    itself.
    """
    return spec.parallel.zero_stage == 1 and spec.parallel.data * spec.parallel.context > 1


def _megatron_config(spec: PhasePlan) -> OptimizerConfig:
    """Return the arguments for the megatron-core Adam and the loss scale."""
    return OptimizerConfig(
        optimizer="adam",
        lr=spec.learning_rate.peak,
        min_lr=spec.learning_rate.minimum,
        weight_decay=spec.optimizer.weight_decay,
        adam_beta1=spec.optimizer.beta1,
        adam_beta2=spec.optimizer.beta2,
        adam_eps=spec.optimizer.epsilon,
        clip_grad=spec.optimizer.clip_gradient,
        bf16=spec.precision.format == "bf16",
        fp16=spec.precision.format == "fp16",
        params_dtype=gpt_model.DTYPES[spec.precision.format],
        use_distributed_optimizer=shares_optimizer(spec),
        initial_loss_scale=spec.precision.initial_loss_scale,
        min_loss_scale=min(spec.precision.minimum_loss_scale, spec.precision.initial_loss_scale),
        loss_scale=spec.precision.static_loss_scale or None,
        loss_scale_window=spec.precision.loss_scale_window,
        hysteresis=spec.precision.hysteresis,
    )


def megatron_optimizer(spec: PhasePlan, chunks: list[Any]) -> Any:
    """Return the megatron-core optimizer for the chunks of a model."""
    optimizer = get_megatron_optimizer(
        _megatron_config(spec), chunks, use_gloo_process_groups=False
    )
    _use_fused_adam(inner_optimizer(optimizer).optimizer)
    return optimizer


def inner_optimizer(optimizer: Any) -> Any:
    """Return the single optimizer in the chain that megatron-core creates."""
    chained = getattr(optimizer, "chained_optimizers", [optimizer])
    assert len(chained) == 1, "a dense model has one optimizer"
    return chained[0]


def _use_fused_adam(adam: Any) -> None:
    """Make torch update all weights in one kernel, as Apex and Transformer Engine do."""
    if not isinstance(adam, torch.optim.Adam):
        return
    for group in adam.param_groups:
        group["fused"] = True
        group["foreach"] = False


def deepspeed_adam(spec: PhasePlan, gpt: torch.nn.Module) -> torch.optim.AdamW:
    """Return AdamW with the two parameter groups in Megatron: only matrices have weight decay."""
    decaying = []
    others = []
    for name, weight in gpt.named_parameters():
        if name.endswith(".bias") or weight.dim() == 1:
            others.append(weight)
        else:
            decaying.append(weight)

    optimizer = spec.optimizer
    return torch.optim.AdamW(
        [
            {"params": decaying, "weight_decay": optimizer.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=0.0,  # Set by `update`
        betas=(optimizer.beta1, optimizer.beta2),
        eps=optimizer.epsilon,
        fused=True,
    )

"""Optimizer options, by framework.

Arguments are rendered in the order of these rows.
"""

from runbook.frameworks.option_rows import Option, PhaseRun
from runbook.plan_file.schema import PhasePlan


def _has_own_adam_epsilon(phase: PhasePlan) -> bool:
    return phase.optimizer.epsilon != 1e-8


def _betas(run: PhaseRun) -> tuple[float, float]:
    return run.phase.optimizer.beta1, run.phase.optimizer.beta2


_BETAS = "training.adam_beta1 training.adam_beta2"

MEGATRON_OPTIMIZER = (
    Option("adam-beta1", "training.adam_beta1", float, "optimizer.beta1"),
    Option("adam-beta2", "training.adam_beta2", float, "optimizer.beta2"),
    Option("adam-eps", "training.adam_epsilon", float, "optimizer.epsilon"),
    Option("weight-decay", "training.weight_decay", float, "optimizer.weight_decay"),
    Option("clip-grad", "training.clip_gradient", float, "optimizer.clip_gradient"),
)
"""Options that Megatron-LM and Megatron-DeepSpeed share."""

NEMO_CLIPPING = Option(
    "trainer.gradient_clip_val", "training.clip_gradient", float, "optimizer.clip_gradient"
)
"""Option for clipping gradients in NeMo, where the trainer does this, not the optimizer."""

NEMO_OPTIMIZER = (
    Option("model.optim.weight_decay", "training.weight_decay", float, "optimizer.weight_decay"),
    Option("model.optim.betas", _BETAS, float, _betas),
    # The files from NeMo have no such entry, so Hydra requires ++. Adam in Apex accepts the value
    # as an argument.
    Option(
        "++model.optim.eps",
        "training.adam_epsilon",
        float,
        "optimizer.epsilon",
        _has_own_adam_epsilon,
    ),
)

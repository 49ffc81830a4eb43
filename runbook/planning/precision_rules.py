"""Rules for number formats on CPUs, in Transformer Engine and with DeepSpeed loss scaling."""

import math
from collections.abc import Iterator

from runbook.plan_file.diagnostics import RuleResult
from runbook.planning.choice import Choice
from runbook.planning.rule_codes import PlanCode


def precision_rules(choice: Choice) -> Iterator[RuleResult]:
    """Yield what the number format requires from the CPU, Transformer Engine and DeepSpeed."""
    precision = choice.training.precision
    if choice.on_cpu:
        yield RuleResult(
            code=PlanCode.PRECISION_OF_CPU,
            holds=precision != "fp16",
            values={"precision": precision},
            keys=("training.precision",),
        )

    transformer_engine_keys = _transformer_engine_keys(choice)
    if transformer_engine_keys:
        yield _transformer_engine(choice, transformer_engine_keys)
    if choice.training.reduce_in_bf16:
        yield RuleResult(
            code=PlanCode.SUMS_IN_BF16,
            holds=precision == "bf16",
            values={"precision": precision},
            keys=("training.reduce_in_bf16", "training.precision"),
        )
    if choice.program == "deepspeed" and precision == "fp16":
        yield _loss_scale(choice)


def _transformer_engine_keys(choice: Choice) -> list[str]:
    """Return the keys that request Transformer Engine."""
    training = choice.training
    keys = []
    for key in ("overlap_tensor", "cuda_graphs"):
        if getattr(training, key):
            keys.append(f"training.{key}")

    if training.fp8 != "none":
        keys.append("training.fp8")
    return keys


def _transformer_engine(choice: Choice, keys: list[str]) -> RuleResult:
    training = choice.training
    settings = [f"{key}={training.fp8}" if key == "training.fp8" else key for key in keys]
    number_format_fits = training.fp8 == "none" or training.precision == "bf16"
    return RuleResult(
        code=PlanCode.TRANSFORMER_ENGINE,
        holds=not choice.on_cpu and not choice.deepspeed and number_format_fits,
        values={
            "wanted": ", ".join(settings),
            "precision": training.precision,
            "device": choice.site.hardware.device,
        },
        keys=(*keys, "training.precision", "training.engine"),
    )


def _loss_scale(choice: Choice) -> RuleResult:
    initial = choice.training.initial_loss_scale
    smallest_scale = choice.training.min_loss_scale
    exponent = math.log2(initial)
    return RuleResult(
        code=PlanCode.LOSS_SCALE,
        holds=exponent.is_integer() and float(smallest_scale).is_integer(),
        values={"initial": initial, "least": smallest_scale, "power_of_two": 2 ** round(exponent)},
        keys=("training.initial_loss_scale", "training.min_loss_scale", "training.engine"),
    )

"""Recipes for NeMo 2, in Python or as YAML exported by `nemo_run`.

Both have the same dotted keys: `recipe.trainer.max_steps = 100` and `trainer: max_steps: 100`.
"""

from runbook.tools.adopt.configs.config_format import (
    ConfigFormat,
    OtherProgram,
    Values,
    is_on,
    line_of,
    text,
    value_of,
    whole_number,
)
from runbook.tools.adopt.configs.nemo_keys import DEFAULTS, ROWS
from runbook.tools.adopt.configs.recipes import (
    is_other_model,
    recipe_of,
    recipe_of_class,
    recipe_of_weights,
    weights_of,
)
from runbook.tools.adopt.configs.shared_steps import (
    drop_single_chunk,
    take_tokenizer_file,
    turn_evaluation_off,
    turn_saves_off,
)
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.program_arguments import ModelKind

_PEAK = 3e-4
"""Default learning rate in the recipes (recipes/optim/adam.py)."""
_EIGHT_BITS = {
    "mxfp8": "mxfp8",
    "fp8_current": "tensorwise",
    "fp8_subchannel": "blockwise",
    "fp8": "delayed",
}
"""The 8-bit scaling, by a substring in the precision name. The first match applies.

Source: recipes/precision/mixed_precision.py.
"""
_DIFFERENCES = (
    OtherProgram(
        topic="trainer",
        theirs="Lightning and NeMo around megatron-core, with Transformer Engine's layers",
        ours="our own trainer around megatron-core; Transformer Engine where it is installed",
    ),
    OtherProgram(
        topic="values that the file omits",
        theirs="the recipe's own",
        ours=(
            "the values of NeMo's recipe of 2025-09; another version may have different values. "
            "Export the recipe as YAML and adopt that file"
        ),
    ),
    OtherProgram(
        topic="checkpoints",
        theirs="every 15 minutes and the best ten",
        ours="every training.save_interval steps, the newest training.keep_checkpoints",
    ),
)


def _finish(values: Values, findings: Findings, kind: ModelKind) -> None:
    """Set the model, and compute the values that depend on several keys."""
    take_recipe_model(values, findings)
    _take_mock_text(values, findings)
    _take_recipe_defaults(values, findings)
    _take_eight_bits(values, findings)
    _take_least_rate(values, findings)
    if not findings.number("training.eval_iterations"):
        turn_evaluation_off(findings, line_of(values, "trainer.limit_val_batches"))
    _take_saves(values, findings)
    take_tokenizer_file(
        values,
        "data.tokenizer.pretrained_model_name",
        "tokenizer.pretrained_model_name",
        findings=findings,
    )
    drop_single_chunk(findings)


def take_recipe_model(values: Values, findings: Findings) -> None:
    """Adopt the model from the recipe or its model class, unless the file sets its own shape."""
    model_class = text(values, "model.config._target_")
    provider = text(values, "model._target_")
    weights = weights_of(provider)
    name = model_class or weights or text(values, "recipe")
    line = line_of(values, "model.config._target_", "model._target_", "recipe")
    if is_other_model(model_class.lower()) or is_other_model(weights.lower()):
        findings.trains_another_model(line, name, "experts, or layers of its own kind")
    if all(findings.number(f"training.shape.{size}") for size in ("layers", "hidden", "heads")):
        return

    if model_class:
        recipe = recipe_of_class(model_class)
    elif "from_hf_pretrained" in provider:
        recipe = recipe_of_weights(weights)
    else:
        recipe = recipe_of(name)
    if recipe is None:
        model = name or "the configuration"
        findings.ask("model", f"the model of {model}, whose shape is not given")
        return

    source = name if model_class else f"recipe {name}"
    if recipe.model:
        findings.take("model", recipe.model, line, source)
    for size_name, size in recipe.shape.items():
        findings.take(f"training.shape.{size_name}", size, line, source, over=False)
    findings.vocabulary = findings.vocabulary or recipe.vocabulary


def _take_mock_text(values: Values, findings: Findings) -> None:
    """Use synthetic text, which is the default in every recipe."""
    names_no_module = "data._target_" not in values
    if names_no_module or text(values, "data._target_").endswith("MockDataModule"):
        line = line_of(values, "data._target_")
        findings.take("data.dataset", "mock", line, "MockDataModule: synthetic text")


def _take_recipe_defaults(values: Values, findings: Findings) -> None:
    """Use the schedule and precision that all recipes default to."""
    line = line_of(values, "optim.lr_scheduler._target_")
    findings.take("training.schedule", "cosine", line, "CosineAnnealing", over=False)
    findings.take("training.precision", "bf16", 0, "bf16_mixed is the recipes' default", over=False)


def _take_eight_bits(values: Values, findings: Findings) -> None:
    """Adopt the 8-bit scaling from a precision setting such as `bf16_with_fp8_mixed`."""
    precision = text(values, "trainer.plugins._target_")
    for sign, scaling in _EIGHT_BITS.items():
        if sign in precision:
            line = line_of(values, "trainer.plugins._target_")
            findings.take("training.fp8", scaling, line, precision)
            return


def _take_least_rate(values: Values, findings: Findings) -> None:
    """Use a tenth of the peak as the minimum learning rate, if the file does not set one."""
    if "optim.lr_scheduler.min_lr" in values or "optim.min_lr" in values:
        return
    peak = findings.value("training.learning_rate", _PEAK)
    source = "a tenth of the peak"
    findings.take("training.min_learning_rate", 0.1 * peak, 0, source, over=False)


def _take_saves(values: Values, findings: Findings) -> None:
    """Turn checkpoints off if they are off in NeMo.

    Ask for the save interval if NeMo states it in minutes.
    """
    is_given = "trainer.enable_checkpointing" in values
    is_off = is_given and not is_on(values, "trainer.enable_checkpointing")
    has_none = "log.ckpt" in values and value_of(values, "log.ckpt") is None
    if is_off or has_none:
        turn_saves_off(findings, line_of(values, "trainer.enable_checkpointing", "log.ckpt"))
    elif not whole_number(values, "log.ckpt.every_n_train_steps"):
        question = "steps between checkpoints: NeMo saves at time intervals"
        findings.ask("training.save_interval", question)


NEMO_2 = ConfigFormat(
    program="NeMo 2",
    rows=ROWS,
    defaults=DEFAULTS,
    kind={},
    differences=_DIFFERENCES,
    finish=_finish,
    signs=frozenset(
        {
            "trainer.strategy.",
            "optim.config.",
            "trainer.devices",
            "data.global_batch_size",
            "trainer.max_steps",
        }
    ),
)

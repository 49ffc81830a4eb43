"""Identity of a training run: the values that determine its losses or that a resume must keep."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, cast

from runbook.plan_file.json_records import as_json, shown
from runbook.plan_file.messages import PlanFileMessage
from runbook.plan_file.schema import PhasePlan, Source

FREE = (
    "duration.iterations",
    "duration.samples",
    "learning_rate.decay_samples",
    "learning_rate.wsd_decay_samples",
)
"""Keys for the length, which a resume may change.

A training run that is made longer or shorter remains the same run, and the decay changes with the
length.
"""
_WARMUP = "learning_rate.warmup_samples"
_DECAY = "learning_rate.decay_samples"


def fingerprint(phase: PhasePlan) -> str:
    """Return the sha256 of all values that determine the losses, apart from rounding.

    These are the initial weights, data order, steps, rates and number format.

    Engine, layout and micro-batch are left out, since they only affect the rounding and may change
    at a resume. Names, folders, logging, evaluation and sampling are also left out.
    """
    data = phase.data
    files = {"validation": _names(data.validation), "test": _names(data.test)}
    content = {
        **{
            key: value
            for key, value in _sections(phase).items()
            if key not in ("batch", "duration")
        },
        "global_batch": phase.batch.global_,
        "samples": phase.duration.samples,
        "precision": as_json(phase.precision),
        "data": {**_data(phase), **files},
    }
    if phase.batch.ramp.start:
        content["ramp"] = as_json(phase.batch.ramp)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def recipe(phase: PhasePlan) -> dict[str, Any]:
    """Return the training length and all values a resume must not change, as a flat mapping.

    The keys are the same as in plan.json. The loss scale is left out, because a checkpoint contains
    it, and so are held-out files, because no step learns from them.
    """
    content: dict[str, Any] = {"seed": phase.seed}
    for section, values in _sections(phase).items():
        if isinstance(values, dict):
            content |= {f"{section}.{key}": value for key, value in values.items()}

    return content


def differences(
    saved: Mapping[str, Any], planned: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Return the differences that make two recipes different training runs, and those that do not.

    The text for a difference contains both values.

    >>> differences({"seed": 1, "duration.samples": 8}, {"seed": 2, "duration.samples": 16})
    (['seed 1 (plan: 2)'], ['duration.samples 8 (plan: 16)'])
    """
    free = FREE + (_WARMUP,) * _warmup_follows(saved, planned)
    serious: list[str] = []
    harmless: list[str] = []
    for key in sorted({*saved, *planned}):
        saved_value = saved.get(key)
        planned_value = planned.get(key)
        if saved_value != planned_value:
            text = PlanFileMessage.VALUE_DIFFERS.fill(
                key=key,
                value=shown(saved_value, 80),
                whose="plan",
                planned=shown(planned_value, 80),
            )
            (harmless if key in free else serious).append(text)

    return serious, harmless


def same_training(before: PhasePlan, after: PhasePlan) -> bool:
    """Return whether `after` continues the training in `before`; length and layout may differ.

    The vocabulary padding depends on the layout, but the trainer keeps the padding in the
    checkpoint.
    """
    padding = {"model.padded_vocabulary": after.model.shape.padded_vocabulary}
    serious, _ = differences(recipe(before) | padding, recipe(after))
    return not serious


def step_inputs(phase: PhasePlan) -> dict[str, Any]:
    """Return the values a finished step depends on.

    These are all values except paths, save intervals and limits.
    """
    left_out = ("log", "checkpoint", "limits", "fingerprint")
    inputs: dict[str, Any] = {}
    for key, value in as_json(phase).items():
        if key not in left_out:
            inputs[key] = value

    return inputs


def layout_inputs(phase: PhasePlan) -> dict[str, Any]:
    """Return the values that determine how much memory, computation and communication a step needs.

    Data, rates and training length are left out.
    """
    left_out = (
        "phase",
        "seed",
        "duration",
        "learning_rate",
        "data",
        "evaluation",
        "sampling",
        "fingerprint",
    )
    inputs: dict[str, Any] = {}
    for key, value in step_inputs(phase).items():
        if key not in left_out:
            inputs[key] = value

    return inputs


def _sections(phase: PhasePlan) -> dict[str, Any]:
    """Return the plan sections that determine the losses and must not change when resuming.

    Files are compared by name, not by folder.
    """
    model = as_json(phase.model)
    for key in ("name", "label", "parameters"):
        del model[key]
    precision: dict[str, str] = {"format": phase.precision.format}
    if phase.precision.fp8 != "none":
        precision["fp8"] = phase.precision.fp8
    return {
        "seed": phase.seed,
        "model": model,
        "duration": {"iterations": phase.duration.iterations, "samples": phase.duration.samples},
        "batch": {"global": phase.batch.global_, "ramp": dataclasses.asdict(phase.batch.ramp)},
        "learning_rate": as_json(phase.learning_rate),
        "optimizer": as_json(phase.optimizer),
        "precision": precision,
        "data": _data(phase),
    }


def _data(phase: PhasePlan) -> dict[str, Any]:
    data = phase.data
    return {
        "mock": data.mock,
        "train": _names(data.train),
        "split": "" if data.held_out else data.split,
    }


def _names(sources: tuple[Source, ...]) -> list[list[Any]]:
    text = ["by tokens"] if any(source.text for source in sources) else []
    return [[source.weight, PurePosixPath(source.prefix).name, *text] for source in sources]


def _warmup_follows(saved: Mapping[str, Any], planned: Mapping[str, Any]) -> bool:
    """Return whether the warm-up and decay were changed by the same factor, apart from rounding.

    If so, the warm-up has changed only because the length has.
    """
    lengths = (saved.get(_WARMUP), saved.get(_DECAY), planned.get(_WARMUP), planned.get(_DECAY))
    if not all(isinstance(length, int) for length in lengths):
        return False
    saved_warmup, saved_decay, planned_warmup, planned_decay = cast("tuple[int, ...]", lengths)
    if saved_decay == 0:
        return False

    ratio = planned_decay / saved_decay
    # Both warm-ups are rounded to whole steps, and one of them is scaled here after rounding.
    rounding = 1 + ratio
    return ratio != 1 and abs(planned_warmup - saved_warmup * ratio) <= rounding

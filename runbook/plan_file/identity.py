"""Identity of a training: what determines its losses, and which differences forbid a resume."""

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
"""Keys of the length: a longer or shorter training is still the same one, and the decay follows its
length.
"""
_WARMUP = "learning_rate.warmup_samples"
_DECAY = "learning_rate.decay_samples"


def fingerprint(phase: PhasePlan) -> str:
    """Return the sha256 of what determines the losses, apart from rounding.

    Weights, data order, steps, rates, number format.

    Left out: engine, parallel cut and micro-batch, which only change the rounding and may change on
    a resume, and names, folders, logging, evaluation, sampling.
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
    """Return the length and every value that a resume must not change, as a flat mapping.

    Each value is under its key in plan.json. The state that a checkpoint has itself (the loss
    scale) and the files that no step learns from (held-out files) are left out.
    """
    content: dict[str, Any] = {"seed": phase.seed}
    for section, values in _sections(phase).items():
        if isinstance(values, dict):
            content |= {f"{section}.{key}": value for key, value in values.items()}

    return content


def differences(
    saved: Mapping[str, Any], planned: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """Return the differences of two recipes that make it another training, and those that do not.

    Each has both values.

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
    """Return whether `after` continues the training of `before`, whatever its length and layout.

    The padding of the vocabulary depends on the cut, and the trainer keeps the padding of its
    checkpoint.
    """
    padding = {"model.padded_vocabulary": after.model.shape.padded_vocabulary}
    serious, _ = differences(recipe(before) | padding, recipe(after))
    return not serious


def step_inputs(phase: PhasePlan) -> dict[str, Any]:
    """Return the values that a finished step depends on.

    They are all values except paths, save intervals and limits.
    """
    left_out = ("log", "checkpoint", "limits", "fingerprint")
    inputs: dict[str, Any] = {}
    for key, value in as_json(phase).items():
        if key not in left_out:
            inputs[key] = value

    return inputs


def layout_inputs(phase: PhasePlan) -> dict[str, Any]:
    """Return what memory, work and messages of a step depend on.

    Data, rates and the length of the training are left out.
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
    """Return what determines the losses and may not change on a resume.

    Files are compared by their names, not by their folders.
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
    """Return whether the warm-up is the same share of another decay, apart from rounding.

    Then it only follows the length.
    """
    lengths = (saved.get(_WARMUP), saved.get(_DECAY), planned.get(_WARMUP), planned.get(_DECAY))
    if not all(isinstance(length, int) for length in lengths):
        return False
    saved_warmup, saved_decay, planned_warmup, planned_decay = cast("tuple[int, ...]", lengths)
    if saved_decay == 0:
        return False

    ratio = planned_decay / saved_decay
    # Both warm-ups were rounded to whole steps, and one of them is multiplied here after its
    # rounding.
    rounding = 1 + ratio
    return ratio != 1 and abs(planned_warmup - saved_warmup * ratio) <= rounding

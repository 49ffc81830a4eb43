"""What a checkpoint was trained by, and which differences from the plan forbid to go on from it without a word."""

from __future__ import annotations

import dataclasses
import json
from pathlib import PurePosixPath
from typing import Any

from runbook.training.spec import Source, Spec

FREE = ("duration.iterations", "duration.samples", "learning_rate.decay_samples", "model.init_std")
"""Longer or shorter training is still the same one, the decay follows its length, and the first weights are drawn."""
_WARMUP, _DECAY = "learning_rate.warmup_samples", "learning_rate.decay_samples"


def recipe(spec: Spec) -> dict[str, Any]:
    """Everything that decides the losses but for rounding, flat, each value under its key in plan.json.

    Engine, cut and micro-batch only change the rounding; files count by their names, not by where they lie.
    """
    model = dataclasses.asdict(spec.model)
    for key in ("name", "label", "parameters"):
        del model[key]
    sections = {
        "model": model,
        "duration": {"iterations": spec.duration.iterations, "samples": spec.duration.samples},
        "batch": {"global": spec.batch.global_, "ramp": dataclasses.asdict(spec.batch.ramp)},
        "learning_rate": dataclasses.asdict(spec.learning_rate),
        "optimizer": dataclasses.asdict(spec.optimizer),
        "precision": {"format": spec.precision.format},
        "data": _data(spec),
    }
    flat = {f"{section}.{key}": value for section, values in sections.items() for key, value in values.items()}
    return {"seed": spec.seed, **flat}


def differences(saved: dict[str, Any], wanted: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Differences that change what going on means, and harmless ones; each with both values.

    >>> differences({"seed": 1, "duration.samples": 8}, {"seed": 2, "duration.samples": 16})
    (['seed 1 (plan: 2)'], ['duration.samples 8 (plan: 16)'])
    """
    free = FREE + (_WARMUP,) * _warm_up_follows(saved, wanted)
    serious: list[str] = []
    harmless: list[str] = []
    for key in sorted({*saved, *wanted}):
        before, now = saved.get(key), wanted.get(key)
        if before != now:
            text = f"{key} {_shown(before)} (plan: {_shown(now)})"
            (harmless if key in free else serious).append(text)
    return serious, harmless


def _warm_up_follows(saved: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether the warm-up is the same share of another decay but for rounding: then it only follows the length."""
    before, now = ([recipe.get(key) for key in (_WARMUP, _DECAY)] for recipe in (saved, wanted))
    if not all(isinstance(value, int) for value in (*before, *now)) or not before[1]:
        return False
    times = now[1] / before[1]
    return bool(times != 1 and abs(now[0] - before[0] * times) <= 1 + times)


def _data(spec: Spec) -> dict[str, Any]:
    data = spec.data
    held_out = bool(data.validation or data.test)
    return {"mock": data.mock, "train": _names(data.train), "split": "" if held_out else data.split}


def _names(sources: list[Source]) -> list[list[Any]]:
    return [[source.weight, PurePosixPath(source.prefix).name] for source in sources]


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."

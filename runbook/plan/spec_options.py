"""Orders to the trainer that are written only where they are not the default: a plan without them stays the same."""

from __future__ import annotations

from typing import Any

from runbook.plan.checks import Check
from runbook.plan.choices import Choice
from runbook.plan.layout import Layout
from runbook.plan.ramp import ramp_of


def add_options(spec: dict[str, Any], choice: Choice, layout: Layout) -> None:
    """Put the orders that are not the default into the sections of `spec`.

    A key that is absent means what the trainer did before the key existed, so that fingerprints of earlier runs hold
    and those runs go on.
    """
    for section, keys in options(choice, layout).items():
        for key, (value, default) in keys.items():
            if value != default:
                spec[section][key] = value


def options(choice: Choice, layout: Layout) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Section, key, and its value beside its default."""
    training, ramp = choice.training, ramp_of(choice, layout)
    found: dict[str, dict[str, tuple[Any, Any]]] = {
        "precision": {
            "hysteresis": (training.loss_scale_hysteresis, 2),
            "static_loss_scale": (training.static_loss_scale, 0.0),
            "minimum_loss_scale": (training.min_loss_scale, 1.0),
        },
        "limits": {
            "nan_policy": (str(training.nan_policy), "stop"),
            "nan_limit": (training.nan_limit, 3),
        },
    }
    peak = choice.site.hardware.peak_tflops.get(str(training.precision), 0.0)
    found["log"] = {"peak_tflops": (peak if choice.own_trainer else 0.0, 0.0)}
    if choice.smoke:
        return found
    shape = {"start": ramp.start, "increment": ramp.increment, "samples": ramp.samples}
    found["batch"] = {"ramp": (shape, {"start": 0, "increment": 0, "samples": 0})}
    found["limits"]["exit_interval"] = (training.exit_interval, 0)
    found["checkpoint"] = {
        "keep_every": (training.keep_every, 0),
        "asynchronous": (training.async_save, False),
        "resume_changed": (training.resume_changed, False),
    }
    return found


def check_options(choice: Choice) -> list[Check]:
    """A warning where a key of our own trainer is set and another framework trains; else nothing."""
    training = choice.training
    own = {
        "nan_policy": training.nan_policy != "stop",
        "nan_limit": training.nan_limit != 3,
        "keep_every": training.keep_every > 0,
        "async_save": training.async_save,
        "resume_changed": training.resume_changed,
    }
    given = [f"training.{key}" for key, is_set in own.items() if is_set]
    if choice.smoke or choice.own_trainer or not given:
        return []
    return [
        Check(
            f"{choice.phase}: keys of our own trainer",
            "warn",
            f"{', '.join(given)} with training.framework={training.framework}",
            "these keys act in our own trainer; another framework gets no option for them",
            "Leave them out, or pass the framework's own option in the site's file.",
        )
    ]

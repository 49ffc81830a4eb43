"""Forecasts the loss of a run from its ladder.

The forecast covers other model sizes, and lists reasons not to trust it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from runbook.core.errors import DataError
from runbook.core.table import Table
from runbook.core.units import show_count
from runbook.forecast.final_loss import LossForecast
from runbook.forecast.from_ladder import forecast_from_ladder
from runbook.forecast.interval_rules import (
    CHANGED_RECIPE_WIDENING,
    EPOCHS_AS_NEW,
    EPOCHS_WIDENING,
    EVALUATION_SPREAD,
    MOST_EPOCHS,
    NORMAL_QUANTILE,
    SHORT_WIDENING,
    UNEVEN_WIDENING,
    UNSTABLE_WIDENING,
)
from runbook.forecast.ladder_line import line_of, uneven_rungs
from runbook.forecast.laws import Runs
from runbook.phases.ladder.climb import FinishedRung, as_fit
from runbook.phases.ladder.forecast_record import SIZE_RATIOS, RunForecast, SizeForecast
from runbook.phases.ladder.ladder_plan import DATA_KEYS, Ladder
from runbook.phases.ladder.rungs import Family, short_rungs
from runbook.phases.messages import PhaseMessage

OPTIMUM_REACH = 8.0
"""The search for the best size covers sizes up to this many times smaller or larger."""
OPTIMUM_STEPS = 61
SAME_EVALUATION = 1.02
"""Two evaluations count as using the same tokens if their numbers differ by at most this factor.

A rung evaluates whole batches of its own batch size, so its number may differ a little.
"""
FEWEST_RATIOS = 1.5
"""Factor by which tokens per parameter must differ between rungs.

With a smaller factor, the fit cannot separate size from tokens.
"""


def forecast_run(
    ladder: Ladder,
    finished: Sequence[FinishedRung],
    family: Family,
    values: dict[str, object],
    epochs: float | None,
) -> RunForecast:
    """Return the forecast for the current plan of a run.

    `values` are the `family_values` of the run, and `epochs` is how often its tokens repeat (None
    if unknown). Raise `DataError` if there are too few rungs, if they were trained on a different
    text, or if tokens repeat too often.
    """
    _refuse_other_text(ladder, values)
    doubts = [
        _recipe_doubt(ladder, values),
        _epochs_doubt(epochs),
        _steps_doubt(finished),
        _uneven_doubt(finished),
        _stability_doubt(family),
    ]
    factor = math.prod(doubt.widening for doubt in doubts)
    runs = as_fit(list(finished))
    target = _targets([(family.parameters, family.tokens, family.flops)])
    (forecast,) = forecast_from_ladder(runs, target)
    text_error = _text_error(finished, family)
    widened = _with_text_error(_widened(forecast, factor), text_error)
    same_compute, best, note = _sizes(runs, family, factor)
    texts = [
        *forecast.warnings,
        *(doubt.text for doubt in doubts),
        _text_doubt(finished, family, text_error),
        note,
    ]
    return RunForecast(
        loss=forecast.loss,
        low=widened.low,
        high=widened.high,
        rungs=len(finished),
        source=f"{len(finished)} rungs of {ladder.run}",
        same_compute=same_compute,
        best=best,
        warnings=tuple(text for text in texts if text),
    )


@dataclass(frozen=True)
class _Doubt:
    """A reason to trust a forecast less; an empty text means that there is none."""

    text: str = ""
    widening: float = 1.0


def _recipe_doubt(ladder: Ladder, values: dict[str, object]) -> _Doubt:
    """Return a doubt if the rungs were trained with a different recipe than the run."""
    # A ladder from an earlier version lacks keys added later.
    known = {key: value for key, value in values.items() if key in ladder.family}
    changed = [key for key, value in known.items() if ladder.family[key] != value]
    if not changed:
        return _Doubt()
    differences = ", ".join(
        PhaseMessage.RECIPE_DIFFERENCE.fill(key=key, rungs=ladder.family.get(key), run=values[key])
        for key in changed
    )
    text = PhaseMessage.ANOTHER_RECIPE.fill(
        differences=differences, widening=CHANGED_RECIPE_WIDENING
    )
    return _Doubt(text, CHANGED_RECIPE_WIDENING)


def _epochs_doubt(epochs: float | None) -> _Doubt:
    """Return a doubt if tokens repeat often.

    Raise `DataError` if tokens repeat so often that no law applies.
    """
    if epochs is None or epochs <= 1:
        return _Doubt()
    if epochs > MOST_EPOCHS:
        raise DataError(PhaseMessage.TEXT_READ_TOO_OFTEN, epochs=epochs, most_epochs=MOST_EPOCHS)

    text = f"the run reads its text {epochs:.1f} times: the loss will be higher"
    if epochs <= EPOCHS_AS_NEW:
        return _Doubt(text)
    return _Doubt(f"{text}, and the interval is {EPOCHS_WIDENING:g} times as wide", EPOCHS_WIDENING)


def _steps_doubt(finished: Sequence[FinishedRung]) -> _Doubt:
    """Return a doubt if rungs have few steps."""
    short = short_rungs([rung.planned.rung for rung in finished])
    if not short:
        return _Doubt()
    numbers = ", ".join(str(rung.number) for rung in short)
    text = PhaseMessage.RUNGS_OF_FEW_STEPS.fill(numbers=numbers, widening=SHORT_WIDENING)
    return _Doubt(text, SHORT_WIDENING)


def _uneven_doubt(finished: Sequence[FinishedRung]) -> _Doubt:
    """Return a doubt if the loss at a rung is far from the line between its neighbours."""
    runs = as_fit(list(finished))
    line = line_of(runs)
    uneven = uneven_rungs(line)
    if not uneven:
        return _Doubt()
    numbers = []
    for position in uneven:
        (index,) = np.flatnonzero(runs.flops == line.flops[position])
        numbers.append(str(finished[int(index)].planned.rung.number))

    return _Doubt(
        f"rung {', '.join(numbers)} ended far from the line between its neighbours, as nearly "
        f"unstable training runs do; a lower learning rate may help. The interval is "
        f"{UNEVEN_WIDENING:g} times as wide",
        UNEVEN_WIDENING,
    )


def _stability_doubt(family: Family) -> _Doubt:
    """Return a doubt if the run is nearly unstable, which narrower rungs do not show."""
    if not family.is_nearly_unstable:
        return _Doubt()
    text = PhaseMessage.RUN_NEARLY_UNSTABLE.fill(
        rate=family.rate.peak,
        batch_tokens=family.batch_tokens,
        width=family.shape.hidden,
        widening=UNSTABLE_WIDENING,
    )
    return _Doubt(text, UNSTABLE_WIDENING)


def _text_error(finished: Sequence[FinishedRung], family: Family) -> float:
    """Return by how many nats the loss may differ between held-out tokens in the run and the rungs.

    It is 0 if the tokens are the same. One set of tokens is always the beginning of the other. The
    two largest rungs decide the forecast; the one whose set differs more from that of the run is
    used.
    """
    if not family.evaluated_samples:
        return 0.0
    length = family.shape.sequence_length
    errors = []
    for rung in finished[-2:]:
        samples = rung.planned.rung.evaluated_samples
        few, many = sorted((samples, family.evaluated_samples))
        if many / few <= SAME_EVALUATION:
            errors.append(0.0)
            continue
        variance = EVALUATION_SPREAD**2 * (1 / (few * length) - 1 / (many * length))
        errors.append(NORMAL_QUANTILE * math.sqrt(variance))

    return max(errors, default=0.0)


def _text_doubt(finished: Sequence[FinishedRung], family: Family, error: float) -> str:
    """Return a warning if the rungs and the run are evaluated on different tokens."""
    if not error:
        return ""
    length = family.shape.sequence_length
    counts = {rung.planned.rung.evaluated_samples * length for rung in finished[-2:]}
    return PhaseMessage.RUNGS_EVALUATED_ON_OTHER_TOKENS.fill(
        rungs=" and ".join(f"{count:,}" for count in sorted(counts)),
        run=family.evaluated_samples * length,
        error=error,
    )


def _with_text_error(forecast: LossForecast, error: float) -> LossForecast:
    """Return the forecast with an independent error, in nats, added to its interval."""
    return replace(
        forecast,
        low=forecast.loss - math.hypot(forecast.loss - forecast.low, error),
        high=forecast.loss + math.hypot(forecast.high - forecast.loss, error),
    )


def _refuse_other_text(ladder: Ladder, values: dict[str, object]) -> None:
    comparable = (*DATA_KEYS, "vocabulary")
    changed = [key for key in comparable if ladder.family.get(key) != values.get(key)]
    if changed:
        differences = ", ".join(
            f"{key} {ladder.family.get(key)!r} -> {values.get(key)!r}" for key in changed
        )
        raise DataError(PhaseMessage.RUNGS_OF_OTHER_TEXT, run=ladder.run, differences=differences)


def _widened(forecast: LossForecast, factor: float) -> LossForecast:
    """Return the forecast with an interval `factor` times as wide."""
    below = math.log(forecast.loss / forecast.low) * factor
    above = math.log(forecast.high / forecast.loss) * factor
    return replace(
        forecast,
        low=forecast.loss * math.exp(-below),
        high=forecast.loss * math.exp(above),
    )


def _sizes(
    runs: Runs,
    family: Family,
    factor: float,
) -> tuple[tuple[SizeForecast, ...], SizeForecast | None, str]:
    """Return forecasts for other model sizes with the same compute as the run, and the best size.

    If there is no best size, return the reason.
    """
    ratios = runs.tokens / runs.params
    if ratios.max() / ratios.min() < FEWEST_RATIOS:
        note = PhaseMessage.RUNGS_OF_ONE_SHAPE.fill()
        return (), None, note

    size_forecasts = _forecast_ratios(runs, family, SIZE_RATIOS, factor)
    grid = np.geomspace(1 / OPTIMUM_REACH, OPTIMUM_REACH, OPTIMUM_STEPS)
    tried = _forecast_ratios(runs, family, [float(ratio) for ratio in grid], factor)
    position = min(range(len(tried)), key=lambda index: tried[index].loss)
    if position in (0, len(tried) - 1):
        note = (
            f"the best size at this compute is more than {OPTIMUM_REACH:.0f} times smaller "
            f"or larger than the run's"
        )
        return size_forecasts, None, note

    return size_forecasts, tried[position], ""


def _forecast_ratios(
    runs: Runs,
    family: Family,
    ratios: Sequence[float],
    factor: float,
) -> tuple[SizeForecast, ...]:
    """Return forecasts for models that are larger or smaller than the run by these factors.

    They train on as many tokens as keep the compute the same.
    """
    sizes = [(family.parameters * ratio, family.tokens / ratio, family.flops) for ratio in ratios]
    forecasts = forecast_from_ladder(runs, _targets(sizes))
    result = []
    for (parameters, tokens, _), forecast in zip(sizes, forecasts, strict=True):
        widened = _widened(forecast, factor)
        result.append(
            SizeForecast(
                parameters,
                tokens,
                widened.loss,
                widened.low,
                widened.high,
            )
        )

    return tuple(result)


def _targets(sizes: Sequence[tuple[float, float, float]]) -> Runs:
    columns = np.array(sizes, dtype=np.float64).T
    parameters, tokens, flops = columns
    return Runs(
        params=parameters,
        params_no_embed=parameters,
        tokens=tokens,
        flops=flops,
        loss=np.full_like(parameters, np.nan),
    )


def rungs_table(finished: Sequence[FinishedRung]) -> Table:
    """Return the trained rungs with their losses."""
    rows = []
    for rung in finished:
        rows.append(
            {
                "rung": rung.planned.name,
                "parameters": show_count(rung.parameters),
                "tokens": show_count(rung.tokens),
                "FLOPs": f"{rung.flops:.2e}",
                "steps": rung.planned.rung.iterations,
                "loss (nats)": f"{rung.loss:.4f}",
            }
        )

    return Table(rows, "Trained rungs, loss on held-out text after the last step")

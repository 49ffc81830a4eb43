"""Messages about loss forecasts, one per row; `{name}` stands for a value."""

from __future__ import annotations

from runbook.plan_file.diagnostics import Message


class ForecastMessage(Message):
    """Messages about loss forecasts."""

    CURVE_BEYOND_ITS_END = "The curve reaches step {steps:g}, beyond total_steps {total_steps:g}."
    CURVE_NOT_READABLE = "{path} cannot be read as a CSV file: {error}"
    CURVE_TOO_SHORT = (
        "The curve has {number_of_points} validation losses after step 0; a forecast needs at "
        "least {fewest_points}."
    )
    CURVE_UNLIKE_FITTED_ONES = (
        "no fitted curve is similar to this one (length, schedule or slope): the interval is "
        "{widening:g} times as wide"
    )
    DECAY_FROM_IS_A_SHARE = (
        "{path}, line {line}: decay_from is {decay_from:g}, but must be the share of the steps after "
        "which the learning rate falls, from 0 to 1. If it falls from step {decay_from:g} on, write "
        "{share:.4g}."
    )
    FAR_TARGET = (
        "the target needs {ratio:,.0f} times the compute of the largest run; no backtest covers "
        "more than {farthest_ratio:,.0f} times, so the interval is {widening:g} times as wide"
    )
    NO_VALIDATION_LOSS = "{path} has no validation loss: its column val_loss is missing or empty."
    NUMBER_NEEDED = (
        "{path}, line {line}: {column} is {text!r}, but must be a number above 0. The columns are "
        "series, params, params_no_embed, tokens, flops and loss for training runs, and step, "
        "val_loss, total_steps and decay_from for a curve."
    )
    OUTSIDE_OF_LAW = "{parameters:,.0f} parameters are outside the range of the fit, {fitted}"
    RUNS_OF_ONE_SIZE = (
        "All {number_of_runs} runs have the same {quantity}, so how the loss depends on it cannot "
        "be fitted. Add runs with other {quantities}."
    )
    SERIES_WITHOUT_RUNS = (
        "The planned runs of series {series!r} have no finished run to forecast from. There are "
        "{finished}."
    )
    TOO_FEW_FINISHED_RUNS = (
        "A forecast needs at least {fewest_runs} finished runs, but there are only "
        "{number_of_runs}: a law of size and tokens has five parameters. Add rungs to the ladder."
    )

"""Forecasts the final loss in a run, with an interval, from the rungs of a ladder.

The line through the rungs forecasts runs with the same number of tokens per parameter
(`ladder_line.py`). For other runs, the laws (`final_loss.py`) give the ratio between their loss and
that on the line at the same compute.
"""

from dataclasses import replace

import numpy as np

from runbook.forecast.final_loss import (
    LossForecast,
    check_runs,
    interval_score,
    law_votes,
    voting_choices,
    with_interval,
)
from runbook.forecast.interval_rules import DECADES_AT_ZERO
from runbook.forecast.ladder_line import (
    FEWEST_ON_LINE,
    LineVotes,
    extend_line,
    is_on_line,
    line_errors,
    line_of,
    tokens_on_line,
)
from runbook.forecast.laws import Array, LawChoice, Runs

LADDER_PENALTIES = (0.01, 0.003, 0.001)
"""Penalties on the exponents when laws are fitted to a ladder.

Rungs share a seed and a held-out text, so losses vary less by chance than in a table of runs. The
data may therefore determine the exponent more freely than the usual penalty of 0.1 allows.
"""


def forecast_from_ladder(runs: Runs, targets: Runs) -> list[LossForecast]:
    """Return a forecast for each target, based on the rungs of one ladder.

    The interval contains every vote. Raise `DataError` if there are too few rungs.
    """
    check_runs(runs)
    line = line_of(runs)
    if len(line) < FEWEST_ON_LINE:
        votes = _by_laws(runs, targets)
        score = interval_score([])
    else:
        votes = _by_line(runs, line, targets)
        errors, decades = line_errors(line)
        score = interval_score([np.abs(errors) / np.sqrt(decades + DECADES_AT_ZERO)])

    forecasts = []
    for position, loss in enumerate(votes.median):
        forecast = with_interval(runs, targets, position, float(loss), score)
        lowest = float(votes.losses[:, position].min())
        highest = float(votes.losses[:, position].max())
        low = min(forecast.low, lowest)
        forecasts.append(replace(forecast, low=low, high=max(forecast.high, highest)))

    return forecasts


def _by_line(runs: Runs, line: Runs, targets: Runs) -> LineVotes:
    """Return the losses for which the line votes.

    For a target off the line, each vote is multiplied by what the laws predict for the target,
    divided by what they predict on the line.
    """
    tokens = tokens_on_line(targets, line)
    beside = ~is_on_line(targets, runs)
    on_line = np.where(beside, tokens, targets.tokens)
    votes = extend_line(line, on_line).losses
    if beside.any():
        votes = votes * np.where(beside, _ratios_to_line(runs, line, targets), 1.0)
    return LineVotes(votes)


def _ratios_to_line(runs: Runs, line: Runs, targets: Runs) -> Array:
    """Return the laws' loss for each target, divided by that for the line at the same compute."""
    tokens = tokens_on_line(targets, line)
    params_per_token = line.params[-1] / line.tokens[-1]
    same_compute = replace(
        targets,
        params=tokens * params_per_token,
        params_no_embed=tokens * params_per_token,
        tokens=tokens,
    )
    ratios: Array = _by_laws(runs, targets).median / _by_laws(runs, same_compute).median
    return ratios


def _by_laws(runs: Runs, targets: Runs) -> LineVotes:
    """Return the votes from laws in size and tokens."""
    return LineVotes(np.array(list(law_votes(runs, targets, _ladder_choices(runs)).values())))


def _ladder_choices(runs: Runs) -> list[LawChoice]:
    choices = []
    for choice in voting_choices(runs):
        for penalty in LADDER_PENALTIES:
            choices.append(replace(choice, exponent_penalty=penalty))

    return choices

"""Rules for forecasts: how often intervals are right, when they widen, when a forecast is refused.

This module does not import numpy, to let pages load quickly.
"""

COVERAGE = 0.8
"""Share of forecasts for which the interval should contain the outcome.

Texts, scores and the intervals for fitted laws are computed from this constant. Half-widths that
were measured once are not: `HALF_WIDTH` in published_law.py, curve_coefficients.json (`python -m
benchmarks.fit_curve_forecast`) and the simulated campaigns in
runbook/planning/cost/fault_simulation.py.
"""
SHARE_IN_INTERVAL = f"{COVERAGE:.0%}"
"""How this share is written in texts."""
INTERVAL = f"{SHARE_IN_INTERVAL} interval"
"""How an interval is named in tables and figures."""
DECADES_AT_ZERO = 0.3
"""Number added to the extrapolated decades, because forecasts within the range of the runs have
errors as well.
"""
EARLIEST_SHARE = 0.25
"""Smallest share of the steps a curve must cover for a forecast; the fitted curves cover at least
30 %.
"""
FARTHEST_RATIO = 1000.0
"""Largest ratio of target compute to largest-run compute for which backtests support a forecast.
"""
FAR_WIDENING = 2.0
"""Factor by which the interval widens for a target beyond `FARTHEST_RATIO`."""

# A forecast from a curve
FAR_FROM_FITTED = 2.0
"""A warning is shown if the nearest fitted curve is farther away than this, in standard deviations.

At this distance, the interval is as wide as it can get.
"""
UNLIKE_CURVE_WIDENING = 4.0
"""Greatest factor by which the interval widens because the curve is unlike the fitted curves."""

# A forecast from a ladder
CHANGED_RECIPE_WIDENING = 2.0
"""Factor by which the interval widens if the recipe differs.

In the series in docs/forecast.md, a different schedule or regularisation changed final losses by 1
to 3 %, which is as much as the half-width of the interval.
"""
EPOCHS_AS_NEW = 4.0
"""Up to this number of epochs, repeated tokens are worth almost as much as new ones (Muennighoff et
al., arXiv:2305.16264).
"""
MOST_EPOCHS = 16.0
"""Epochs beyond which a forecast is refused.

More repetitions are worth almost nothing (the same source), so a law for new tokens does not apply.
"""
EPOCHS_WIDENING = 2.0
"""Factor by which the interval widens beyond `EPOCHS_AS_NEW`."""
UNEVEN_WIDENING = 4.0
"""Factor by which the interval widens if the rungs' losses do not lie near a line.

The only uneven ladder in benchmarks/forecast/ladders_corpus.csv missed by 22 %, eleven times as
much as the others. An even wider interval would no longer be useful.
"""
SHORT_WIDENING = 3.0
"""Factor by which the interval widens if the rungs that decide the forecast have few steps.

Three ladders with rungs of 249 to 299 steps missed by 3.7 to 7.4 %, up to three times their
intervals (docs/ladder.md).
"""
UNSTABLE_WIDENING = 4.0
"""Factor by which the interval widens if the run itself is nearly unstable.

Four such runs ended 5, 8, 9 and 22 % above their forecasts, whose half-widths were about 2 %.
"""
EVALUATION_SPREAD = 20.0
"""Standard deviation of the loss on held-out tokens, in nats, times the square root of their
number.

It is larger than if tokens were independent, since all tokens in a text are similarly hard. On the
shipped corpus, losses from six models on 64 parts of 1,024 tokens gave 11 to 20 (2026-11-28).
"""
NORMAL_QUANTILE = 1.28
"""Half-width of an interval that contains 80 % of a normal distribution, in standard deviations."""

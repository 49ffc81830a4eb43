"""Rules shared by all forecasts of a loss.

This module needs no numpy, so that pages load quickly.
"""

COVERAGE = 0.8
"""Share of forecasts whose intervals should contain the outcome.

Texts, scores and the intervals of fitted laws are computed from this constant. The half-widths that
were measured once are not: `HALF_WIDTH` in published_law.py, curve_coefficients.json (`python -m
benchmarks.fit_curve_forecast`) and the simulated campaigns in
runbook/planning/cost/fault_simulation.py.
"""
SHARE_IN_INTERVAL = f"{COVERAGE:.0%}"
"""The wording of the share in texts."""
INTERVAL = f"{SHARE_IN_INTERVAL} interval"
"""The name of an interval in tables and figures."""
DECADES_AT_ZERO = 0.3
"""Number added to the extrapolated decades, because forecasts within the range of the runs have
errors too.
"""
EARLIEST_SHARE = 0.25
"""Smallest share of the steps that a curve must cover for a forecast; the fitted curves cover at
least 30 %.
"""

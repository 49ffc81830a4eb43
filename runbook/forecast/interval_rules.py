"""Rules shared by all forecasts of a loss.

This module needs no numpy, so that pages load quickly.
"""

COVERAGE = 0.8
"""Share of forecasts whose intervals should contain the outcome."""
DECADES_AT_ZERO = 0.3
"""Number added to the extrapolated decades, because forecasts within the range of the runs have
errors too.
"""
EARLIEST_SHARE = 0.25
"""Smallest share of the steps that a curve must cover for a forecast; the fitted curves cover at
least 30 %.
"""

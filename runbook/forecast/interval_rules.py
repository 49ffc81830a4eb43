"""Rules shared by all forecasts of a loss. It needs no numpy, so that pages can use it quickly."""

COVERAGE = 0.8
"""Share of forecasts whose interval should contain the outcome."""
DECADES_AT_ZERO = 0.3
"""Number added to the extrapolated decades, because a forecast within the runs' range also has an
error."""
EARLIEST_SHARE = 0.25
"""Smallest share of the steps from which a forecast is made from a curve; the fitted curves cover
at least 30 %.
"""

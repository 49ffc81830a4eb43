"""What all forecasts of a loss have in common. It needs no numpy, so that pages can ask it quickly."""

COVERAGE = 0.8
"""Share of forecasts whose interval should contain the outcome."""
DECADES_AT_ZERO = 0.3
"""Added to the decades extrapolated: a forecast inside the range of the runs has an error too."""
EARLIEST_SHARE = 0.25
"""Share of the steps at which forecasts from a curve begin: the fitted curves cover at least 30 %."""

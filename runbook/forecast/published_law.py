"""Applies a published scaling law to runs without a ladder, and says where it is valid.

Hoffmann et al. (arXiv:2203.15556) fitted L = E + A / N^a + B / D^b to more than 400 training runs;
the coefficients come from the corrected fit by Besiroglu et al. (arXiv:2404.10102). The law is
valid for the text and tokenizer used there. For 80% of the 86 runs from other families in
benchmarks/forecast, the error is at most 14%. This is the half-width of the interval within the
range of the fitted runs; beyond that range, the interval grows.
"""

import math
from dataclasses import dataclass

from runbook.forecast.interval_rules import DECADES_AT_ZERO
from runbook.forecast.messages import ForecastMessage

SOURCE = (
    "the law of Hoffmann et al. as corrected by Besiroglu et al. (arXiv:2404.10102), for other text"
)
FLOOR = 1.8172
SIZE_TERM = 482.01
SIZE_EXPONENT = 0.3478
TOKEN_TERM = 2085.43
TOKEN_EXPONENT = 0.3658
HALF_WIDTH = 0.14
"""80th percentile of the error in log loss, for the runs in benchmarks/forecast."""
SMALLEST_SIZE = 44e6
LARGEST_SIZE = 16e9
FEWEST_TOKENS = 1e9
"""Range covered by the runs the law was fitted to (figure 3 and table A9 in Hoffmann et al.)."""
MOST_TOKENS = 500e9
"""Hoffmann et al. trained on 5 to 500 billion tokens (their abstract)."""
MOST_OVER = 30.0
"""Predictions are shown up to this many times the largest fitted size; GPT-3 175B is 11 times that
size.
"""


@dataclass(frozen=True)
class LawForecast:
    """What the law predicts for a training run, in nats."""

    loss: float
    low: float
    high: float
    widening: float
    """How many times wider the interval is than inside the fitted range."""


def decades_beyond(parameters: float, tokens: float) -> float:
    """Return the decades of compute beyond the largest and longest runs in the fit.

    >>> decades_beyond(16e9, 500e9), decades_beyond(160e9, 5e12)
    (0.0, 2.0)
    """
    size_ratio = max(1.0, parameters / LARGEST_SIZE)
    token_ratio = max(1.0, tokens / MOST_TOKENS)
    return math.log10(size_ratio * token_ratio)


def widening(parameters: float, tokens: float) -> float:
    """Return by what factor the interval widens outside the range: like the root of the decades."""
    decades = decades_beyond(parameters, tokens)
    return math.sqrt((decades + DECADES_AT_ZERO) / DECADES_AT_ZERO)


def published_loss(parameters: float, tokens: float) -> LawForecast:
    """Return the loss the law predicts for these numbers of parameters and tokens."""
    by_size = SIZE_TERM / parameters**SIZE_EXPONENT
    by_tokens = TOKEN_TERM / tokens**TOKEN_EXPONENT
    loss = FLOOR + by_size + by_tokens
    wider = widening(parameters, tokens)
    factor = math.exp(HALF_WIDTH * wider)
    return LawForecast(loss, loss / factor, loss * factor, wider)


def why_not(parameters: float, tokens: float) -> str:
    """Return the reason why the law does not apply to a training run, or '' if it applies."""
    if parameters < SMALLEST_SIZE or parameters > MOST_OVER * LARGEST_SIZE:
        fitted = f"{SMALLEST_SIZE:,.0f} to {LARGEST_SIZE:,.0f}"
        return ForecastMessage.OUTSIDE_OF_LAW.fill(parameters=parameters, fitted=fitted)

    if tokens < FEWEST_TOKENS:
        return f"{tokens:,.0f} tokens are fewer than the {FEWEST_TOKENS:,.0f} it was fitted to"
    return ""


def best_size(parameters: float, tokens: float) -> tuple[float, float]:
    """Return how many parameters and tokens give the lowest loss at the same compute (N x D)."""
    product = parameters * tokens
    ratio = SIZE_EXPONENT * SIZE_TERM / (TOKEN_EXPONENT * TOKEN_TERM)
    size = (ratio * product**TOKEN_EXPONENT) ** (1 / (SIZE_EXPONENT + TOKEN_EXPONENT))
    return size, product / size

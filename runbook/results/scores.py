"""Compares scores before and after training."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from runbook.core.table import Row
from runbook.core.units import four_digits
from runbook.results.history import PHENOMENON, read_scores
from runbook.results.messages import ResultMessage

_LOWER_IS_BETTER = re.compile(r"perplexity|bits per byte|bits_per_byte|\bbrier|\bloss")
"""Our two measures, and the measures that lm-evaluation-harness marks with `higher_is_better:
false`.
"""
CONFIDENCE = 1.96
"""Half-width of a 95 % interval, in standard errors."""


class Change(StrEnum):
    """How training changed a score."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    WITHIN_CHANCE = "within chance"
    """The share changed by less than two sets of this many samples differ by chance."""
    UNKNOWN = "unknown"
    """A measurement is missing, or one of the two values is not finite."""


@dataclass(frozen=True)
class Score:
    """A measure on a set of texts, evaluated with the initial and with the trained weights."""

    what: str
    measure: str
    samples: int | None
    before: float | None
    after: float | None
    iteration: int | None = None
    """Iteration of the weights after training, or None if it was not recorded."""

    @property
    def change(self) -> Change:
        """Return whether training made the score better or worse, or changed it only by chance."""
        if self.before is None or self.after is None:
            return Change.UNKNOWN
        if not (math.isfinite(self.before) and math.isfinite(self.after)):
            return Change.UNKNOWN
        if self.before == self.after:
            return Change.SAME
        if self.chance is not None and abs(self.after - self.before) <= self.chance:
            return Change.WITHIN_CHANCE
        is_lower = self.after < self.before
        lower_is_better = _LOWER_IS_BETTER.search(self.measure) is not None
        if is_lower == lower_is_better:
            return Change.BETTER
        return Change.WORSE

    @property
    def chance(self) -> float | None:
        """Return how much a change in a share over this many samples varies by chance (95 %).

        Return None if the score is not a share, or if a value is missing.
        """
        if not self.is_share or self.before is None or self.after is None or not self.samples:
            return None
        variances = [share * (1 - share) for share in (self.before, self.after)]
        return CONFIDENCE * math.sqrt(sum(variances) / self.samples)

    @property
    def is_share(self) -> bool:
        """Return whether the score is a share of right answers."""
        return "share" in self.measure or self.measure.startswith("acc")

    def worse_text(self) -> str:
        """Return a sentence about a score that became worse in training.

        >>> text = Score("pairs", "right (share)", 200, 0.44, 0.31).worse_text()
        >>> text[:67]
        'Worse after the training: pairs, right (share), from 0.44 to 0.31; '
        >>> text[67:]
        '200 samples differ by at most 0.094 by chance.'
        """
        text = ResultMessage.WORSE_AFTER_TRAINING.fill(
            what=self.what,
            measure=self.measure,
            before=show_score(self.before),
            after=show_score(self.after),
        )
        if self.chance is None:
            return f"{text}."
        return f"{text}; {self.samples} samples differ by at most {self.chance:.2g} by chance."


def show_score(value: float | None) -> str:
    """Return a score as text with four digits.

    >>> show_score(4.592521504486381), show_score(52109.6), show_score(None)
    ('4.593', '52,110', 'not measured')
    """
    if value is None:
        return "not measured"
    rounded = four_digits(value)
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"


def read_main_scores(folder: Path) -> tuple[Score, ...]:
    """Return the scores for a run, except those for single types of minimal pair.

    The result is empty if nothing was measured.
    """
    return as_scores(read_scores(folder))


def as_scores(rows: Iterable[Row]) -> tuple[Score, ...]:
    """Convert rows in `evaluation/*.jsonl` to scores, leaving out single types of minimal pair."""
    return tuple(Score(**row) for row in rows if row["measure"] != PHENOMENON)


def worse(scores: Sequence[Score]) -> list[Score]:
    """Return the scores that became worse in training."""
    return [score for score in scores if score.change is Change.WORSE]

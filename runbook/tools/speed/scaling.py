"""Finds figures in a text which show that more devices or nodes are not faster."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from runbook.tools.speed.parts import GapPart
from runbook.tools.speed.sign_rows import NO_GAIN_FROM_DEVICES, NO_GAIN_FROM_NODES

_NUMBERS = {
    "one": 1,
    "single": 1,
    "two": 2,
    "dual": 2,
    "three": 3,
    "four": 4,
    "eight": 8,
    "sixteen": 16,
}
_NUMBER = rf"\d{{1,5}}|{'|'.join(_NUMBERS)}"
_NODES = re.compile(
    rf"(?<![\w./:-])({_NUMBER})[ -]?(?:\w+ )?(?:nodes?|machines?|servers?|hosts?|workers?)\b"
    r"(?! (?:of|each|have|has)\b)"
    r"|\bn_?nodes[ =:]+(\d+)"
)
"""Matches node counts in lower-case text."""
_DEVICES = re.compile(
    rf"(?<![\w./:-])({_NUMBER})[ -]?(?:x ?)?(?:gpus?|cards?|[abhv]\d{{2,3}}s?)\b"
    r"(?! (?:per|a|in each|on each|each) )"
    r"|\b(?:n_?gpus?|num_gpus)[ =:]+(\d+)"
)
"""Matches device counts in lower-case text."""
_FIGURE = re.compile(
    r"(?<![\w.])(?P<rate>\d[\d,]*(?:\.\d+)?k?)(?:[~-]\d+)? ?(?:it(?:er(?:ation)?)?s?|steps?|img|imgs|images?"
    r"|samples?|seq(?:uence)?s?|tok(?:en)?s?|examples?) ?(?:/|per) ?s(?:ec(?:ond)?)?\b"
    r"(?P<each> ?(?:/|per|on each|for each) ?(?:gpu|card|device))?"
    r"|\bmfu\b[ :=a-z]{0,12}(?P<mfu>0?\.\d+|\d+(?:\.\d+)? ?%)|(?<![\w.])(?P<mfu_first>\d+(?:\.\d+)?) ?% mfu\b"
    r"|(?<![\w.])(?:(?P<hours>\d+(?:\.\d+)?) ?h(?:ours?|rs?)? ?)?(?P<minutes>\d+(?:\.\d+)?) ?min(?:ute)?s?\b"
    r"|(?<![\w.])(?P<seconds>\d+(?:\.\d+)?) ?(?:s|secs?|seconds?)\b(?! ?/ ?s)"
    r"|(?<![\w.])(?P<milliseconds>\d+(?:\.\d+)?) ?ms\b"
    r"|(?<![\w.])(?P<only_hours>\d+(?:\.\d+)?) ?(?:h|hours?|hrs?)\b"
)
"""Matches speeds and times in lower-case text."""
_OF_A_STEP = r"\b(?:steps?|iterations?|iters?|batch(?:es)?)\b|/ ?it\b"
_OF_ALL_SAMPLES = r"\b(?:epochs?|training time|in total|whole|dataset)\b"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|;\s|\n")
_MOST = 0.5
"""Largest share of a step that communication is assumed to take."""
_MOST_MEASUREMENTS = 40
"""Maximum number of figures to compare. A person compares only a few."""
_LEAST_FALL = 0.75
"""Scaling is poor if the rate per device falls to less than this share."""
_LONGER_STEP = 1.6
"""Scaling is poor if a step takes more than this many times as long, because more devices process
more samples.
"""
_SHORTER_WHOLE = 0.9
"""On more devices, the same samples should take less than this share of the time."""
_LEAST_GAIN = 1.2
"""More devices should reach at least this many times the total rate."""


class _Kind(StrEnum):
    """Quantity that a figure measures."""

    TOTAL_RATE = "total rate"
    DEVICE_RATE = "rate per device"
    STEP_TIME = "time of a step"
    WHOLE_TIME = "time of all samples"


@dataclass(frozen=True)
class _Measurement:
    """A figure measured on a given number of devices or nodes."""

    count: int
    kind: _Kind
    figure: float
    quoted: str

    def is_no_faster_than(self, smaller: "_Measurement") -> bool:
        """Return whether these devices are no faster than the `smaller` number of devices."""
        ratio = self.figure / smaller.figure
        if self.kind is _Kind.DEVICE_RATE:
            return ratio < _LEAST_FALL
        if self.kind is _Kind.TOTAL_RATE:
            return ratio < _LEAST_GAIN
        if self.kind is _Kind.WHOLE_TIME:
            return ratio > _SHORTER_WHOLE
        return ratio > _LONGER_STEP


def poor_scaling(text: str, reached: float) -> Iterator[GapPart]:
    """Yield the network or the device links as a cause if a text's figures show poor scaling.

    Poor scaling means a lower speed per device on more nodes or devices.

    >>> [part.name for part in poor_scaling("1 GPU: 0.5 s/it. 4 GPUs: 2.3 s/it", 1.0)]
    ['communication']
    >>> [*poor_scaling("1 GPU: 0.50 s/it. 4 GPUs: 0.52 s/it", 1.0)]
    []
    """
    plain = text.lower()
    pair = _first_loss(_measurements(plain, _NODES))
    if pair:
        remedy = "measure an all-reduce between the nodes, and see NCCL_DEBUG=INFO for the network"
        yield _part("network", pair, remedy, reached, NO_GAIN_FROM_NODES)
        return
    pair = _first_loss(_measurements(plain, _DEVICES))
    if pair:
        remedy = (
            "check the links between devices with nvidia-smi topo -m; transfer less, or less often"
        )
        yield _part("communication", pair, remedy, reached, NO_GAIN_FROM_DEVICES)


def _part(
    cause: str,
    pair: tuple[_Measurement, _Measurement],
    remedy: str,
    reached: float,
    same_effect: tuple[str, ...],
) -> GapPart:
    """Return what usually causes the poor scaling that two measurements show.

    `same_effect` has the other causes.
    """
    smaller, larger = pair
    evidence = (
        f'it says "{smaller.quoted}" and "{larger.quoted}" '
        f"(no estimate; at most {_MOST:.0%} of a step)"
    )
    return GapPart(
        cause,
        _MOST * reached,
        evidence,
        remedy,
        is_printed=True,
        same_effect=same_effect,
    )


def _first_loss(
    measurements: Sequence[_Measurement],
) -> tuple[_Measurement, _Measurement] | None:
    """Return the first two comparable measurements where more devices are no faster."""
    for pair in combinations(measurements, 2):
        smaller, larger = sorted(pair, key=lambda measurement: measurement.count)
        is_comparable = smaller.kind is larger.kind and smaller.count < larger.count
        if is_comparable and larger.is_no_faster_than(smaller):
            return smaller, larger
    return None


def _measurements(text: str, count_pattern: re.Pattern[str]) -> list[_Measurement]:
    """Return each figure in a text with the device or node count from the same sentence."""
    measurements = []
    kind_of_time = _Kind.STEP_TIME
    for sentence in _SENTENCE_END.split(text):
        if re.search(_OF_ALL_SAMPLES, sentence):
            kind_of_time = _Kind.WHOLE_TIME
        elif re.search(_OF_A_STEP, sentence):
            kind_of_time = _Kind.STEP_TIME
        counts = [*count_pattern.finditer(sentence)]
        figures = [*_FIGURE.finditer(sentence)]
        for figure in figures:
            count = _count_of(figure, figures[0], counts)
            if count:
                measurements.append(_measurement(sentence, count, figure, kind_of_time))
    above_zero = [measurement for measurement in measurements if measurement.figure]
    return above_zero[:_MOST_MEASUREMENTS]


def _count_of(
    figure: re.Match[str],
    first_figure: re.Match[str],
    counts: Sequence[re.Match[str]],
) -> re.Match[str] | None:
    """Return the device count that a figure belongs to.

    If the sentence begins with a figure, as in "9 s on one GPU", this is the next number.
    Otherwise, it is the last number before the figure.
    """
    later = [count for count in counts if count.start() >= figure.end()]
    earlier = [count for count in counts if count.end() <= figure.start()]
    begins_with_figure = bool(counts) and first_figure.start() < counts[0].start()
    if begins_with_figure:
        return later[0] if later else None
    return earlier[-1] if earlier else None


def _measurement(
    sentence: str,
    count: re.Match[str],
    figure: re.Match[str],
    kind_of_time: _Kind,
) -> _Measurement:
    """Return a measurement with a figure and a device count."""
    number = count[1] or count[2]
    start = min(count.start(), figure.start())
    end = max(count.end(), figure.end())
    value, kind = _value(figure, kind_of_time)
    return _Measurement(
        count=_NUMBERS.get(number) or int(number),
        kind=kind,
        figure=value,
        quoted=" ".join(sentence[start:end].split())[:60],
    )


def _value(figure: re.Match[str], kind_of_time: _Kind) -> tuple[float, _Kind]:
    """Return the value of a figure, in its base unit, and the quantity that it measures."""
    if figure["rate"]:
        rate = figure["rate"].replace(",", "")
        value = 1000 * float(rate[:-1]) if rate.endswith("k") else float(rate)
        return value, _Kind.DEVICE_RATE if figure["each"] else _Kind.TOTAL_RATE
    share = figure["mfu"] or figure["mfu_first"]
    if share:
        percent = float(share.rstrip(" %"))
        return (100 * percent if percent < 1 else percent), _Kind.DEVICE_RATE
    if figure["minutes"] or figure["only_hours"]:
        hours = float(figure["hours"] or figure["only_hours"] or 0)
        seconds = 3600 * hours + 60 * float(figure["minutes"] or 0)
        return seconds, _Kind.WHOLE_TIME
    seconds = float(figure["seconds"] or 0) + float(figure["milliseconds"] or 0) / 1000
    return seconds, kind_of_time

"""Durations that a text states, and what their size says about the cause of a slow training run."""

import re
from itertools import groupby

_HOURS = {"s": 1 / 3600, "m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0, "y": 8760.0}
"""Hours in a unit of time, by its first letter; months have their own entry below."""
_HOURS_OF_A_MONTH = 730.0
_UNIT = r"(seconds?|secs?|s|minutes?|mins?|hours?|hrs?|h|days?|weeks?|months?|years?)"
_TIME = rf"(?<![\w.:/-])(\d[\d,]*(?:\.\d+)?)\+? ?{_UNIT}\b"
_TIME_OF_A_PART = rf"{_TIME} ?(?:per|/|an?|each|every) ?(epoch|step|iteration|iter|it)\b"
"""Time per epoch or step, such as "300+ hours/epoch"."""
_TIMES_SLOWER = r"(?<![\w.])(\d[\d,]*) ?(?:x|times) (?:slower|longer)\b"
_OUT_OF_PROPORTION = 20
"""Largest ratio between two times for the same part that a better layout or kernel can explain."""
_ENDLESS_HOURS = 60 * 24.0
"""Training on devices that work is rarely planned to take longer than this."""
_NEED = r"\b(?:take|taking|takes|took|eta|remaining|need|needs|estimat\w+)\b[^.;!?\n]{0,30}?"
_NEEDED_TIME = rf"{_NEED}{_TIME}(?! (?:old|ago)\b)"
_NEEDED_YEAR = (
    rf"{_NEED}\b(?:(?:an?|one|half an?) (?:\w+ )?years?|(?:several|many) (?:months|years))\b"
    r"(?! ago\b)"
)
_MODEL = (
    r"\b((?:tiny|code)?llama|vicuna|alpaca|qwen|mi[sx]tral|gemma|phi|falcon|opt|bloom|gpt-?\w|pythia|internlm"
    r"|llava|baichuan|chatglm|deepseek|distilbert|roberta|bert|xlm-?r|t5|bart|vit|swin|deit|clip|dino|whisper)"
    r"[\w.-]*"
)
"""Model families."""
_SIZE = r"(?<![\w.])(\d+(?:\.\d+)?) ?([mb])(?: param\w*)?"
_TWO_SIZES = rf"{_SIZE}[^.;]{{0,25}}\b(?:vs\.?|versus|against|but|and|the other) {_SIZE}\b"
"""Two parameter counts, such as "110M vs 66M"."""


def is_out_of_proportion(text: str) -> bool:
    """Return whether a lower-case text has a time that no tuning explains.

    Such a training run computes on the wrong device, or its data or weights are moved all the time.

    >>> is_out_of_proportion("the readme says 2 hours per epoch, we need 300+ hours/epoch")
    True
    >>> is_out_of_proportion("2 hours per epoch on 8 devices, 12 hours per epoch on one")
    False
    >>> is_out_of_proportion("it takes 200+ days"), is_out_of_proportion("we took 3 days")
    (True, False)
    """
    times = [
        (part[:2], _number(figure) * _hours_of(unit))
        for figure, unit, part in re.findall(_TIME_OF_A_PART, text)
    ]
    for _, group in groupby(sorted(times), key=lambda time: time[0]):
        hours = [hours for _, hours in group if hours]
        if hours and max(hours) >= _OUT_OF_PROPORTION * min(hours):
            return True

    ratios = [_number(figure) for figure in re.findall(_TIMES_SLOWER, text)]
    return any(ratio >= _OUT_OF_PROPORTION for ratio in ratios) or _is_endless(text)


def _is_endless(text: str) -> bool:
    """Return whether a training run would take months.

    >>> _is_endless("it seems to take almost a year"), _is_endless("a model from a year ago")
    (True, False)
    """
    if re.search(_NEEDED_YEAR, text):
        return True
    times = re.findall(_NEEDED_TIME, text)
    return any(_number(figure) * _hours_of(unit) >= _ENDLESS_HOURS for figure, unit in times)


def times_two_models(text: str) -> bool:
    """Return whether a lower-case text states times for two models, by name or by size.

    >>> times_two_models("vicuna-7b took 12 hours, but llama3-8b took 42 hours")
    True
    >>> times_two_models("llama3-8b took 12 hours on 8 devices, and 42 hours on 2")
    False
    >>> times_two_models("it takes 9 hours, before 3 hours (110m vs 66m parameters)")
    True
    """
    for sentence in re.split(r"[.;!?]\s|\n", text):
        models = set(re.findall(_MODEL, sentence))
        if len(models) > 1 and len(re.findall(_TIME, sentence)) > 1:
            return True
    times = re.findall(_TIME, text)
    return len(times) > 1 and any(
        size[:2] != size[2:] for size in re.findall(_TWO_SIZES, text) if "param" in text
    )


def _number(figure: str) -> float:
    return float(figure.replace(",", ""))


def _hours_of(unit: str) -> float:
    return _HOURS_OF_A_MONTH if unit.startswith("mo") else _HOURS[unit[0]]

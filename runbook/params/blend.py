"""Several texts in one training: `data.blend` as names of datasets, each with its weight."""

from __future__ import annotations

import math

from runbook.params.kinds import is_name

EXAMPLE = "corpus 0.7, articles 0.3"


def parse_blend(text: str) -> tuple[tuple[str, float], ...]:
    """Names and weights in order, none for an empty text; `ValueError` says which part is wrong.

    >>> parse_blend("corpus 0.7, articles 3e-1"), parse_blend("")
    ((('corpus', 0.7), ('articles', 0.3)), ())
    """
    if not text.strip():
        return ()
    found: dict[str, float] = {}
    for part in text.split(","):
        name, weight = _part(part)
        if name in found:
            raise ValueError(f"{name} is in the blend twice: write it once, with the sum of its weights")
        found[name] = weight
    if len(found) < 2:
        raise ValueError(f"a blend has two texts or more, such as {EXAMPLE}; a single one is named by data.dataset")
    return tuple(found.items())


def blend_text(text: str) -> str:
    """The text as it was, once it could be parsed."""
    parse_blend(text)
    return text


def _part(part: str) -> tuple[str, float]:
    words = part.split()
    if len(words) != 2:
        raise ValueError(f"{part.strip()!r} is not a name and a weight: write them as in {EXAMPLE}")
    name, number = words
    if not is_name(name):
        raise ValueError(f"{name!r} is not the name of a dataset: write name and weight, as in {EXAMPLE}")
    try:
        weight = float(number)
    except ValueError:
        raise ValueError(f"the weight of {name} is {number!r}, not a number: write it as in {EXAMPLE}") from None
    if not (math.isfinite(weight) and weight > 0):
        raise ValueError(f"the weight of {name} is {number}: a weight is a number above 0; leave out what has none")
    return name, weight

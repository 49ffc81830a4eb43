"""Reads lists of node names in the short notation of Slurm, such as `node[01-04,07]`."""

from __future__ import annotations

import re

NO_NODES = ("", "(null)", "None", "None assigned")
"""What Slurm prints in place of an empty list."""
_ENTRY = re.compile(r"(?:[^,\[]|\[[^\]]*(?:\]|$))+")
"""A name, with the brackets that belong to it. Commas inside brackets do not end it."""
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_MOST_NUMBERS = 1 << 20
"""A range with more numbers is a mistake: no cluster has so many nodes."""


def expand_names(text: str) -> list[str]:
    """Return the names in a list, in order, with the leading zeros of their numbers.

    A name may have several brackets. Brackets that hold no numbers are kept as they are.

    >>> expand_names("n[1-2,08-10],gpu3"), expand_names("(null)")
    (['n1', 'n2', 'n08', 'n09', 'n10', 'gpu3'], [])
    >>> expand_names("rack[0-1]node[01-02]-ib")
    ['rack0node01-ib', 'rack0node02-ib', 'rack1node01-ib', 'rack1node02-ib']
    >>> expand_names("n[a-c],n[1-"), expand_names("[7-8]")
    (['n[a-c]', 'n[1-'], ['7', '8'])
    """
    names: list[str] = []
    for entry in _ENTRY.findall(text.strip()):
        if entry.strip() not in NO_NODES:
            names += _expand_entry(entry.strip())
    return names


def first_name(text: str) -> str:
    """Return the first name in a list, or an empty string.

    >>> first_name("nid[005012-005015,006001]"), first_name("a1,a2"), first_name("")
    ('nid005012', 'a1', '')
    """
    return next(iter(expand_names(text)), "")


def _expand_entry(entry: str) -> list[str]:
    before, bracket, after = entry.partition("[")
    content, closing, suffix = after.partition("]")
    if not bracket or not closing:
        return [entry]
    inner = _numbers(content)
    if not inner:
        inner = [f"[{content}]"]
    ends = _expand_entry(suffix)
    names: list[str] = []
    for number in inner:
        names += [f"{before}{number}{end}" for end in ends]
    return names


def _numbers(content: str) -> list[str]:
    """Return the numbers in a bracket, or nothing if it holds anything else."""
    numbers: list[str] = []
    for part in content.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return []
        first = match[1]
        last = match[2] or first
        if not 0 <= int(last) - int(first) < _MOST_NUMBERS:
            return []
        numbers += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]

    return numbers

"""Finds in sentences and printed output how many devices a training run uses."""

import re

_DEVICE_NAME = (
    r"(?:GPUs?\b|(?:NVIDIA )?(?:GB|[ABHV])\d00|(?:NVIDIA )?[AL]40S?\b|(?:AMD )?MI\d{3}X?\b)"
)
_DEVICE_COUNT = (
    rf"(?<!have )(?<!has )(?<![\w.])(\d+) ?(?:x|×)? ?{_DEVICE_NAME}"
    r"(?! (?:per|a|in each|on each|each) )"
)
"""Matches the total device count, but not the count per node ("nodes have 8 GPUs")."""
_SUBJECT = (
    r"\W{0,2} (?:\w+ly )?(?:are|is|were|was|runs?|ran|go|goes|went|gets?|got|shows?|stays?"
    r"|reach(?:es)?|looks?|fails?|hangs?|have|has|needs?)\b"
)
"""Words after a device count that describe what these devices do.

In "64 H100. 2 GPUs run slower", the second number counts only some of the devices, because the text
states a larger number.
"""
_OURS = r"\b(?:our|we (?:use|run|ran|train|trained)(?: on| with)?)(?: \w+)? $"
"""Words before the device count in the writer's own run, used if the text also cites a published
run.
"""
_SMALL_PART = 0.25
"""A number that is at most this share of all devices may count only some of them."""
_ONE_DEVICE = (
    r"(?<!than )\b(?:on|with|using) (?:just |only )?(?:one|a single|1) "
    rf"{_DEVICE_NAME}(?! (?:per|in each|of|is|runs?|was) )"
)
"""Phrases which state that a training run uses a single device. "One GPU is slower" is about a part
of a training run.
"""
_NODES_TIMES_DEVICES = r"(?<![\w.])(\d+) ?[x×] ?(\d+) ?[x×]? ?(?:GPUs?\b|(?:NVIDIA )?[ABHV]\d00)"
"""Nodes times devices per node: "4x8 A100"."""
_NODES_OF_DEVICES = (
    r"(\d+) ?(?:x|×)? ?nodes?,? ?(?:of|with|x|×|each with|having)? ?(\d+) ?(?:x|×)? ?"
    r"(?:GPUs?\b|devices?\b|(?:NVIDIA )?(?:GB?|[ABHV])\d{2,3})"
)
"""Nodes, and devices per node: "2 nodes of 8 A100"."""


def nodes_and_devices(text: str) -> tuple[int, int]:
    """Return the node count and devices per node that a text states last, or zeros.

    >>> nodes_and_devices("2 nodes of 4 A100"), nodes_and_devices("each node has 8 GPUs")
    ((2, 4), (0, 0))
    """
    counts = [(0, 0)]
    for pattern in (_NODES_TIMES_DEVICES, _NODES_OF_DEVICES):
        for nodes, devices in re.findall(pattern, text, re.IGNORECASE):
            counts.append((int(nodes), int(devices)))
    return counts[-1]


def device_count(text: str) -> int:
    """Return the last device count that a text states, or 0.

    >>> device_count("64 H100. 2 GPUs run slower."), device_count("7B on one H100")
    (64, 1)
    >>> device_count("A paper has 1024 A100. Our 64 A100 reach 40 % MFU")
    64
    """
    counts = [*re.finditer(_DEVICE_COUNT, text, re.IGNORECASE)]
    wholes = [int(count[1]) for count in counts if not _is_subject(text, count.end())]
    largest_part = _SMALL_PART * max(wholes, default=0)
    for count in reversed(counts):
        is_part = _is_subject(text, count.end()) and int(count[1]) <= largest_part
        if not is_part or re.search(_OURS, text[: count.start()], re.IGNORECASE):
            return int(count[1])
    return 1 if re.search(_ONE_DEVICE, text, re.IGNORECASE) else 0


def _is_subject(text: str, end: int) -> bool:
    """Return whether the words after a device count describe what these devices do."""
    return re.match(_SUBJECT, text[end:], re.IGNORECASE) is not None

"""Finds causes that a text or a log names.

No model predicts how much time these causes cost.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from runbook.planning.cost.accelerators import find_accelerator
from runbook.tools.speed.facts import Facts, doubled_peak
from runbook.tools.speed.parts import GapPart
from runbook.tools.speed.phrases import accumulation, first_stated, growing_times, step_seconds
from runbook.tools.speed.scaling import poor_scaling
from runbook.tools.speed.set_up_sign_rows import SET_UP_SIGNS
from runbook.tools.speed.sign_rows import GROWING, SIGNS, SLOWING_DOWN, CausePattern

_WITHOUT_DIGITS = str.maketrans("", "", "0123456789")
_DECIDING_NUMBER = re.compile(
    r"(?<![\w.,/-])(?<!\d:)(?<!step )"
    r"(?:[01](?!\w|[.,:]\d)|(?!100(?:\.0+)? ?%)[1-9]\d{2,}(?:\.\d+)?(?= ?%))"
)
"""Numbers that identify a cause: no workers, a single core, or more than 100 % MFU."""
_DECIDING_WORDS = {"0": "<none>", "1": "<single>"}
_MOST_VARIANTS = 8
"""Largest number of kept lines that differ only in numbers that identify a cause."""
_OTHERS_FIGURE = r"\b(?:elsewhere|mention\w*|readme|report\w*|paper|blog|others?|published|table)\b"
"""Words which show that a figure is someone else's."""
_OTHER_PEAK = r"\bmfu\b[^;]{0,80}\b(?:tf32|fp32)\b[^.]{0,30}\bpeak\b|\b(?:tf32|fp32)\b[^.]{0,30}\bpeak\b[^;]{0,80}\bmfu\b"
"""Phrases that show that an MFU is relative to the peak in a different number format."""
_PEAK_OF_DEVICE = (
    r"\b(?:peak|promised|hard-?coded|tailored|divid\w+)\b[^;.\n]{0,25}? (?:of|by|for|to) (?:an? |the |our )?"
    r"(gb\d00|[abhv]\d{2,3})\b"
    r"|\b(gb\d00|[abhv]\d{2,3})(?:'s)? (?:bf16 |16-bit |tensor core )?peak\b"
)
"""Phrases that name the device whose peak an MFU is based on."""
_ANY_DEVICE = (
    r"\b(?:[abhv]\d{2,3}s?|gb\d00|t4|l4|l40s?|mi\d{3}x?|p100|k80|rtx ?\w+|quadro(?: rtx)? ?\w*"
    r"|titan ?\w*|[1-5]0[6-9]0(?: ?ti)?)\b"
)
"""The name of any device."""
_MFU = (
    r"\b(\d{3}(?:\.\d+)?) ?% mfu\b|\bmfu\b[^.\d]{0,15}(\d{3}(?:\.\d+)?) ?%"
    r"|\bmfu[:=] ?(\d{3}\.\d+)\b"
)
"""Matches an MFU of 100 % or more."""


class _StatedCause(NamedTuple):
    """A value of a fact that makes steps slower on any device."""

    fact: str
    value: str
    cause: str
    evidence: str
    remedy: str


_STATED_CAUSES = (
    _StatedCause(
        "recompute",
        "full",
        "recompute",
        "activations are recomputed, and no reported figure counts this work",
        "keep activations, or recompute selectively",
    ),
    _StatedCause(
        "precision",
        "fp32",
        "precision",
        "it computes in 32 bits",
        "train in bf16",
    ),
    _StatedCause(
        "micro_batch",
        "1",
        "micro-batch",
        "micro-batch 1: the matrices are small, but the host launches just as many kernels",
        "use a larger micro-batch, if it fits",
    ),
)
"""Causes that facts state, starting with the most expensive one."""


def stated_causes(facts: Facts) -> Iterator[GapPart]:
    """Yield the causes that facts state, without estimates, for a training run without a model."""
    for stated in _STATED_CAUSES:
        if facts.get(stated.fact) == stated.value:
            evidence = f"{stated.evidence} (cost not known)"
            yield GapPart(stated.cause, 0.0, evidence, stated.remedy, is_printed=True)


def signs(text: str, reached: float) -> Iterator[GapPart]:
    """Yield each cause that a text names, with the largest share of a step that it can take."""
    plain = text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    sentences = distinct_lines(plain)
    parts = dict[str, GapPart]()
    for sign in (*SIGNS, *SET_UP_SIGNS):
        known = parts.get(sign.cause)
        if known and (sign.same_effect or not known.same_effect):
            continue
        match = first_stated(sign.pattern, sentences, sign.unless)
        if match:
            parts[sign.cause] = _part_of_sign(sign, match, reached)

    yield from parts.values()
    named = set(parts)
    if not named & {"network", "communication"}:
        yield from poor_scaling(sentences, reached)
    yield from _other_counts(sentences, reached)
    peak = doubled_peak(text)
    if peak:
        yield GapPart(
            "FLOPs convention",
            0.5 * reached,
            f"{peak.tflops:g} TFLOP/s is {peak.reason}",
            f"compare with {peak.tflops / 2:g} TFLOP/s",
            is_printed=True,
        )

    times = growing_times(plain)
    if times and GROWING not in named:
        quoted = " ".join(times.split())[:60]
        yield GapPart(
            GROWING,
            0.3 * reached,
            f'it says "{quoted}" (no estimate; at most 30% of a step)',
            "look for something that fills up: memory, the page cache, a log; or clocks that fall",
            is_printed=True,
            same_effect=SLOWING_DOWN,
        )


def _part_of_sign(sign: CausePattern, match: re.Match[str], reached: float) -> GapPart:
    """Return the cause that the matched words name."""
    quoted = " ".join(match[0].split())[:60]
    return GapPart(
        sign.cause,
        sign.most * reached,
        f'it says "{quoted}" (no estimate; at most {sign.most:.0%} of a step)',
        sign.remedy,
        is_printed=True,
        same_effect=sign.same_effect,
    )


def distinct_lines(text: str) -> str:
    r"""Return the lines in a text, except those that differ from an earlier line only in digits.

    The lines about steps all have the same words, so only the first is kept. Lines with numbers
    that identify a cause are kept.

    >>> distinct_lines("8 nodes, 2 slow\nstep 1 | 5.1 s\nstep 2 | 5.2 s\nend")
    '8 nodes, 2 slow\nstep 1 | 5.1 s\nend'
    >>> distinct_lines("num_workers: 8\nnum_workers: 4\nnum_workers: 0")
    'num_workers: 8\nnum_workers: 0'
    """
    marked = _DECIDING_NUMBER.sub(_deciding_word, text)
    shapes = marked.translate(_WITHOUT_DIGITS).splitlines()
    seen = set[str]()
    variants = Counter[str]()
    lines = []
    for line, shape in zip(text.splitlines(), shapes, strict=True):
        if shape in seen:
            continue
        seen.add(shape)
        without_digits = line.translate(_WITHOUT_DIGITS)
        variants[without_digits] += 1
        if variants[without_digits] <= _MOST_VARIANTS:
            lines.append(line)
    return "\n".join(lines)


def _deciding_word(number: re.Match[str]) -> str:
    """Return a word to replace a number that identifies a cause."""
    return _DECIDING_WORDS.get(number[0], "<over the peak>")


def _other_counts(text: str, reached: float) -> Iterator[GapPart]:
    """Yield the reasons why two figures in a text are not comparable."""
    micro_batches = accumulation(text)
    if micro_batches > 1 and len(step_seconds(text)) > 1 and re.search(_OTHERS_FIGURE, text):
        yield GapPart(
            "gradient accumulation",
            0.8 * reached,
            f"a step has {micro_batches} micro-batches, and the other figure may be for a single "
            "one",
            "compare tokens/s per device",
            is_printed=True,
        )

    if re.search(_OTHER_PEAK, text):
        yield GapPart(
            "FLOPs convention",
            0.5 * reached,
            "the MFU is divided by the peak of a number format other than 16 bits",
            "divide by the 16-bit peak of this device, without sparsity",
            is_printed=True,
        )

    stranger = _peak_of_another_device(text)
    if stranger:
        yield GapPart(
            "FLOPs convention",
            0.5 * reached,
            f"the MFU is divided by the peak of another device, the {stranger.upper()}",
            "divide by the 16-bit peak of this device, without sparsity",
            is_printed=True,
        )

    shares = [float(match[match.lastindex or 0]) for match in re.finditer(_MFU, text)]
    above_peak = [share for share in shares if share > 100]
    if above_peak:
        yield GapPart(
            "FLOPs convention",
            0.5 * reached,
            f"an MFU of {above_peak[0]:g} % is impossible: the peak belongs to another device",
            "divide by the 16-bit peak of this device, without sparsity",
            is_printed=True,
        )


def _peak_of_another_device(text: str) -> str:
    """Return the device whose peak a text's MFU is based on, if it trains on a different one, or ''.

    >>> _peak_of_another_device("mfu 11% on 8 4090: the peak is that of the h100")
    'h100'
    >>> _peak_of_another_device("mfu 41% of the peak of the h100, on 8 h100")
    ''
    >>> _peak_of_another_device("mfu 45%, divided by the peak of the h100, on 8 h200")
    ''
    """
    if not re.search(r"\bmfu\b|flops utili[sz]ation", text):
        return ""
    for match in re.finditer(_PEAK_OF_DEVICE, text):
        divisor = match[1] or match[2]
        others = text[: match.start()] + text[match.end() :]
        devices = re.findall(_ANY_DEVICE, others)
        # A text that names this device again compares it with the other devices.
        if devices and not any(_has_peak_of(device, divisor) for device in devices):
            return divisor
    return ""


def _has_peak_of(name: str, divisor: str) -> bool:
    """Return whether an MFU is relative to this device, or to one with the same 16-bit peak."""
    device = find_accelerator(name)
    other = find_accelerator(divisor)
    if device is None or other is None:
        return divisor in name
    return device.peaks.get("bf16") == other.peaks.get("bf16")

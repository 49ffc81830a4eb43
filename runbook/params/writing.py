"""run.yaml: every value of a run, written so that YAML 1.1 and 1.2 read the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from runbook.params.yaml12 import read_scalar
from runbook.units import show_count, show_duration

if TYPE_CHECKING:
    from runbook.params.settings import Settings

_DURATIONS = ("walltime", "exit_duration", "process_group_timeout")
_COUNTS = ("tokens", "samples", "warmup_tokens", "warmup_samples", "decay_tokens", "decay_samples")


def write_run(settings: Settings) -> str:
    """The text of run.yaml; `runbook.params.load` of it gives the same values."""
    variant = f" Variant {settings.variant}." if settings.variant else ""
    lines = [
        f"# What was asked of run {settings.name}: every value, those taken by default too.{variant}",
        "# Written by runbook; `runbook why RUN KEY` tells where a value came from.",
    ]
    open_sections: tuple[str, ...] = ()
    for key, value in settings.values().items():
        *parents, last = key.split(".")
        shared = _shared(open_sections, tuple(parents))
        for depth in range(shared, len(parents)):
            lines.append(f"{'  ' * depth}{parents[depth]}:")
        open_sections = tuple(parents)
        lines.append(f"{'  ' * len(parents)}{last}: {write_scalar(value)}{_remark(last, value)}")
    return "\n".join(lines) + "\n"


def write_scalar(value: Any) -> str:
    """A value as YAML, quoted where 1.1 or 1.2 would read a bare word as something else.

    >>> write_scalar(6e-05), write_scalar("no"), write_scalar("bf16"), write_scalar("12:00:00"), write_scalar(True)
    ('6.0e-5', '"no"', 'bf16', '"12:00:00"', 'true')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        mantissa, letter, exponent = text.partition("e")
        return text if not letter else f"{mantissa}{'' if '.' in mantissa else '.0'}e{int(exponent):+d}"
    if isinstance(value, int):
        return str(value)
    text = str(value)
    return text if _is_bare(text) else f'"{"".join(map(_escaped, text))}"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return {"\n": "\\n", "\t": "\\t"}.get(letter, f"\\U{ord(letter):08x}")


def _is_bare(text: str) -> bool:
    if not text or not text.isascii() or not text.replace("-", "").replace("_", "").replace(".", "").isalnum():
        return False
    try:
        return text[0].isalnum() and read_scalar(text) == text and yaml.safe_load(text) == text
    except ValueError:  # YAML 1.1 takes 0x_ for a number and then fails on it
        return False


def _shared(before: tuple[str, ...], now: tuple[str, ...]) -> int:
    depth = 0
    while depth < min(len(before), len(now)) and before[depth] == now[depth]:
        depth += 1
    return depth


def _remark(key: str, value: Any) -> str:
    if key in _DURATIONS and value:
        return f"  # {show_duration(value)}"
    if key in _COUNTS and value >= 10_000:
        return f"  # {show_count(value)}"
    return ""

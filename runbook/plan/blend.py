"""Several texts in one training: the files of each, their weights, and how often each is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.plan.checks import Check, judge
from runbook.units import show_count


@dataclass(frozen=True)
class Part:
    """One text of a blend: its files, and its weight beside the others'."""

    dataset: str
    weight: float
    prefix: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    num_files: int
    """Input files; 0: not known before the folder is read."""
    estimated_tokens: int
    """End-of-document tokens included; 0: not known."""
    estimated_bytes: int
    """Of the .bin and .idx files; 0: not known."""
    tokens_from: str
    train_share: float
    """Part of its tokens that is trained on."""


def weighted(parts: Sequence[Part], use: str) -> list[tuple[float, str]]:
    """Weight and prefix of each file of a use (train, validation, test); a text's files share its weight."""
    return [(part.weight / len(getattr(part, use)), prefix) for part in parts for prefix in getattr(part, use)]


def check_parts(parts: Sequence[Part]) -> list[Check]:
    """No file is in a blend twice, whatever its texts are called."""
    if not parts:
        return []
    prefixes = [prefix for part in parts for prefix in (*part.train, *part.validation, *part.test)]
    twice = sorted({prefix for prefix in prefixes if prefixes.count(prefix) > 1})
    whole = sum(part.weight for part in parts)
    shares = ", ".join(f"{part.dataset} {part.weight / whole:.1%}" for part in parts)
    return [
        judge(
            "data blend",
            not twice,
            f"{shares} of the samples" + (f"; {', '.join(twice)} twice" if twice else ""),
            "each file is in the blend once",
            "Take one of the datasets that share a file out of data.blend, and add its weight to the other's.",
        )
    ]


def check_part_epochs(name: str, rule: str, tokens: int, parts: Sequence[Part]) -> Check:
    """By the text that is read most often for its size."""
    whole = sum(part.weight for part in parts)
    read: list[tuple[float, str]] = []
    for part in parts:
        available = part.estimated_tokens * part.train_share
        if not available:
            return Check(name, "unknown", f"{tokens:,} tokens wanted; the count of {part.dataset} is not known", rule)
        read.append((tokens * part.weight / whole / available, part.dataset))
    return judge(
        name,
        max(read)[0] <= 1,
        f"{show_count(tokens)} tokens wanted: {', '.join(f'{one} read {epochs:.2f} times' for epochs, one in read)}",
        rule,
        f"Take more text, fewer iterations, or a smaller weight of {max(read)[1]}; repeating it a few times does "
        f"little harm.",
        otherwise="warn",
    )

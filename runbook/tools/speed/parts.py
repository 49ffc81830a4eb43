"""Parts of the gap between the expected and the reached step time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

NEGLIGIBLE_SECONDS = 1e-9


@dataclass(frozen=True)
class GapPart:
    """A cause of the gap, and the seconds per step that it explains."""

    name: str
    seconds: float
    evidence: str
    remedy: str
    words: str = ""
    """The change as an argument of --set."""
    is_printed: bool = False
    """Whether the program itself printed the cause.

    Printed causes come before those that only a model predicts.
    """
    is_suspected: bool = False
    """Whether only the set-up makes the cause likely. Suspects come last and have no seconds."""
    same_effect: tuple[str, ...] = ()
    """Other possible causes for the effect that the words describe. If there are any, the part is
    only a symptom.

    A symptom is ranked with the suspects, because any of these causes may be behind it.
    """

    stories: tuple[str, ...] = ()
    """Addresses of similar public stories that accepted the cause, most similar first."""

    def as_row(self) -> dict[str, str | float]:
        """Return the values to show to people and in --json."""
        return {
            "name": self.name,
            "seconds": self.seconds,
            "evidence": self.evidence,
            "remedy": self.remedy,
            "words": self.words,
        }


def fill(gap: float, *groups: Sequence[GapPart]) -> list[GapPart]:
    """Return parts that add up to the gap, printed causes first.

    Within a group, the largest part comes first. The unexplained part comes last. Each group gets
    what is left after earlier groups. If a group is larger than this remainder, all its parts
    shrink by the same factor. Without a gap, only printed and suspected causes remain, without
    seconds.
    """
    remaining = max(0.0, gap)
    parts = list[GapPart]()
    for group in groups:
        group_seconds = sum(part.seconds for part in group)
        share = min(1.0, remaining / group_seconds) if group_seconds else 0.0
        parts += [replace(part, seconds=part.seconds * share) for part in group]
        remaining -= group_seconds * share

    parts.sort(key=lambda part: (part.is_suspected, not part.is_printed, -part.seconds))
    unexplained = GapPart(
        "unexplained",
        remaining,
        "nothing given or measured explains it",
        "profile a step",
    )
    parts.append(unexplained)
    return [part for part in parts if _is_listed(part)]


def _is_listed(part: GapPart) -> bool:
    """Return whether a part takes time, or is named or suspected without a known time."""
    return part.is_printed or part.is_suspected or part.seconds > NEGLIGIBLE_SECONDS

"""Decides which documents are kept, by the source named by each record."""

from __future__ import annotations

from dataclasses import dataclass

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage


@dataclass(frozen=True)
class ChosenSources:
    """The sources to keep and the sources to drop. If none is named, all are kept.

    >>> ChosenSources(keep=("book",)).wants("web"), ChosenSources(drop=("book",)).wants("web")
    (False, True)
    """

    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `DataError` if a source is both kept and dropped."""
        both = sorted(set(self.keep) & set(self.drop))
        if both:
            raise DataError(TokenMessage.SOURCE_KEPT_AND_DROPPED, both=", ".join(both))

    @property
    def names_any(self) -> bool:
        """Return whether any source to keep or drop is named."""
        return bool(self.keep or self.drop)

    def wants(self, source: str) -> bool:
        """Return whether documents from a source are kept."""
        if self.keep and source not in self.keep:
            return False
        return source not in self.drop

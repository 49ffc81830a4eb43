"""Which documents are kept or left out because of the source that their record names."""

from __future__ import annotations

from dataclasses import dataclass

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage


@dataclass(frozen=True)
class ChosenSources:
    """The sources to keep and to drop. All sources are kept if none is named.

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
        """Return whether some sources are chosen or left out."""
        return bool(self.keep or self.drop)

    def wants(self, source: str) -> bool:
        """Return whether documents of a source are wanted."""
        if self.keep and source not in self.keep:
            return False
        return source not in self.drop

"""Reads the table of public stories: questions about slow training, with their accepted causes.

A text restates the question of a thread in our words, and keeps the technical words of its author.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files

_TABLE = "public_stories.csv"
_ISSUE = "https://github.com/{repository}/issues/{number}"


class StoryUse(StrEnum):
    """What a story was used for before a figure about `explain` was measured."""

    RULES = "rules"
    """It improved the rules for signs and suspects."""
    TRAINING = "training"
    """Cross-validation over these stories chose the parameters of the search for similar ones."""
    HELD_OUT = "held out"
    """It was used for nothing but one measurement."""


@dataclass(frozen=True)
class Story:
    """A thread about slow training."""

    use: StoryUse
    address: str
    """Repository and number of a GitHub issue or pull request, or the URL of another page."""
    causes: tuple[str, ...]
    """Causes that the author or a maintainer accepted."""
    text: str

    @property
    def url(self) -> str:
        """Return the address of the thread's page.

        >>> Story(StoryUse.RULES, "NVIDIA/apex#76", (), "").url
        'https://github.com/NVIDIA/apex/issues/76'
        """
        repository, _, number = self.address.partition("#")
        return _ISSUE.format(repository=repository, number=number) if number else self.address


@cache
def read_stories() -> tuple[Story, ...]:
    """Return all rows of the table."""
    text = files("runbook.tools.speed").joinpath(_TABLE).read_text(encoding="utf-8")
    return tuple(_story(row) for row in csv.DictReader(text.splitlines()))


def stories_for(uses: Iterable[StoryUse]) -> tuple[Story, ...]:
    """Return the stories with one of these uses."""
    wanted = set(uses)
    return tuple(story for story in read_stories() if story.use in wanted)


def _story(row: dict[str, str]) -> Story:
    return Story(
        use=StoryUse(row["use"]),
        address=row["address"],
        causes=tuple(row["causes"].split("; ")),
        text=row["text"],
    )

"""Reads the table of public stories: questions about slow training, with their accepted causes.

Each text restates the question from a thread in our words, and keeps the author's technical terms.
`python tools/write_pages.py` writes the subjects column, because finding all subjects takes too
long for `explain`.
"""

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files

TABLE = "public_stories.csv"
"""Name of the file in this folder."""
_SEPARATOR = "; "
_ISSUE = "https://github.com/{repository}/issues/{number}"


class StoryUse(StrEnum):
    """What a story was used for before a figure about `explain` was measured."""

    RULES = "rules"
    """It improved the rules for signs and suspects."""
    TRAINING = "training"
    """Cross-validation over these stories chose the parameters for finding similar ones."""
    HELD_OUT = "held out"
    """It was used only for two measurements, one for each collection of stories."""
    SECOND_TRAINING = "second training"
    """It is like a training story, and was collected later by people who did not know the rules."""
    SECOND_HELD_OUT = "second held out"
    """It was collected with the second training stories, and was used for one measurement."""


USED = (StoryUse.RULES, StoryUse.TRAINING, StoryUse.SECOND_TRAINING)
"""Uses that count as not held out."""


@dataclass(frozen=True)
class Story:
    """A thread about slow training."""

    use: StoryUse
    address: str
    """Repository and number for a GitHub issue or pull request, or the URL of another page."""
    causes: tuple[str, ...]
    """Causes that the author or a maintainer accepted."""
    text: str
    subjects: tuple[str, ...] = ()
    """What `story_subjects` finds in the text."""

    @property
    def url(self) -> str:
        """Return the URL of the thread.

        >>> Story(StoryUse.RULES, "NVIDIA/apex#76", (), "").url
        'https://github.com/NVIDIA/apex/issues/76'
        """
        repository, _, number = self.address.partition("#")
        return _ISSUE.format(repository=repository, number=number) if number else self.address


@cache
def read_stories() -> tuple[Story, ...]:
    """Return all rows in the table."""
    text = files("runbook.tools.speed").joinpath(TABLE).read_text(encoding="utf-8")
    return tuple(_story(row) for row in csv.DictReader(text.splitlines()))


def as_table(stories: Iterable[Story]) -> str:
    """Return the stories as CSV text."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("use", "address", "causes", "text", "subjects"))
    for story in stories:
        causes = _SEPARATOR.join(story.causes)
        subjects = _SEPARATOR.join(story.subjects)
        writer.writerow((story.use, story.address, causes, story.text, subjects))
    return table.getvalue()


def stories_for(uses: Iterable[StoryUse]) -> tuple[Story, ...]:
    """Return the stories that had one of these uses."""
    wanted = set(uses)
    return tuple(story for story in read_stories() if story.use in wanted)


def _story(row: dict[str, str]) -> Story:
    return Story(
        use=StoryUse(row["use"]),
        address=row["address"],
        causes=tuple(row["causes"].split(_SEPARATOR)),
        text=row["text"],
        subjects=tuple(row["subjects"].split(_SEPARATOR)) if row["subjects"] else (),
    )

"""Finds the public stories that are most similar to a text about slow training.

A text and a story are compared by subjects, words and pairs of neighboring words. Rare ones count
more. The causes of the most similar stories are guesses: the text need not name them. In
cross-validation with 294 training stories, each answered without its own repository, 238 answers
had the accepted cause among their first three. The rules alone had 172, and answers without the
subjects 219 (2026-11-29).
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from runbook.tools.speed.phrases import first_stated
from runbook.tools.speed.public_stories import Story, read_stories
from runbook.tools.speed.signs import distinct_lines
from runbook.tools.speed.story_subjects import subjects_in
from runbook.tools.speed.topics import asks_about_speed, complains

NEAREST = 25
"""Number of similar stories used to count causes.

Chosen by cross-validation over the training stories, like the next value and the weights in
`story_suspects`. With 20 or 30 stories, one answer in a hundred more is wrong.
"""
_WEIGHT_OF_SUBJECTS = 2.0
"""Weight of a subject, compared with a word that is as rare."""
LEAST_KNOWN_WORDS = 5
"""Fewest telling words and subjects of the stories that a text must have. 340 of 344 stories share
as many with the other stories."""
_TELLING_LETTERS = 4
"""Minimum number of letters in a telling word. Most shorter words say nothing: "how do I use it"."""
_MOST_CHARACTERS = 20_000
"""Only this many characters are compared. A question is shorter; the rest of a log adds no
words."""
_PROSE_WORDS = 4
"""Minimum number of words in a line of prose. Shorter lines are options, values or parts of a table."""
_WORD = re.compile(r"[a-z][a-z0-9_+.-]*[a-z0-9]|[a-z]")
_ENDING = re.compile(r"(?:ing|ed|es|s)$")
"""Endings that are cut off, so that "saves" and "saving" are the same word."""
_LONGEST_UNCUT = 4
"""Longest word that keeps its ending: "runs" is cut wrongly less often than "bus"."""
_SUBJECT_MARK = "about: "
"""Prefix for terms that stand for a subject."""
_SAYING_NOTHING = re.compile(
    r"a|about|all|also|am|an|and|any|are|as|at|be|been|but|by|can|could|did|do|does|for|from|has|have"
    r"|he|how|i|if|in|is|it|its|just|me|more|my|no|not|of|on|only|or|our|she|should|so|some|than|that"
    r"|the|then|there|they|this|to|too|very|was|we|were|what|when|which|while|why|will|with|would|you"
    r"|your"
)
"""Words that are left out, because they are in texts about every cause."""
_UNHAPPY = (
    r"\b(?:slow\w*|long(?:er)?|low(?:er)?|only|hardly|stuck|stall\w*|idle|wait\w*|drop(?:s|ped)?"
    r"|bottleneck\w*|worse|less|hours?|days?|takes?|took|needs?|faster|than|why|normal|expected"
    r"|suddenly|grow\w*|increas\w+|fluctuat\w+|regress\w+|as fast as|lots of|little|half (?:the|of|as)"
    r"|halv\w+|falls?|no longer|gains?|strange|weird|ignor\w+|looks? off"
    r"|twice|doubl\w+|equally|up and up|saturat\w+|problems?|issues?|troubles?|obstacles?"
    r"|any(?:one|body)|whereas)\b|(?<=[a-z])n't\b|\bs/it\b|\?"
)
"""Words in a text that may be about slow training.

They are wider than `complains` allows, because a guess from stories also needs their words.
"""

_CONTENT = r"\bas (?:planned|expected|it should)\b"
"""Words in a sentence about a training run that is as fast as it should be."""


@dataclass(frozen=True)
class SimilarStories:
    """The stories that are most similar to a text, and their similarities, most similar first."""

    stories: Sequence[Story] = ()
    similarities: Sequence[float] = ()

    def shares(self) -> dict[str, float]:
        """Return each cause with its share among the stories, weighted by similarity.

        A story with two causes counts half for each.
        """
        total = sum(self.similarities)
        shares = defaultdict[str, float](float)
        for story, similarity in zip(self.stories, self.similarities, strict=True):
            for cause in story.causes:
                shares[cause] += similarity / total / len(story.causes)
        return dict(shares)

    def with_cause(self, cause: str) -> list[Story]:
        """Return the stories that accepted a cause, most similar first."""
        return [story for story in self.stories if cause in story.causes]


@dataclass
class StoryIndex:
    """An index to find stories by subjects, words and word pairs."""

    stories: Sequence[Story]
    _stories_by_term: dict[str, list[int]] = field(init=False)
    _weights: dict[str, float] = field(init=False)
    """Weight for each term: ln(stories / stories with the term), times a factor for subjects."""
    _lengths: list[float] = field(init=False)
    """For each story, the length of the vector that its term weights form."""

    def __post_init__(self) -> None:
        """Count the stories with each term."""
        self._stories_by_term = defaultdict(list)
        terms_of_stories = [
            terms_of(story.text.lower()) | _subject_terms(story.subjects) for story in self.stories
        ]
        for place, terms in enumerate(terms_of_stories):
            for term in terms:
                self._stories_by_term[term].append(place)
        count = len(self.stories) + 1
        self._weights = {
            term: _weight_of_kind(term) * math.log(count / len(places))
            for term, places in self._stories_by_term.items()
        }
        self._lengths = [self._length(terms) for terms in terms_of_stories]

    def similar(self, text: str) -> SimilarStories:
        """Return the stories that are most similar to a text, or none if it is about another subject.

        >>> index = StoryIndex(read_stories())
        >>> index.similar("How do I install it?").stories
        ()
        """
        plain = distinct_lines(text[:_MOST_CHARACTERS].lower())
        prose = _prose(plain)
        terms = terms_of(prose) | _subject_terms(subjects_in(prose))
        terms &= self._stories_by_term.keys()
        telling = [term for term in terms if _is_telling(term)]
        if len(telling) < LEAST_KNOWN_WORDS or not _is_unhappy(plain):
            return SimilarStories()
        products = defaultdict[int, float](float)
        for term in terms:
            for place in self._stories_by_term[term]:
                products[place] += self._weights[term] ** 2
        length = self._length(terms)
        cosines = {
            place: product / length / self._lengths[place] for place, product in products.items()
        }
        nearest = sorted(cosines, key=lambda place: (-cosines[place], place))[:NEAREST]
        return SimilarStories(
            tuple(self.stories[place] for place in nearest),
            tuple(cosines[place] for place in nearest),
        )

    def _length(self, terms: set[str]) -> float:
        """Return the length of the vector that these term weights form."""
        return math.sqrt(sum(self._weights[term] ** 2 for term in terms)) or 1.0


@cache
def public_index() -> StoryIndex:
    """Return the index of all public stories. It is built when `explain` first needs it."""
    return StoryIndex(read_stories())


def terms_of(text: str) -> set[str]:
    """Return the words in a lower-case text without endings, and pairs of neighboring words.

    >>> sorted(terms_of("saving the checkpoints takes long"))
    ['checkpoint', 'checkpoint tak', 'long', 'sav', 'sav checkpoint', 'tak', 'tak long']
    """
    words = [word for word in _words(text) if not _SAYING_NOTHING.fullmatch(word)]
    pairs = {f"{first} {second}" for first, second in pairwise(words)}
    return {*words, *pairs}


def _subject_terms(subjects: Iterable[str]) -> set[str]:
    """Return terms that differ from all words and pairs of words."""
    return {f"{_SUBJECT_MARK}{subject}" for subject in subjects}


def _weight_of_kind(term: str) -> float:
    """Return the factor for a subject, or 1 for a word or word pair."""
    return _WEIGHT_OF_SUBJECTS if term.startswith(_SUBJECT_MARK) else 1.0


def _is_telling(term: str) -> bool:
    """Return whether a term is a subject or a long word, not a pair of words."""
    is_word = " " not in term and len(term) >= _TELLING_LETTERS
    return is_word or term.startswith(_SUBJECT_MARK)


def _words(text: str) -> Iterator[str]:
    """Yield the words in a lower-case text without their endings."""
    for word in _WORD.findall(text):
        yield _ENDING.sub("", word) if len(word) > _LONGEST_UNCUT else word


def _prose(text: str) -> str:
    r"""Return the lines in a lower-case text that have several words.

    >>> _prose("it is slow on one node\n--bf16 true\nlr: 3e-4")
    'it is slow on one node'
    """
    lines = text.splitlines()
    return "\n".join(line for line in lines if len(_WORD.findall(line)) >= _PROSE_WORDS)


def _is_unhappy(text: str) -> bool:
    """Return whether a lower-case text may be about slow training.

    >>> _is_unhappy("8 h100 on 4 nodes"), _is_unhappy("it is not slow"), _is_unhappy("2 s at most?")
    (False, False, True)
    """
    if complains(text) or asks_about_speed(text):
        return True
    return first_stated(_UNHAPPY, text, unless=_CONTENT) is not None

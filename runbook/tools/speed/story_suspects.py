"""Joins the suspects of the rules with the causes of similar public stories."""

from collections.abc import Sequence
from dataclasses import replace

from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.parts import GapPart
from runbook.tools.speed.similar_stories import SimilarStories
from runbook.tools.speed.suspects import Suspect, usual_remedy

_WEIGHT_OF_STORIES = 0.5
"""Weight of the share of similar stories; the rules' share has the rest.

Chosen by leave-one-out cross-validation over the training stories: 0.4 to 0.7 are equally good.
"""
_LINKED_STORIES = 2
"""Number of similar stories whose address is shown."""
_OTHER_REMEDIES = {
    "layout": "split no more than memory requires",
    "warm-up": "leave the first steps out of the average",
}
"""Remedies for causes that are never suspects of the rules."""


def with_stories(suspects: Sequence[Suspect], similar: SimilarStories) -> list[Suspect]:
    """Return suspects with a sign and the causes of similar stories, likeliest first.

    Suspects without a sign, which are merely usual, come last.
    """
    shares = similar.shares()
    by_cause = {suspect.part.name: suspect for suspect in suspects if suspect.has_sign}
    for cause in shares:
        by_cause.setdefault(cause, Suspect(_suspected(cause), has_sign=True, share=0.0))
    joined = [
        Suspect(
            _with_addresses(suspect.part, similar),
            has_sign=True,
            share=_joint_share(suspect.share, shares.get(cause, 0.0)),
        )
        for cause, suspect in by_cause.items()
    ]
    joined.sort(key=lambda suspect: -suspect.share)
    usual = [suspect for suspect in suspects if suspect.part.name not in by_cause]
    return [*joined, *usual]


def _joint_share(share_of_rules: float, share_of_stories: float) -> float:
    """Return the mean of both shares."""
    return _WEIGHT_OF_STORIES * share_of_stories + (1 - _WEIGHT_OF_STORIES) * share_of_rules


def _suspected(cause: str) -> GapPart:
    """Return a suspected part of the gap without evidence."""
    remedy = _OTHER_REMEDIES.get(cause) or usual_remedy(cause)
    return GapPart(cause, 0.0, "", remedy, is_suspected=True)


def _with_addresses(part: GapPart, similar: SimilarStories) -> GapPart:
    """Return a part whose evidence includes the similar stories that accepted its cause."""
    stories = similar.with_cause(part.name)
    if not stories:
        return part
    addresses = [story.address for story in stories]
    told = SpeedMessage.SIMILAR_STORIES.fill(
        count=len(stories),
        nearest=len(similar.stories),
        addresses=", ".join(addresses[:_LINKED_STORIES]),
    )
    evidence = f"{part.evidence}; {told}" if part.evidence else f"suspected: {told}"
    return replace(part, evidence=evidence, stories=tuple(addresses))

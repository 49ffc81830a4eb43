"""Joins the suspects found by the rules with the causes found in similar public stories."""

from collections.abc import Sequence
from dataclasses import replace

from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.parts import GapPart
from runbook.tools.speed.similar_stories import SimilarStories
from runbook.tools.speed.suspects import Suspect, usual_remedy

_WEIGHT_OF_STORIES = 0.6
"""Weight for the share in similar stories. The rest is the weight for the share from the rules.

It was chosen by cross-validation over the training stories. With 0.4 or 0.7, one answer in a
hundred more is wrong.
"""
_LINKED_STORIES = 2
"""Number of similar stories to link to."""
_OTHER_REMEDIES = {
    "layout": "split no more than memory requires",
    "warm-up": "leave the first steps out of the average",
}
"""Remedies for causes that the rules never suspect."""


def with_stories(suspects: Sequence[Suspect], similar: SimilarStories) -> list[Suspect]:
    """Return the suspects from the rules and the causes from similar stories, likeliest first.

    Without similar stories, the suspects are unchanged.
    """
    if not similar.stories:
        return list(suspects)
    shares = similar.shares()
    by_cause = {suspect.part.name: suspect for suspect in suspects}
    for cause in shares:
        by_cause.setdefault(cause, Suspect(_suspected(cause), has_sign=True, share=0.0))
    joined = [
        Suspect(
            _with_addresses(suspect, similar),
            has_sign=suspect.has_sign or cause in shares,
            share=_joint_share(suspect, shares.get(cause, 0.0)),
        )
        for cause, suspect in by_cause.items()
    ]
    return sorted(joined, key=lambda suspect: -suspect.share)


def _joint_share(suspect: Suspect, share_of_stories: float) -> float:
    """Return the weighted mean of the share from the rules and the share from similar stories."""
    share_of_rules = (1 - _WEIGHT_OF_STORIES) * suspect.share
    return _WEIGHT_OF_STORIES * share_of_stories + share_of_rules


def _suspected(cause: str) -> GapPart:
    """Return a part of the gap that is suspected, still without evidence."""
    remedy = _OTHER_REMEDIES.get(cause) or usual_remedy(cause)
    return GapPart(cause, 0.0, "", remedy, is_suspected=True)


def _with_addresses(suspect: Suspect, similar: SimilarStories) -> GapPart:
    """Return a part whose evidence includes the similar stories that accepted its cause."""
    part = suspect.part
    stories = similar.with_cause(part.name)
    if not stories:
        return part
    addresses = [story.address for story in stories]
    accepted = SpeedMessage.SIMILAR_STORIES.fill(
        count=len(stories),
        nearest=len(similar.stories),
        addresses=", ".join(addresses[:_LINKED_STORIES]),
    )
    has_evidence = suspect.has_sign and part.evidence
    evidence = f"{part.evidence}; {accepted}" if has_evidence else f"suspected: {accepted}"
    return replace(part, evidence=evidence, stories=tuple(addresses))

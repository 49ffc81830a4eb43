"""Fifty public threads about slow training, each with the cause that its thread accepts.

The threads were collected before any rule was read (2026-11-28). One half was used to improve the
rules. With openings from the other half, 15 of 25 answers were then right, as before. Later its
misses improved the rules too, so neither half is a blind test any more. The texts state the facts
and figures of each opening in our words. Similar stories are not used here.
"""

from __future__ import annotations

import pytest
from log_lines import parse_lines

from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.tools.speed.explain import explain
from runbook.tools.speed.facts import read_facts
from runbook.tools.speed.public_stories import StoryUse, stories_for

STORIES = stories_for([StoryUse.RULES])
MISSED = {
    "deepspeedai/DeepSpeed#1776",
    "modelscope/ms-swift#9797",
    "google-research/bert#451",
    "jeya-maria-jose/Medical-Transformer#52",
    "TensorAuto/OpenTau#177",
}
"""Threads whose accepted cause is not yet among the first three."""


@pytest.fixture(scope="module")
def models():
    catalogue = read_models(project_root())
    return {name: catalogue.get(name) for name in catalogue.names}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.address)
def test_the_accepted_cause_is_among_the_first_three_unless_it_is_listed_as_missed(story, models):
    explained = explain(story.text, parse_lines([]), read_facts(story.text, {}), models)
    first = set(explained.as_dict()["first_causes"])
    assert bool(first & set(story.causes)) == (story.address not in MISSED), first

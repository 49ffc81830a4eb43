"""Clues that make causes of slow training more or less likely, without naming them."""

from __future__ import annotations

import pytest

from runbook.tools.speed.checks import checks_of
from runbook.tools.speed.clues import CLUES, clues_in
from runbook.tools.speed.parts import GapPart


@pytest.mark.parametrize(
    ("text", "likelier", "less_likely"),
    [
        ("it is slow on a single v100", set(), {"network", "DataParallel"}),
        ("two nodes are slower than one node", {"network"}, {"DataParallel"}),
        ("4 gpus take the same time as one gpu", {"DataParallel", "communication"}, {"no device"}),
        ("the gpu is at 100 % all the time", {"kernels"}, {"data wait", "no device"}),
        ("gpu utilization is 0 %", {"no device", "data wait"}, set()),
        ("the load jumps, 0 to 90 on each gpu usage", {"data wait"}, set()),
        ("each epoch is slower", {"growing steps"}, {"no device"}),
        ("it pauses after every epoch", {"evaluation", "saves"}, {"precision"}),
        ("the validation takes 2 hours", {"evaluation"}, set()),
        ("our ppo agent trains for days", {"generation"}, {"data wait"}),
        ("fp16 is about as fast as fp32", {"precision"}, {"data wait"}),
        ("the mfu of 7 % looks wrong", {"FLOPs convention"}, {"data wait"}),
        ("since the upgrade it takes twice as long", {"software version"}, set()),
        ("lora takes as long as before", {"adapters"}, set()),
        ("275 seconds per step for a small model", {"no device", "memory"}, {"communication"}),
        ("with synthetic data it is as slow", set(), {"data wait"}),
    ],
)
def test_a_clue_changes_how_likely_causes_are(text, likelier, less_likely):
    factors = clues_in(text).factors
    assert {cause for cause in likelier if factors.get(cause, 1) > 1} == likelier
    assert {cause for cause in less_likely if factors.get(cause, 1) < 1} == less_likely


@pytest.mark.parametrize(
    "text",
    [
        "a step takes 2 s",
        "we train llama",
        "the loss falls",
    ],
)
def test_a_text_without_clues_changes_nothing(text):
    assert clues_in(text).factors == {}


def test_several_devices_in_a_text_outweigh_a_single_one():
    """People compare several devices with a single one."""
    assert clues_in("one gpu").factor("network") < 1
    assert clues_in("one gpu is as fast as two gpus").factor("network") == 1


def test_the_strongest_clue_is_named_first():
    clues = clues_in("validation is slow: the validation takes hours")
    assert clues.names["evaluation"][0] == "it validates"
    assert len(clues.names["evaluation"]) > 1


def test_each_clue_names_known_causes_and_changes_them():
    assert len({clue.name for clue in CLUES}) == len(CLUES)
    for clue in CLUES:
        assert clue.factors, clue.name
        for cause, factor in clue.factors.items():
            assert [*checks_of([GapPart(cause, 0.0, "", "")], 1)], (clue.name, cause)
            assert factor > 0, clue.name
            assert factor != 1, clue.name

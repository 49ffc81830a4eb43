"""Times that a text states, and the causes that their size makes likely."""

from __future__ import annotations

import pytest

from runbook.tools.speed.durations import is_out_of_proportion, times_two_models
from runbook.tools.speed.suspects import ranked_suspects

_ABSURD = {"no device", "memory"}


def _suspected(text: str) -> set[str]:
    return {suspect.part.name for suspect in ranked_suspects(text, {}) if suspect.has_sign}


@pytest.mark.parametrize(
    "text",
    [
        "it takes 300+ hours/epoch, others need 2 hours/epoch",
        "one machine needs 2 s per step, the other 45 s per step",
        "90 seconds per iteration here, 3 s/iter there",
        "the new server is 40x slower",
        "the new server is 1,000 times slower",
        "the bar says that it will take 200 days",
        "the estimate is 5 months",
        "training takes almost a year",
    ],
)
def test_a_time_out_of_proportion_points_to_a_lack_of_device_or_memory(text):
    assert is_out_of_proportion(text)
    assert _suspected(f"training is slow. {text}") >= _ABSURD


@pytest.mark.parametrize(
    "text",
    [
        "it takes 12 hours/epoch, others need 2 hours/epoch",
        "2 s per step, and an epoch needs 3 hours per epoch",
        "0 s per step in the first line, then 2 s per step",
        "the new server is 4x slower",
        "it takes 20 days",
        "the release is 200 days old, and takes a flag",
        "we bought the server a year ago; a step takes 2 s",
        "a save needs 1 h. we have had 500 days of uptime",
    ],
)
def test_an_ordinary_time_points_to_neither(text):
    assert not is_out_of_proportion(text)
    assert not _suspected(f"training is slow. {text}") & _ABSURD


def test_one_time_of_two_devices_is_no_time_out_of_proportion():
    text = "8 devices: 0.5 hours per epoch; one device: 4 hours per epoch"
    assert not is_out_of_proportion(text)


@pytest.mark.parametrize(
    "text",
    [
        "vicuna-7b needs 12 hours and llama3-8b needs 42 hours",
        "BERT takes 3 minutes, RoBERTa takes 9 minutes",
        "we compare qwen2.5 (30 min) with mistral (50 min)",
        "it takes 45 min, with the other 12 min (110M vs 66M parameters)",
    ],
)
def test_the_times_of_two_models_show_unequal_work(text):
    assert times_two_models(text.lower())
    assert "unequal work" in _suspected(f"Training is slow. {text}")


@pytest.mark.parametrize(
    "text",
    [
        "llama3-8b needs 12 hours on 8 devices and 42 hours on 2",
        "bert takes 3 minutes. roberta is not tried.",
        "we distil llama into qwen, and a step takes 2 s",
        "it takes 45 min, once 12 min (110M vs 110M parameters)",
        "it takes 45 min with 110M and 12M of memory in use, once 12 min",
        "110M vs 66M parameters; a step takes 2 s",
    ],
)
def test_the_times_of_one_model_show_none(text):
    assert not times_two_models(text)

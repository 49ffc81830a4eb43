"""Texts that the assertions about messages must not mistake for the expected message."""

from __future__ import annotations

import pytest

from suite.messages import containing, count_of, says, says_only

STEP = "step {step} of {steps} lost {share:.0%}"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("step 1 of 9", {}),
        ("step 2 of 9 lost 50%", {"step": 1}),
        ("step 1 of 9 lost 50%", {"share": 0.4}),
        ("step 1 of 9 lost 50%", {"steps": containing("8")}),
    ],
)
def test_another_text_or_value_is_not_the_message(text, values):
    assert not says(text, STEP, **values)
    assert not says_only(text, STEP, **values)
    assert count_of(text, STEP, **values) == 0


def test_a_text_before_or_after_it_is_not_the_message_alone():
    assert says("Error: 1 of 9 lost; stop", "{step} of {steps} lost", step=1, steps=9)
    assert not says_only("Error: 1 of 9 lost", "{step} of {steps} lost", step=1, steps=9)
    assert not says_only("1 of 9 lost; stop", "{step} of {steps} lost", step=1, steps=9)


def test_a_value_that_the_message_does_not_show_is_an_error():
    with pytest.raises(AssertionError, match="no value"):
        says("step 1 of 9 lost 50%", STEP, steqs=9)

"""Every framework gets the length of a training run, in iterations, samples or tokens, exactly
once.
"""

import json
from collections import Counter

import pytest
from sites import (
    LENGTHS,
    NAMES,
    OF_EACH_FRAMEWORK,
    PHASES,
    length_arguments,
    length_file,
    rendered,
)

from runbook.frameworks import megatron, nemo

REFUSED = "lumi-13b:13b-1n-dp8-zero1"  # the plan refuses it, because its states do not fit
LENGTH_OPTIONS = ("--train-iters", "--train-samples", "trainer.max_steps")


def given(arguments):
    """Split arguments into options and values: `--name value` for Megatron, `name=value` for NeMo."""
    pairs = {}
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word.startswith("--"):
            pairs[word] = following
        elif "=" in word:
            name, _, value = word.partition("=")
            pairs[name] = value
    return pairs


def lengths(arguments):
    """Return each option that sets how long the program trains, in its own unit."""
    return {name: value for name, value in given(arguments).items() if name in LENGTH_OPTIONS}


def expected(phase, option):
    """Return the planned length in the unit that an option uses."""
    in_steps = option in ("--train-iters", "trainer.max_steps")
    return str(phase.duration.iterations if in_steps else phase.duration.samples)


@pytest.mark.parametrize("unit", LENGTHS)
@pytest.mark.parametrize("framework", OF_EACH_FRAMEWORK)
def test_a_length_in_each_unit_is_rendered_word_for_word(framework, unit):
    phase, arguments = length_arguments(framework, unit)
    assert arguments == json.loads(length_file(framework, unit).read_text(encoding="utf-8"))
    assert lengths(arguments) == {option: expected(phase, option) for option in lengths(arguments)}
    assert len(lengths(arguments)) == 1


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", [name for name in NAMES if name != REFUSED])
def test_every_rendered_command_has_exactly_one_length(name, phase):
    settings, spec, job = rendered(name, phase)
    found = lengths(job.arguments)
    assert list(found.values()) == [expected(spec, option) for option in found]
    assert len(found) == 1
    # Megatron-DeepSpeed ends when it reaches either its samples or its tokens, which are the same
    # length.
    tokens = given(job.arguments).get("--train-tokens")
    counted_in_tokens = phase == "04-training" and settings.run.training.tokens
    assert tokens == (str(settings.run.training.tokens) if counted_in_tokens else None)


def test_a_length_in_samples_reaches_megatron_deepspeed():
    _, arguments = length_arguments("megatron-deepspeed", "samples")
    assert lengths(arguments) == {"--train-samples": "262144"}


@pytest.mark.parametrize("table", [megatron.MEGATRON_LM, megatron.MEGATRON_DEEPSPEED, nemo.OPTIONS])
def test_a_framework_has_one_row_for_each_option(table):
    counts = Counter(option.name for option in table)
    assert [name for name, count in counts.items() if count > 1] == []

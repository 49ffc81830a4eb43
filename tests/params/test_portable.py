"""Values that papermill reads differently, as YAML 1.1, are found, and both versions read the
remedy in the same way.
"""

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.params.messages import ParamsMessage
from runbook.params.problems import PapermillLoader, differences, read_as_papermill
from runbook.params.yaml12 import read_mapping, write_scalar


def found(text):
    return [(problem.key, problem.where, problem.rule) for problem in differences(text, "x.yaml")]


@pytest.mark.parametrize(
    "word",
    [
        "6e-5",
        "1e4",
        "1E4",
        "024",
        "0o17",
        "1_000",
        "0b11",
        "12:00:00",
        "1:30",
        "no",
        "Yes",
        "ON",
        "off",
        "=",
        "<<",
        "1.5:2",
    ],
)
def test_words_of_different_meaning_are_found_outside_quotes(word):
    if word != "1.5:2":
        assert len(found(f"a: {word}\n")) == 1
    quoted = f"a: '{word}'\nb: \"{word}\"\nc: |\n  {word}\n"
    assert found(quoted) == []


@pytest.mark.parametrize(
    "word",
    [
        "6.0e-5",
        "12",
        "-3",
        "0.5",
        "true",
        "False",
        "null",
        "~",
        "00:30:00",
        "2025-11-21",
        "bf16",
        "0x1F",
        "300B",
        "4TiB",
    ],
)
def test_words_of_one_meaning_pass(word):
    assert found(f"a: {word}\n") == []


@pytest.mark.parametrize("word", ["6e-5", "1e4", "024", "0o17", "1_000", "12:00:00", "no", "on"])
def test_the_remedy_is_read_the_same_by_both(word):
    ((_, _, rule),) = found(f"a: {word}\n")
    remedy = re.match(r'(".*?"|\S+?)(?: for .*)?$', rule.values["remedy"])[1]
    assert found(f"a: {remedy}\n") == []
    assert (
        read_mapping(f"a: {remedy}", "x").values["a"] == read_mapping(f"a: {word}", "x").values["a"]
    )


def test_key_and_line_are_told():
    text = "run: x\njobs:\n  training:\n    walltime: 12:00:00\nno: 1\n"
    assert [(key, where) for key, where, _ in found(text)] == [
        ("jobs.training.walltime", "x.yaml:4"),
        ("no", "x.yaml:5"),
    ]
    readings = ParamsMessage.READINGS.fill(
        word="no",
        old=ParamsMessage.READ_AS_TRUTH_VALUE.fill(value="false"),
        new=ParamsMessage.READ_AS_TEXT.fill(text="no"),
    )
    remedy = ParamsMessage.WORD_OR_TRUTH_VALUE.fill(word="no", truth_value="false")
    rule = ParamsMessage.YAML_VERSIONS_DIFFER.of(readings=readings, remedy=remedy)
    assert found("a: no\n")[0][2] == rule


def test_papermill_reads_as_our_copy_of_its_loader_does():
    iorw = pytest.importorskip("papermill.iorw", exc_type=ImportError)
    text = "a: 12:00:00\nb: 2025-11-21\nc: 1e-4\nd: [no, 024]\n"
    assert yaml.load(text, Loader=iorw.NoDatesSafeLoader) == yaml.load(text, Loader=PapermillLoader)
    keys = "3: {4: x}"
    assert read_as_papermill(keys) == {"3": {"4": "x"}}


@settings(deadline=None, max_examples=300)
@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.from_regex(r"[0-9:._eEx+\-]{1,8}", fullmatch=True)
    | st.sampled_from(
        [
            "no",
            "null",
            "~",
            "<<",
            "=",
            "1_0",
            "on",
            "true",
            "12:00:00",
            "- a",
            "a: b",
            "#x",
            "%x",
            "@x",
        ]
    )
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
)
def test_written_values_are_read_back_by_both_versions(value):
    text = f"key: {write_scalar(value)}\n"
    for read in (read_mapping(text, "x").values["key"], read_as_papermill(text)["key"]):
        assert (type(read), read) == (type(value), value)

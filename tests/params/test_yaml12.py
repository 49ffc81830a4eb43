"""YAML is read according to the core rules of version 1.2, and every error has a line and a column."""

from pathlib import Path

import pytest
import yaml
from suite.messages import containing, refuses

from runbook.core.errors import ParamsError
from runbook.params.messages import ParamsMessage
from runbook.params.yaml12 import read_file, read_mapping, read_scalar


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("6e-5", 6e-5),
        ("1.e2", 100.0),
        (".5", 0.5),
        ("+12", 12),
        ("-7", -7),
        ("024", 24),
        ("0o17", 15),
        ("0x1F", 31),
        ("-.inf", float("-inf")),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("Off", "Off"),
        ("y", "y"),
        ("12:00:00", "12:00:00"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("2025-11-21", "2025-11-21"),
        ("1e", "1e"),
        ("949,50,1", "949,50,1"),
    ],
)
def test_plain_words_have_their_core_schema_value(text, value):
    read = read_mapping(f"key: {text}\n", "x.yaml").values["key"]
    assert (type(read), read) == (type(value), value)
    assert read_scalar(text) == value


def test_quoted_numbers_stay_text():
    text = "a: '12'\nb: \"1e-4\"\nc: |\n  12\n"
    assert read_mapping(text, "x").values == {
        "a": "12",
        "b": "1e-4",
        "c": "12\n",
    }


def test_merge_key_is_an_ordinary_word():
    text = "<<: {a: 1}\n"
    assert read_mapping(text, "x").values == {"<<": {"a": 1}}


def test_every_value_knows_its_line():
    document = read_mapping(
        "# head\nrun: x\ntraining:\n  smoke: {iterations: 3,\n    tensor: 2}\n", "params/x.yaml"
    )
    assert document.origin(("run",)) == "params/x.yaml:2"
    assert document.origin(("training", "smoke", "tensor")) == "params/x.yaml:5"
    assert document.origin(("training", "nothing")) == "params/x.yaml:3"
    assert document.origin(()) == "params/x.yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml: is empty. Write `key: value` lines, beginning with `run:` in a run file."),
        ("# only a remark\n", "x.yaml: is empty."),
        ("- a\n- b\n", "x.yaml:1:1: is a list, not a mapping of `key: value` lines."),
        ("just words\n", "x.yaml:1:1: is one single value, not a mapping"),
        ("run: x\na: [1\nb: 2\n", "x.yaml:3:2: is not YAML: while parsing a flow sequence"),
        ("run: x\n\tmodel: y\n", "x.yaml:2:1: is not YAML"),
        ("a: b: c\n", "x.yaml:1:5: is not YAML: mapping values are not allowed in this context."),
        (
            "run: x\nmodel: y\nrun: z\n",
            ParamsMessage.KEY_TWICE.fill(where="x.yaml:3:1", key="run", line=1),
        ),
        (
            "t:\n  a: 1\n  a: 2\n",
            ParamsMessage.KEY_TWICE.fill(where="x.yaml:3:3", key="t.a", line=2),
        ),
        (
            "a: &one 1\nb: *one\n",
            ParamsMessage.ALIAS.fill(where="x.yaml:2:4", anchor="one"),
        ),
        ("a: 1\n---\nb: 2\n", "x.yaml:2:1: is not YAML: expected a single document"),
        ("? [a]\n: 3\n", "x.yaml:1:3: a key must be one word, not a list or a mapping."),
        (
            "a: !!binary aGk=\n",
            ParamsMessage.TAG.fill(where="x.yaml:1:4", tag="tag:yaml.org,2002:binary"),
        ),
        ("a: !!int twelve\n", "x.yaml:1:4: is not int: "),
        (
            "a: " + "[" * 100_000,
            ParamsMessage.NESTED_TOO_DEEP.fill(where="x.yaml:1:67", max_depth=64),
        ),
        ("a: x\nb: y\x00\n", "x.yaml:2:5: is not YAML: "),
    ],
)
def test_a_fault_is_told_with_line_and_column(text, message):
    with pytest.raises(ParamsError) as error:
        read_mapping(text, "x.yaml")
    assert str(error.value).startswith(message)


def test_tabs_are_named_as_the_cause():
    with refuses(ParamsError, ParamsMessage.NOT_YAML, hint=containing("tabs")):
        read_mapping("run: x\n\tmodel: y\n", "x.yaml")


def test_a_huge_number_is_refused_and_not_an_accident():
    with refuses(ParamsError, ParamsMessage.NOT_OF_ITS_TYPE, where="x.yaml:1:4", name="int"):
        read_mapping(f"a: {'9' * 5000}\n", "x.yaml")


def test_bytes_that_are_not_utf8_are_located(tmp_path: Path):
    (tmp_path / "x.yaml").write_bytes(b"run: x\nmodel: caf\xe9\n")
    with refuses(
        ParamsError,
        ParamsMessage.NOT_UTF8,
        where="x.yaml",
        line=2,
        column=11,
        byte=0xE9,
    ):
        read_file(tmp_path / "x.yaml", "x.yaml")


def test_a_byte_order_mark_is_passed_over(tmp_path: Path):
    (tmp_path / "x.yaml").write_bytes(b"\xef\xbb\xbfrun: x\n")
    assert read_file(tmp_path / "x.yaml", "x.yaml").values == {"run": "x"}


def test_missing_folder_and_oversized_files_are_told_apart(tmp_path: Path):
    with refuses(ParamsError, ParamsMessage.NO_SUCH_FILE, where="gone.yaml"):
        read_file(tmp_path / "gone.yaml", "gone.yaml")
    with refuses(ParamsError, ParamsMessage.NOT_A_FILE, where="folder"):
        read_file(tmp_path, "folder")
    with (tmp_path / "big.bin").open("wb") as big:
        big.truncate(1 << 21)
    with refuses(
        ParamsError,
        ParamsMessage.FILE_TOO_LARGE,
        size=2097152,
        limit=1048576,
    ):
        read_file(tmp_path / "big.bin", "big.bin")


def test_the_slow_and_the_fast_parser_give_the_same_values(monkeypatch):
    text = "a: no\nb: {c: 1e-4, d: [12:00:00, 024]}\n"

    class Slow(yaml.SafeLoader):
        yaml_implicit_resolvers = __import__(
            "runbook.params.yaml12", fromlist=["x"]
        ).CoreLoader.yaml_implicit_resolvers

    fast = read_mapping(text, "x")
    monkeypatch.setattr("runbook.params.yaml12.CoreLoader", Slow)
    slow = read_mapping(text, "x")
    assert (fast.values, fast.lines) == (slow.values, slow.lines)

"""Unusable data is refused before the first step, with file, value and rule."""

import itertools
import os
from pathlib import Path

import numpy
import pytest
from suite.messages import containing, says

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import parse
from runbook.training import token_files
from runbook.training.messages import TrainingMessage

from . import specs


@pytest.fixture
def prefix(tmp_path):
    specs.write_corpus(tmp_path / "data" / "corpus_text_document")
    return tmp_path / "data" / "corpus_text_document"


def refused(root, **options):
    with pytest.raises(RefusedError) as caught:
        token_files.check_token_files(parse(specs.spec(**options), root))
    return str(caught.value)


def test_a_good_pair_passes(prefix, tmp_path):
    token_files.check_token_files(
        parse(specs.spec(evaluation={"interval": 2, "iterations": 1}), tmp_path)
    )
    assert token_files.open_pair(prefix).tokens == 40 * 201


def test_mock_data_needs_no_file(tmp_path):
    token_files.check_token_files(parse(specs.spec(mock=True), tmp_path))


def test_no_file_named(tmp_path):
    assert says(refused(tmp_path, data={"train": []}), TrainingMessage.NO_TRAINING_FILE)


@pytest.mark.parametrize("end", ["idx", "bin"])
def test_a_missing_file(end, prefix, tmp_path):
    Path(f"{prefix}.{end}").unlink()
    assert says(
        refused(tmp_path), TrainingMessage.TOKEN_FILE_MISSING, path=containing(f"{prefix}.{end}")
    )


def test_a_token_outside_the_vocabulary(prefix, tmp_path):
    specs.write_tokens(prefix, [[1] * 500, [2] * 30 + [250] + [3] * 500] * 20)
    assert says(
        refused(tmp_path),
        TrainingMessage.TOKEN_OUTSIDE_VOCABULARY,
        prefix=containing(prefix),
        token=250,
        vocabulary=250,
        highest=249,
    )


def test_a_negative_token(prefix, tmp_path):
    specs.write_tokens(prefix, [[1] * 500 + [-1]] * 20, "<i4", 4)
    assert says(
        (said := refused(tmp_path)), TrainingMessage.TOKEN_OUTSIDE_VOCABULARY, token=-1
    ) and says(said, TrainingMessage.TOKEN_OUTSIDE_VOCABULARY, position=500, tokens=10020)


def test_int32_tokens_are_read_as_such(prefix, tmp_path):
    specs.write_tokens(prefix, [[1, 70_000] * 200] * 20, "<i4", 4)
    assert says(refused(tmp_path), TrainingMessage.TOKEN_OUTSIDE_VOCABULARY, token=70000)


def test_tokens_that_are_no_ids(prefix, tmp_path):
    specs.write_tokens(prefix, [[1] * 500] * 20, "<f8", 6)
    assert says(
        refused(tmp_path),
        TrainingMessage.TOKENS_OF_ANOTHER_TYPE,
        index=containing(f"{prefix}.idx"),
        name="float64",
    )


def test_an_index_of_something_else(prefix, tmp_path):
    Path(f"{prefix}.idx").write_bytes(b"PK\x03\x04" * 20)
    assert says(
        refused(tmp_path),
        TrainingMessage.NOT_AN_INDEX,
        index=containing(f"{prefix}.idx"),
        magic=containing("b'PK"),
    )


def test_an_empty_index(prefix, tmp_path):
    Path(f"{prefix}.idx").write_bytes(b"")
    assert says(refused(tmp_path), TrainingMessage.INDEX_TOO_SHORT, bytes_there=0, size=34)


def test_an_index_cut_short(prefix, tmp_path):
    size = Path(f"{prefix}.idx").stat().st_size
    os.truncate(f"{prefix}.idx", size - 8)
    message = refused(tmp_path)
    assert says(
        message,
        TrainingMessage.INDEX_CUT_SHORT,
        bytes_there=size - 8,
        sequences=40,
        documents=40,
        expected=size,
    )


@pytest.mark.parametrize(
    ("kind", "at", "value", "message", "values"),
    [
        ("<i4", 34, -402, TrainingMessage.SEQUENCE_PLACE, {"sequence": 0, "tokens": -402}),
        (
            "<i8",
            34 + 160 + 7 * 8,
            -4000,
            TrainingMessage.SEQUENCE_PLACE,
            {"sequence": 7, "tokens": 201, "byte": -4000},
        ),
        ("<i8", 34 + 160 + 39 * 8, 0, TrainingMessage.SEQUENCE_PLACE, {"right_byte": 15678}),
        ("<i8", 34 + 480 + 40 * 8, 99, TrainingMessage.DOCUMENTS_OUT_OF_ORDER, {"sequences": 40}),
        ("<i8", 34 + 480 + 3 * 8, 30, TrainingMessage.DOCUMENTS_OUT_OF_ORDER, {"sequences": 40}),
    ],
)
def test_an_index_of_right_size_with_wrong_numbers(
    kind, at, value, message, values, prefix, tmp_path
):
    """With such an index, megatron-core would train on the wrong text, or fail at some later step."""
    index = Path(f"{prefix}.idx")
    content = bytearray(index.read_bytes())
    number = numpy.array([value], kind).tobytes()
    if kind == "<i4":  # the sum of the lengths still matches the .bin
        number += numpy.array([2 * 201 - value], kind).tobytes()
    content[at : at + len(number)] = number
    index.write_bytes(content)
    assert says(refused(tmp_path), message, index=containing(index), **values)


def test_tokens_cut_short(prefix, tmp_path):
    os.truncate(f"{prefix}.bin", 1000)
    assert says(
        refused(tmp_path),
        TrainingMessage.BIN_SIZE,
        binary=containing(f"{prefix}.bin"),
        bytes_there=1000,
        tokens=8040,
        itemsize=2,
        bytes_expected=16080,
    )


def test_too_little_text_for_one_sample(prefix, tmp_path):
    specs.write_tokens(prefix, [[1] * 16] * 2)
    message = refused(tmp_path)
    assert says(
        message,
        TrainingMessage.SHARE_TOO_SHORT,
        sequences=2,
        use="training",
        split="949,50,1",
        documents=2,
        tokens=32,
    )
    assert says(message, TrainingMessage.SHARE_TOO_SHORT, sample_tokens=33)


def test_a_validation_share_without_documents(prefix, tmp_path):
    message = refused(
        tmp_path, evaluation={"interval": 2, "iterations": 1}, data={"split": "1000,0,0"}
    )
    assert says(
        message,
        TrainingMessage.SHARE_TOO_SHORT,
        use="validation",
        split="1000,0,0",
        documents=0,
        tokens=0,
    )
    assert says(message, TrainingMessage.SHARE_TOO_SHORT, remedy="evaluation.interval 0")


@pytest.mark.parametrize("split", ["", "a,b", "1,2,3,4", "-1,1,1", "0,0,0", "nan,1,1", "inf,1,1"])
def test_a_split_that_is_none(split, prefix, tmp_path):
    message = refused(tmp_path, data={"split": split})
    assert says(message, TrainingMessage.NOT_A_SPLIT, split=split)


def test_held_out_files_are_looked_at_too(prefix, tmp_path):
    held_out = {"validation": [{"weight": 1.0, "prefix": "data/missing"}]}
    assert says(
        refused(tmp_path, data=held_out, evaluation={"interval": 2, "iterations": 1}),
        TrainingMessage.TOKEN_FILE_MISSING,
        path=tmp_path / "data" / "missing.idx",
    )
    only_test = {"test": [{"weight": 1.0, "prefix": "data/missing"}]}
    assert says(
        refused(tmp_path, data=only_test, evaluation={"interval": 2, "iterations": 1}),
        TrainingMessage.NO_VALIDATION_FILE,
    )


def test_a_long_file_is_scanned_in_blocks_over_its_whole_length(tmp_path):
    blocks = list(token_files._blocks(10 * 2**24, scanned=2**25))
    assert [start for start, _ in blocks] == [0, 9 * 2**24]
    for size in (2**25 + 2, 7 * 2**24 + 6):
        blocks = list(token_files._blocks(size, scanned=2**26))
        assert all(start % 4 == 0 for start, _ in blocks)
        assert blocks[0][0] == 0 and sum(blocks[-1]) == size
        if size < 2**26:
            assert all(
                start + length >= later
                for (start, length), (later, _) in itertools.pairwise(blocks)
            )
    ids = numpy.ones(2**24 + 10, "<u2")
    ids[-1] = 999
    specs.write_tokens(tmp_path / "long", [ids])
    assert token_files.highest_token(token_files.open_pair(tmp_path / "long"), 2**30)[0] == 999


def test_weights_and_files_of_a_blend(prefix, tmp_path):
    """All wrong weights and duplicate files are reported together."""
    sources = [
        {"weight": weight, "prefix": name}
        for weight, name in ((0.5, "a"), (-0.5, "b"), (0.0, "c"), (1.0, "a"))
    ]
    message = refused(
        tmp_path, data={"train": sources, "validation": [{"weight": float("nan"), "prefix": "d"}]}
    )
    weights = [
        ("train", 1, "b", -0.5),
        ("train", 2, "c", 0.0),
        ("validation", 0, "d", float("nan")),
    ]
    for use, index, name, weight in weights:
        values = {"use": use, "index": index, "prefix": name, "weight": weight}
        assert says(message, TrainingMessage.WEIGHT_NOT_POSITIVE, **values)
    assert says(
        message,
        TrainingMessage.SAME_FILE_IN_BLEND,
        use="train",
        index=3,
        prefix="a",
        earlier="data.train[0]",
    )

"""The index file: Megatron and we can read it, and it is never trusted."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from suite.messages import containing, refuses

from runbook.core.errors import DataError
from runbook.tokens.indexed_files import IndexedReader
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.verification import verify

from .reference import EDGE_TEXTS, EOD, encoded, expected, json_lines


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    source = tmp_path / "edge.jsonl"
    source.write_bytes(json_lines(EDGE_TEXTS))
    prepare([source], tmp_path / "out")
    return tmp_path / "out"


def files(prefix: Path) -> tuple[Path, Path]:
    base = str(prefix) + "_text_document"
    return Path(base + ".bin"), Path(base + ".idx")


def test_documents_are_read_back(prefix: Path) -> None:
    reader = IndexedReader(*files(prefix))
    assert reader.num_documents == len(EDGE_TEXTS)
    for number, text in enumerate(EDGE_TEXTS):
        ids = encoded(text, False)
        assert reader.document(number).tolist() == ([*ids, EOD] if ids else [])


@pytest.mark.training
@pytest.mark.filterwarnings("ignore")  # torch and megatron-core warn when imported
def test_megatron_reads_the_same(prefix: Path) -> None:
    """Read the files with the megatron-core reader, as the trainer does."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    theirs = IndexedDataset(str(prefix) + "_text_document")
    ours = IndexedReader(*files(prefix))
    assert len(theirs) == ours.num_sequences
    assert theirs.document_indices.tolist() == ours.document_index.tolist()
    for number in range(len(theirs)):
        assert theirs[number].tolist() == ours.sequence(number).tolist()


@pytest.mark.training
@pytest.mark.filterwarnings("ignore")  # torch and megatron-core warn when imported
def test_megatrons_writer_gives_the_same_bytes(tmp_path: Path, prefix: Path) -> None:
    """Write the files with the megatron-core builder, called as in preprocess_data.py."""
    import numpy as np
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    for text in EDGE_TEXTS:
        ids = encoded(text, False)
        builder.add_document(
            torch.IntTensor([*ids, EOD] if ids else []), [len(ids) + 1] if ids else []
        )
    builder.finalize(str(tmp_path / "theirs.idx"))
    for ours, ending in zip(files(prefix), (".bin", ".idx"), strict=True):
        assert (tmp_path / f"theirs{ending}").read_bytes() == ours.read_bytes()


def test_questions_outside_the_file(prefix: Path) -> None:
    reader = IndexedReader(*files(prefix))
    with refuses(DataError, TokenMessage.NO_SUCH_DOCUMENT, num_documents=19, number=20):
        reader.document(20)
    with refuses(DataError, TokenMessage.NO_SUCH_SEQUENCE, num_sequences=15, number=-1):
        reader.sequence(-1)


HEADS = {
    "empty": (
        b"",
        TokenMessage.INDEX_TOO_SHORT.of(
            size=0,
            header_size=34,
            remedy=containing("It is not one of Megatron's .idx files"),
        ),
    ),
    "text": (
        b"<html>" + b"x" * 60,
        TokenMessage.NOT_AN_INDEX.of(
            magic=containing("<html>xxx"), index_magic=containing("MMIDIDX")
        ),
    ),
    "version": (
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 2, 8, 0, 1) + bytes(8),
        TokenMessage.INDEX_VERSION.of(version=2, index_version=1),
    ),
    "float": (
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 6, 0, 1) + bytes(8),
        TokenMessage.TOKEN_TYPE.of(code=6),
    ),
    "huge": (
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 2**62, 2**62),
        TokenMessage.INDEX_SIZE.of(sequences=4611686018427387904),
    ),
    "no documents": (
        struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 0, 0),
        TokenMessage.INDEX_SIZE.of(entries=0),
    ),
}


@pytest.mark.parametrize("kind", HEADS)
def test_garbage_for_a_header(prefix: Path, kind: str) -> None:
    content, message = HEADS[kind]
    files(prefix)[1].write_bytes(content)
    with refuses(DataError, message):
        IndexedReader(*files(prefix))
    checks = verify(prefix)
    assert [(check.name, check.verdict) for check in checks] == [("header", "fail")]


def test_missing_files(prefix: Path) -> None:
    files(prefix)[0].unlink()
    with refuses(
        DataError, TokenMessage.TOKEN_FILE_UNUSABLE, path=containing(".bin"), reason="is missing"
    ):
        IndexedReader(*files(prefix))


GOOD_BIN, GOOD_IDX = expected(["one two three", "", "four"])


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=len(GOOD_IDX) + 20), st.integers(0, len(GOOD_IDX)), st.booleans())
@example(b"", 20, False)
def test_any_garbage_is_a_data_error(
    tmp_path: Path, noise: bytes, at: int, keep_length: bool
) -> None:
    """A truncated or patched index gives a DataError, or a reader that stays inside the file."""
    content = GOOD_IDX[:at] + noise + (GOOD_IDX[at + len(noise) :] if keep_length else b"")
    (tmp_path / "x_text_document.bin").write_bytes(GOOD_BIN)
    (tmp_path / "x_text_document.idx").write_bytes(content)
    checks = verify(tmp_path / "x")
    assert content == GOOD_IDX or any(check.verdict in ("fail", "warn") for check in checks)
    try:
        reader = IndexedReader(tmp_path / "x_text_document.bin", tmp_path / "x_text_document.idx")
        for number in range(min(reader.num_sequences, 10)):
            reader.sequence(number)
    except DataError:
        pass

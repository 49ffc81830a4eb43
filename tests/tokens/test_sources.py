"""The catalogue's files are found and compared, and wrong files are reported."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from suite.messages import assert_about, refuses

from runbook.core.errors import DataError
from runbook.params.schema.entries import Dataset, FileGroup, SourceFile
from runbook.tokens.messages import TokenMessage
from runbook.tokens.sources.dataset_files import (
    dataset_files,
    dataset_folder,
    file_fault,
    token_prefixes,
)


def dataset(**changed: object) -> Dataset:
    return Dataset(
        **(
            {
                "title": "Tests",
                "kind": "local",
                "folder": "texts",
                "licence": "ours",
                "source": "here",
            }
            | changed
        )
    )


def test_own_folder_wins_over_the_catalogue(tmp_path: Path) -> None:
    assert dataset_folder(dataset(), project=tmp_path) == tmp_path / "texts"
    assert dataset_folder(dataset(), project=tmp_path, folder="/elsewhere") == Path("/elsewhere")
    nowhere = dataset(folder="")
    with refuses(DataError, TokenMessage.DATASET_WITHOUT_FOLDER, title=nowhere.title):
        dataset_folder(nowhere, project=tmp_path)


def test_pattern_chooses(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("a.jsonl", "b.txt"):
        (tmp_path / "texts" / name).write_text("{}")
    assert [path.name for path in dataset_files(dataset(pattern="*.txt"), project=tmp_path)] == [
        "b.txt"
    ]


def test_every_wrong_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / "texts" / name).write_text("text")
    right = hashlib.sha256(b"text").hexdigest()
    listed = [
        SourceFile(path="a.txt", bytes=4, sha256=right),
        SourceFile(path="b.txt", bytes=5),
        SourceFile(path="c.txt", bytes=3),
        SourceFile(path="d.txt"),
    ]
    with pytest.raises(DataError) as caught:
        dataset_files(dataset(files=listed), project=tmp_path)
    faults = {
        "b.txt": TokenMessage.FILE_SIZE.fill(size=4, expected=5),
        "c.txt": TokenMessage.FILE_SIZE.fill(size=4, expected=3),
        "d.txt": TokenMessage.FILE_MISSING.fill(),
    }
    assert_about(
        caught.value,
        TokenMessage.DATASET_INCOMPLETE,
        number_of_wrong=3,
        number_of_listed=4,
        title="Tests",
        home=tmp_path / "texts",
        wrong="\n  ".join(
            TokenMessage.FILE_FAULT.fill(file=name, fault=fault) for name, fault in faults.items()
        ),
    )
    wrong_sum = SourceFile(path="c.txt", sha256="0" * 64)
    assert file_fault(tmp_path / "texts", listed[0]) == ""
    assert (
        file_fault(tmp_path / "texts", wrong_sum) == f"c.txt: sha256 {right}, {'0' * 64} expected"
    )
    assert dataset_files(dataset(files=listed[:1]), project=tmp_path) == [
        tmp_path / "texts" / "a.txt"
    ]


def test_list_that_leaves_the_folder(tmp_path: Path) -> None:
    with refuses(DataError, TokenMessage.LISTED_FILE_OUTSIDE, name="../a.txt"):
        dataset_files(dataset(files=[SourceFile(path="../a.txt")]), project=tmp_path)


def test_mock_has_no_files(tmp_path: Path) -> None:
    with refuses(DataError, TokenMessage.NOTHING_TO_TOKENIZE, reason="has no text"):
        dataset_files(dataset(kind="mock"), project=tmp_path)


def test_numbered_files_are_promised_too(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for number in (0, 1, 3):
        (tmp_path / "texts" / f"chunk_{number}.jsonl").write_text("{}")
    numbered = dataset(groups=[FileGroup(path="chunk_{number}.jsonl", last=3)])
    with refuses(
        DataError,
        TokenMessage.DATASET_INCOMPLETE,
        number_of_wrong=1,
        number_of_listed=4,
        wrong="chunk_2.jsonl: missing",
    ):
        dataset_files(numbered, project=tmp_path)


def test_token_files_come_in_pairs(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    ready = dataset(kind="tokenized")
    with refuses(DataError, TokenMessage.NO_TOKEN_FILES, home=folder):
        token_prefixes(ready, project=tmp_path)
    for number in (10, 9):
        (folder / f"my-gpt3_{number}_text_document.bin").write_bytes(b"xx")
        (folder / f"my-gpt3_{number}_text_document.idx").write_bytes(b"xx")
    found = token_prefixes(ready, project=tmp_path)
    assert [prefix.name for prefix in found] == [
        "my-gpt3_9_text_document",
        "my-gpt3_10_text_document",
    ]
    pair = folder / "my-gpt3_9_text_document"
    assert token_prefixes(ready, project=tmp_path, folder=str(pair)) == [pair]
    (folder / "my-gpt3_10_text_document.idx").unlink()
    with refuses(
        DataError,
        TokenMessage.TOKEN_FILES_WITHOUT_INDEX,
        number_of_single=1,
        number_of_bins=2,
        single="my-gpt3_10_text_document",
    ):
        token_prefixes(ready, project=tmp_path)
    with refuses(DataError, TokenMessage.NOTHING_TO_TOKENIZE, reason="is tokens already"):
        dataset_files(ready, project=tmp_path)

"""The documents' way gives the same tokens, and loses nothing on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from backports import zstd
from click.testing import CliRunner

from runbook.cli.data import data
from runbook.core.errors import DataError
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.three_steps import concatenate, extract

from .reference import EDGE_TEXTS, expected, json_lines, made


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    folder = tmp_path / "packed"
    folder.mkdir()
    for number in range(11):
        texts = [f"file {number}", *EDGE_TEXTS]
        lines = b"".join(
            json_lines([text], meta={"redpajama_set_name": "RedPajamaBook" if place % 2 else "RedPajamaC4"})
            for place, text in enumerate(texts)
        )
        lines = lines if number % 2 else lines[:-1]  # some files lack their last newline
        (folder / f"example_train_{number}.jsonl.zst").write_bytes(zstd.compress(lines))
    return folder


@pytest.mark.parametrize("workers", [1, 2])
def test_three_steps_give_the_tokens_of_one(tmp_path: Path, packed: Path, workers: int) -> None:
    prepare([packed], tmp_path / "one")
    files = extract([packed], tmp_path / "extracted", workers=workers)
    assert len(files) == 11
    chunks = concatenate([tmp_path / "extracted"], tmp_path / "chunks", files_per_chunk=4, workers=workers)
    assert [path.name for path in chunks] == [f"train_chunk_{number}.jsonl" for number in range(3)]
    prepare(chunks, tmp_path / "three")
    assert made(tmp_path / "three") == made(tmp_path / "one")


def test_dropped_source(tmp_path: Path, packed: Path) -> None:
    extract([packed], tmp_path / "extracted", drop_sources=["RedPajamaBook"])
    prepare([tmp_path / "extracted"], tmp_path / "out")
    kept = [text for number in range(11) for text in [f"file {number}", *EDGE_TEXTS][::2]]
    assert made(tmp_path / "out") == expected(kept)


def test_second_run_makes_only_what_is_missing(tmp_path: Path, packed: Path) -> None:
    files = extract([packed], tmp_path / "extracted")
    before = {path: path.stat().st_mtime_ns for path in files}
    files[3].unlink()
    (tmp_path / "extracted" / (files[5].name + ".from")).write_text("another file\n")
    extract([packed], tmp_path / "extracted")
    changed = [path for path in files if path.stat().st_mtime_ns != before[path]]
    assert changed == [files[3], files[5]]


def test_truncated_file_has_no_result(tmp_path: Path, packed: Path) -> None:
    path = packed / "example_train_7.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"example_train_7\.jsonl\.zst: it is cut off"):
        extract([packed], tmp_path / "extracted")
    assert not (tmp_path / "extracted" / "example_train_7.jsonl").exists()


def test_chunk_of_another_run_is_noticed(tmp_path: Path, packed: Path) -> None:
    extract([packed], tmp_path / "extracted")
    concatenate([tmp_path / "extracted"], tmp_path / "chunks", files_per_chunk=3)
    with pytest.raises(DataError, match=r"holds train_chunk_2\.jsonl, but 11 files of 6 a chunk give 2 chunks"):
        concatenate([tmp_path / "extracted"], tmp_path / "chunks", files_per_chunk=6)


def test_what_cannot_be_extracted(tmp_path: Path, packed: Path) -> None:
    (packed / "sub").mkdir()
    (packed / "sub" / "example_train_1.jsonl").write_bytes(json_lines(["x"]))
    with pytest.raises(DataError, match=r"several inputs would become the same file: example_train_1\.jsonl"):
        extract([packed], tmp_path / "extracted")
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(DataError, match=r"a\.txt is no file of JSON lines"):
        extract([tmp_path / "a.txt"], tmp_path / "extracted")
    (tmp_path / "b.jsonl").write_bytes(json_lines(["x"]))
    with pytest.raises(DataError, match="names no source that could be dropped; give --source-key"):
        extract([tmp_path / "b.jsonl"], tmp_path / "extracted", drop_sources=["a"])


def test_commands(tmp_path: Path, packed: Path) -> None:
    first = CliRunner().invoke(data, ["extract", str(packed), "--out", str(tmp_path / "extracted")])
    assert (first.exit_code, first.stdout) == (0, f"11 files in {tmp_path / 'extracted'}\n")
    words = ["concatenate", str(tmp_path / "extracted"), "--out", str(tmp_path / "chunks"), "--files-per-chunk", "4"]
    second = CliRunner().invoke(data, words)
    assert (second.exit_code, second.stdout) == (0, f"3 chunks in {tmp_path / 'chunks'}\n")
    assert "concatenate: 3/3 files" in second.stderr

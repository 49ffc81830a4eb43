"""The .bin and .idx files are byte-identical to those from an independent, slow writer."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest
from backports import zstd
from suite.messages import containing, refuses

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.pipeline.tokenize_options import TokenizeOptions, unknown_sources
from runbook.tokens.verification import verify

from .reference import EDGE_TEXTS, expected, json_lines, made


@pytest.mark.parametrize("append_eod", [True, False])
@pytest.mark.parametrize("special_tokens", [True, False])
def test_edge_texts_equal_the_reference(
    tmp_path: Path, append_eod: bool, special_tokens: bool
) -> None:
    source = tmp_path / "edge.jsonl"
    source.write_bytes(json_lines(EDGE_TEXTS))
    options = TokenizeOptions(append_eod=append_eod, special_tokens=special_tokens)
    manifest = prepare([source], tmp_path / "out", options)
    assert made(tmp_path / "out") == expected(
        EDGE_TEXTS, append_eod=append_eod, special_tokens=special_tokens
    )
    assert manifest.documents == len(EDGE_TEXTS)
    assert manifest.empty == EDGE_TEXTS.count("")


@pytest.mark.parametrize("ending", ["", ".zst", ".gz", ".xz"])
def test_compression_changes_nothing(tmp_path: Path, ending: str) -> None:
    pack = {"": bytes, ".zst": zstd.compress, ".gz": gzip.compress, ".xz": lzma.compress}[ending]
    source = tmp_path / f"edge.jsonl{ending}"
    source.write_bytes(pack(json_lines(EDGE_TEXTS)))
    prepare([source], tmp_path / "out")
    assert made(tmp_path / "out") == expected(EDGE_TEXTS)


def test_several_zstd_frames_in_a_file_are_all_read(tmp_path: Path) -> None:
    source = tmp_path / "two.jsonl.zst"
    half = len(EDGE_TEXTS) // 2
    source.write_bytes(
        zstd.compress(json_lines(EDGE_TEXTS[:half])) + zstd.compress(json_lines(EDGE_TEXTS[half:]))
    )
    prepare([source], tmp_path / "out")
    assert made(tmp_path / "out") == expected(EDGE_TEXTS)


@pytest.mark.parametrize("shard_bytes", [1, 700, 10_000, 10_000_000])
def test_cuts_into_shards_change_nothing(
    tmp_path: Path, corpus_file: Path, many_texts: list[str], shard_bytes: int
) -> None:
    if shard_bytes == 1:  # one shard per byte, so most shards contain no line
        many_texts = many_texts[1:6]
        corpus_file.write_bytes(json_lines(many_texts))
    prepare([corpus_file], tmp_path / "out", TokenizeOptions(shard_bytes=shard_bytes, workers=1))
    assert made(tmp_path / "out") == expected(many_texts)


def test_workers_change_nothing(tmp_path: Path, corpus_file: Path, many_texts: list[str]) -> None:
    options = TokenizeOptions(workers=3, shard_bytes=20_000)
    manifest = prepare([corpus_file], tmp_path / "out", options)
    assert manifest.workers == 3
    assert len(manifest.shards) > 20
    assert made(tmp_path / "out") == expected(many_texts)
    assert [check.name for check in verify(tmp_path / "out") if check.verdict != "pass"] == []


def test_the_slow_encoder_gives_the_same(tmp_path: Path) -> None:
    source = tmp_path / "edge.jsonl"
    source.write_bytes(json_lines(EDGE_TEXTS))
    manifest = prepare([source], tmp_path / "out", TokenizeOptions(encoder="tokenizers"))
    assert manifest.tokenizer["encoder"].startswith("tokenizers ")
    assert made(tmp_path / "out") == expected(EDGE_TEXTS)


def test_a_long_text_without_a_space(tmp_path: Path) -> None:
    texts = [
        "ab" * 100_000 + " and words" * 450_000,
        "after",
    ]  # longer than a block, so it is assembled from pieces
    source = tmp_path / "long.jsonl"
    source.write_bytes(json_lines(texts))
    prepare([source], tmp_path / "out")
    assert made(tmp_path / "out") == expected(texts)


@pytest.mark.parametrize(
    "content",
    [
        b'{"text":"a"}\n{"text":"b"}',
        b'{"text":"a"}\r\n\r\n  \n{"text":"b"}\r\n',
        b'\n\n{"text":"a"}\n{"text":"b"}\n\n',
        b'\xef\xbb\xbf{"text":"a"}\n{"text":"b"}\n',
        b'{"meta":{"x":[1,2,{"text":"no"}]},"text":"a","n":NaN}\n{"n":1e400,"text":"b"}\n',
        b'{"text":"first","text":"a"}\n{"te\\u0078t":"b"}\n',
    ],
    ids=[
        "no last newline",
        "blank lines, CRLF",
        "blank ends",
        "byte order mark",
        "other keys, NaN",
        "key twice",
    ],
)
def test_ways_to_write_the_same_two_records(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "two.jsonl"
    source.write_bytes(content)
    prepare([source], tmp_path / "out")
    assert made(tmp_path / "out") == expected(["a", "b"])


def test_text_files_are_one_document_each_in_natural_order(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    texts = {number: f"Chapter {number}\n\nIt was late.\n" for number in (10, 9, 2)}
    for number, text in texts.items():
        (folder / f"chunk_{number}.txt").write_text(text)
    (folder / "notes.md").write_text("not read")
    prepare([folder], tmp_path / "out")
    assert made(tmp_path / "out") == expected([texts[number] for number in (2, 9, 10)])


def test_dropping_a_source_that_no_record_names_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(["one"]))
    with refuses(DataError, TokenMessage.NO_SOURCE_NAMED, first=containing("in.jsonl")):
        prepare([source], tmp_path / "out", TokenizeOptions(drop_sources=("book",)))


def test_sources_are_counted_and_chosen(tmp_path: Path) -> None:
    source = tmp_path / "mixed.jsonl"
    records = [("web", "one"), ("book", "two words"), ("web", "three")]
    source.write_bytes(
        b"".join(json_lines([text], meta={"source": name}) for name, text in records)
    )
    manifest = prepare([source], tmp_path / "all")
    assert manifest.options["source_key"] == "meta.source"
    assert manifest.sources["web"] == {"documents": 2, "text_bytes": 8, "tokens": 4}
    assert manifest.sources["book"]["documents"] == 1
    chosen = prepare([source], tmp_path / "some", TokenizeOptions(drop_sources=("book",)))
    assert made(tmp_path / "some") == expected(["one", "three"])
    assert (chosen.dropped, chosen.dropped_sources) == (1, {"book": 1})
    kept = prepare([source], tmp_path / "kept", TokenizeOptions(keep_sources=("book",)))
    assert made(tmp_path / "kept") == expected(["two words"])
    assert (kept.dropped, kept.dropped_sources) == (2, {"web": 2})


def test_a_source_is_kept_or_dropped_but_not_both() -> None:
    with refuses(DataError, TokenMessage.SOURCE_KEPT_AND_DROPPED, both="a"):
        TokenizeOptions(keep_sources=("a", "b"), drop_sources=("a",))


def test_a_chosen_source_that_no_record_names_is_warned_of(tmp_path: Path) -> None:
    first = tmp_path / "first.jsonl"
    second = tmp_path / "second.jsonl"
    first.write_bytes(json_lines(["one"], meta={"source": "web"}))
    second.write_bytes(json_lines(["two"], meta={"source": "book"}))
    options = TokenizeOptions(drop_sources=("book", "boks"), workers=1)
    both = prepare([first, second], tmp_path / "out", options)
    assert unknown_sources([both]) == ["boks"]
    # With several file pairs, a source counts as seen if any pair contains it.
    web = prepare([first], tmp_path / "web", options)
    assert unknown_sources([web]) == ["book", "boks"]
    assert unknown_sources([web, both]) == ["boks"]


def test_without_a_choice_finished_work_keeps_the_fingerprint_it_always_had() -> None:
    assert TokenizeOptions().choices().keys() == {
        "tokenizer",
        "text_key",
        "append_eod",
        "eod_token",
        "special_tokens",
        "bad_records",
        "source_key",
        "drop_sources",
    }
    changed = TokenizeOptions(keep_sources=("a",), fix_text="ftfy", max_record_bytes=1000)
    assert {"keep_sources", "fix_text", "max_record_bytes"} <= changed.choices().keys()


def test_other_key_for_the_text(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'{"content":"a","text":"no"}\n')
    prepare([source], tmp_path / "out", TokenizeOptions(text_key="content"))
    assert made(tmp_path / "out") == expected(["a"])


def test_the_shipped_corpus_has_the_promised_counts(tmp_path: Path) -> None:
    from runbook.params.catalogues import read_datasets
    from runbook.tokens.sources.dataset_files import dataset_files

    dataset = read_datasets(Path(__file__).parents[2]).get("corpus")
    files = dataset_files(dataset, project=tmp_path)
    manifest = prepare(files, tmp_path / "corpus", TokenizeOptions(workers=1))
    assert manifest.documents == dataset.documents
    assert manifest.text_bytes == dataset.text_bytes
    assert manifest.text_tokens == dataset.tokens
    assert (
        manifest.files["bin"]["sha256"]
        == "b2fe43d83f6e80a955ea5859a3396bc6ac180f379bf8e68bbaba9aa43f8fb90f"
    )
    assert (
        manifest.files["idx"]["sha256"]
        == "2be5ad35b2f5b27c776649ed7bd66a9601f2a96f54cdd73f7cd70a0a32786bf4"
    )

"""verify() finds every later change, and reports which rule it breaks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from suite.messages import says

from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.verification import AGAIN, ONE_SHORT, TokenCheck, sample_documents, verify

from .reference import EDGE_TEXTS, json_lines


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    source = tmp_path / "edge.jsonl"
    source.write_bytes(json_lines(EDGE_TEXTS))
    prepare([source], tmp_path / "out")
    return tmp_path / "out"


def part(prefix: Path, ending: str) -> Path:
    return prefix.with_name(f"{prefix.name}_text_document.{ending}")


def failed(prefix: Path) -> list[str]:
    return [check.name for check in verify(prefix) if check.verdict == "fail"]


def test_whole_files_pass_every_check(prefix: Path) -> None:
    assert [(check.name, check.verdict) for check in verify(prefix)] == [
        (name, "pass") for name in TokenCheck if name is not TokenCheck.MANIFEST
    ]


def test_one_flipped_token(prefix: Path) -> None:
    content = bytearray(part(prefix, "bin").read_bytes())
    content[0] ^= 1
    part(prefix, "bin").write_bytes(content)
    assert failed(prefix) == [TokenCheck.BIN_CHECKSUM]


def test_token_outside_the_vocabulary_and_lost_end(prefix: Path) -> None:
    tokens = np.fromfile(part(prefix, "bin"), dtype="<u2")
    tokens[-1] = 60_000
    tokens.tofile(part(prefix, "bin"))
    assert failed(prefix) == [
        TokenCheck.TOKEN_RANGE,
        TokenCheck.END_OF_DOCUMENT,
        TokenCheck.BIN_CHECKSUM,
    ]
    checks = {check.name: check for check in verify(prefix)}
    token_range = TokenMessage.TOKEN_RANGE.fill(lowest=0, highest=60_000)
    assert checks[TokenCheck.TOKEN_RANGE].value == token_range
    ends = TokenMessage.DOCUMENTS_END.fill(ended=15, documents=16)
    assert checks[TokenCheck.END_OF_DOCUMENT].value == ends


def test_index_whose_lengths_lack_the_end_of_document(prefix: Path) -> None:
    """Write the lengths as Microsoft's Megatron-DeepSpeed does (facts/data.md 6, 003)."""
    content = bytearray(part(prefix, "idx").read_bytes())
    lengths = np.frombuffer(content, dtype="<i4", count=16, offset=34) - 1
    content[34 : 34 + 64] = lengths.astype("<i4").tobytes()
    part(prefix, "idx").write_bytes(content)
    assert failed(prefix) == [
        TokenCheck.OFFSETS,
        TokenCheck.SIZES,
        TokenCheck.END_OF_DOCUMENT,
        TokenCheck.IDX_CHECKSUM,
    ]


def test_an_index_one_token_short_for_each_document_is_explained(prefix: Path) -> None:
    """Write lengths without the end-of-document token, and pointers that add them up, as that tool
    does.
    """
    content = bytearray(part(prefix, "idx").read_bytes())
    lengths = np.frombuffer(content, dtype="<i4", count=16, offset=34) - 1
    pointers = (np.cumsum(lengths) - lengths).astype("<i8") * 2
    content[34 : 34 + 64] = lengths.astype("<i4").tobytes()
    content[34 + 64 : 34 + 64 + 128] = pointers.tobytes()
    part(prefix, "idx").write_bytes(content)
    assert failed(prefix) == [
        TokenCheck.SIZES,
        TokenCheck.END_OF_DOCUMENT,
        TokenCheck.IDX_CHECKSUM,
    ]
    sizes = next(check for check in verify(prefix) if check.name == "sizes")
    assert sizes.remedy == ONE_SHORT
    part(prefix, "bin").write_bytes(part(prefix, "bin").read_bytes()[:-2])
    sizes = next(check for check in verify(prefix) if check.name == "sizes")
    assert sizes.remedy == AGAIN  # one token fewer, which is a different error


def test_odd_size_and_missing_bytes(prefix: Path) -> None:
    content = part(prefix, "bin").read_bytes()
    part(prefix, "bin").write_bytes(content[:-1])
    assert verify(prefix)[0].value.endswith(
        "The two files do not belong together, or one was truncated: create them again."
    )
    part(prefix, "bin").write_bytes(content[:-2])
    assert "sizes" in failed(prefix)


def test_files_of_another_name_made_elsewhere(prefix: Path) -> None:
    for ending in ("bin", "idx"):
        part(prefix, ending).rename(prefix.with_name(f"pile.{ending}"))
    assert [(check.name, check.verdict) for check in verify(prefix.with_name("pile"))] == [
        *[(name, "pass") for name in ("header", "lengths", "offsets", "sizes", "document index")],
        ("manifest", "warn"),
    ]


def test_manifest_of_other_files(prefix: Path) -> None:
    path = prefix.with_name(prefix.name + ".manifest.json")
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"documents": 7, "records": 9}))
    assert failed(prefix) == ["counts", "nothing lost"]
    path.write_text("{}")
    assert [(check.name, check.verdict) for check in verify(prefix)][-1] == ("manifest", "warn")
    path.unlink()
    assert says(verify(prefix)[-1].value, TokenMessage.NOT_TOKENIZED)


def test_a_look_without_reading_the_tokens(prefix: Path) -> None:
    assert [check.name for check in verify(prefix, checksums=False)][-1] == "shards"


def test_repeated_documents_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"document number {number} is like no other" for number in range(900)] + [
        "the same again"
    ] * 101
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(texts))
    prepare([source], tmp_path / "out")
    checks = {check.name: check for check in verify(tmp_path / "out")}
    repeats = checks[TokenCheck.DUPLICATES]
    assert repeats.value == TokenMessage.SAMPLED_REPEATS.fill(
        copies=100, sampled=1001, share=100 / 1001
    )
    assert repeats.verdict == "warn"
    monkeypatch.setattr("runbook.tokens.verification.SAMPLED_DOCUMENTS", 250)
    checks = {check.name: check for check in verify(tmp_path / "out")}
    number = int(checks[TokenCheck.DUPLICATES].value.split(" of ")[1].split()[0])
    assert 150 < number < 450


def test_documents_are_shown_with_their_pieces(prefix: Path) -> None:
    shown = sample_documents(prefix, 3, max_tokens=6)
    assert [document.number for document in shown] == [0, 6, 13]
    assert shown[0].pieces == ["An", " ordinary", " document", ".", "\n", "With"]
    assert shown[0].tokens == 10
    assert sample_documents(prefix, numbers=[1])[0].pieces == []
    assert sample_documents(prefix, numbers=[18])[0].pieces == ["the", " end", "<|endoftext|>"]

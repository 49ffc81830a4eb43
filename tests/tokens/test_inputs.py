"""Which files are read, and how they are split."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from suite.messages import containing, refuses

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.sources.documents import is_blank
from runbook.tokens.sources.input_files import (
    SHOWN_ENDINGS,
    cut_shards,
    find_inputs,
    kind_of,
    path_inside,
    unread_text,
)


def test_missing_input_is_named(tmp_path: Path) -> None:
    with refuses(DataError, TokenMessage.INPUT_MISSING, path=containing("/nothing.jsonl")):
        find_inputs([tmp_path / "nothing.jsonl"])
    with refuses(DataError, TokenMessage.NO_INPUT):
        find_inputs([])


def test_folder_without_text_says_what_it_looked_for(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "text.jsonl.bz2").write_text("compressed in a way that is not read")
    unread = TokenMessage.FILES_NOT_READ.fill(folder=tmp_path, endings="1 .bz2, 1 .json")
    with refuses(
        DataError,
        TokenMessage.NOTHING_MATCHES,
        kinds=".jsonl, .ndjson, .txt, .parquet",
        unread=unread,
    ):
        find_inputs([tmp_path])


def test_files_of_a_folder_that_are_not_read_are_counted_by_their_endings(tmp_path: Path) -> None:
    for name in ("a.txt", "b.csv", "c.csv", ".hidden.csv", "LICENSE"):
        (tmp_path / name).write_text("text")
    assert [path.name for path in find_inputs([tmp_path])] == ["a.txt"]
    told = TokenMessage.FILES_NOT_READ.fill(folder=tmp_path, endings="2 .csv, 1 LICENSE")
    assert unread_text([tmp_path]) == told
    assert unread_text([tmp_path], "*.txt") == unread_text([tmp_path / "a.txt"]) == ""


def test_thousands_of_different_endings_do_not_fill_the_screen(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"part.{number:05d}").touch()
    (tmp_path / "a.csv").touch()
    (tmp_path / "b.csv").touch()
    shown = ["2 .csv", *(f"1 .{number:05d}" for number in range(SHOWN_ENDINGS - 1)), "13 others"]
    endings = ", ".join(shown)
    assert unread_text([tmp_path]) == TokenMessage.FILES_NOT_READ.fill(
        folder=tmp_path, endings=endings
    )


def test_a_superscript_in_a_name_is_no_number(tmp_path: Path) -> None:
    for name in ("a1²10.txt", "a1²9.txt"):
        (tmp_path / name).write_text("text")
    assert [path.name for path in find_inputs([tmp_path])] == ["a1²9.txt", "a1²10.txt"]


def test_hidden_files_of_a_folder_are_left_out(tmp_path: Path) -> None:
    """JupyterLab and macOS write a second file for each file that a person opens or copies."""
    folder = tmp_path / ".data"
    for name in ("a.jsonl", ".ipynb_checkpoints/a-checkpoint.jsonl", "._a.jsonl", "sub/.b.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"text": "a"}')
    assert find_inputs([folder]) == [folder / "a.jsonl"]
    assert find_inputs([folder / "._a.jsonl"]) == [folder / "._a.jsonl"]


def test_unknown_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x")
    with refuses(
        DataError,
        TokenMessage.UNKNOWN_KIND_OF_FILE,
        path=containing("a.csv"),
        kinds=containing(".jsonl"),
    ):
        find_inputs([path])


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("a.jsonl", b"", True),
        ("a.jsonl", b"\n \t\r\n" * 1_000_000, True),
        ("a.jsonl", b"\n" * 5_000_000 + b"{}", False),
        ("a.jsonl.gz", gzip.compress(b"\n\n"), True),
        ("a.jsonl.gz", gzip.compress(b"\n{}\n"), False),
        ("a.jsonl.gz", b"no gzip file", False),
        ("a.parquet", b"\n", False),
    ],
    ids=["empty", "blank lines", "text at the end", "packed", "packed text", "damaged", "parquet"],
)
def test_blank_files_are_told_from_text(tmp_path: Path, name, content, expected) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert is_blank(path) is expected


def test_the_same_file_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}")
    with refuses(DataError, TokenMessage.INPUT_NAMED_TWICE, doubled=containing("a.jsonl")):
        find_inputs([tmp_path, path])


def test_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_text("{}")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with refuses(
        DataError,
        TokenMessage.INPUT_LEAVES_FOLDER,
        path=folder / "link.jsonl",
        folder=folder,
        resolve=tmp_path / "secret.jsonl",
    ):
        find_inputs([folder])
    assert find_inputs([folder / "link.jsonl"]) == [folder / "link.jsonl"]
    (folder / "link.jsonl").unlink()
    (folder / "gone.jsonl").symlink_to(folder / "nothing.jsonl")
    with refuses(DataError, TokenMessage.LINK_TO_NOTHING, path=folder / "gone.jsonl"):
        find_inputs([folder])


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a\\..\\x", "", "a\x00b"])
def test_listed_name_that_leaves_the_folder(tmp_path: Path, name: str) -> None:
    with refuses(DataError, TokenMessage.LISTED_FILE_OUTSIDE, name=name, folder=tmp_path):
        path_inside(tmp_path, name)


def test_listed_name_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "way").symlink_to(tmp_path)
    data = tmp_path / "data"
    with refuses(DataError, TokenMessage.LISTED_FILE_OUTSIDE_BY_LINK, name="way/x", folder=data):
        path_inside(data, "way/x")
    assert path_inside(tmp_path / "data", "sub/x.zst") == tmp_path / "data" / "sub" / "x.zst"


def test_small_files_share_a_shard_and_big_plain_ones_are_cut(tmp_path: Path) -> None:
    files = []
    for name, size in (
        ("1.jsonl", 300),
        ("2.jsonl", 300),
        ("3.jsonl", 5000),
        ("4.jsonl.zst", 5000),
        ("5.jsonl", 10),
    ):
        files.append(tmp_path / name)
        files[-1].write_bytes(b"x" * size)
    shards = cut_shards(files, 1000)
    assert [shard.number for shard in shards] == list(range(len(shards)))
    described = [[(Path(s.path).name, s.start, s.end) for s in shard.segments] for shard in shards]
    assert described == [
        [("1.jsonl", 0, 300), ("2.jsonl", 0, 300)],
        *[[("3.jsonl", start, start + 1000)] for start in range(0, 5000, 1000)],
        [("4.jsonl.zst", 0, 5000)],
        [("5.jsonl", 0, 10)],
    ]


def test_number_of_shards_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 100_000)
    assert len(cut_shards([path], 1)) <= 20_000


def test_kinds() -> None:
    assert kind_of(Path("A.JSONL.ZST")) == (".jsonl", ".zst")
    with pytest.raises(DataError):
        kind_of(Path("a.parquet.gz"))

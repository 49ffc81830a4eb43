"""Bad records and files are reported with file, line and byte. The policy then stops, skips or
quarantines.

Input that was only partly read is not kept.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from backports import zstd
from suite.messages import assert_about, containing, refuses, says

from runbook.core.errors import DataError
from runbook.plan_file.diagnostics import Statement
from runbook.tokens.messages import TokenMessage
from runbook.tokens.pipeline.amount_done import DataProgress
from runbook.tokens.pipeline.tokenize import prepare
from runbook.tokens.pipeline.tokenize_options import TokenizeOptions, read_manifest
from runbook.tokens.sources.input_files import cut_shards
from runbook.tokens.verification import TokenCheck, verify

from .reference import expected, json_lines, made

GOOD = ["first document", "second document", "third document"]


def invalid_json(error: str) -> Statement:
    """Return the problem that is reported for a line if its JSON has this error."""
    return TokenMessage.INVALID_JSON.of(error=containing(error))


BAD_LINES = {
    "invalid JSON": (
        b'{"text": "cut of',
        invalid_json("Unterminated string starting at character 10 of the record"),
    ),
    "its place": (
        b'{broken"',
        invalid_json("in double quotes at character 2 of the record"),
    ),
    "two records": (b'{"text":"a"} {"text":"b"}', invalid_json("Extra data")),
    "no key": (
        b'{"txt": "a", "id": 1}',
        TokenMessage.NO_TEXT_KEY.of(text_key="text", keys="'txt', 'id'"),
    ),
    "null": (b'{"text": null}', TokenMessage.NOT_A_TEXT.of(text_key="text", kind="null")),
    "number": (b'{"text": 12}', TokenMessage.NOT_A_TEXT.of(text_key="text", kind="number")),
    "list": (b'["text"]', TokenMessage.NOT_AN_OBJECT.of(kind="list")),
    "invalid UTF-8": (
        b'{"text": "caf\xe9"}',
        TokenMessage.INVALID_UTF8.of(reason="invalid continuation byte", byte=13),
    ),
    "lone surrogate": (b'{"text": "a\\ud800b"}', TokenMessage.LONE_SURROGATE.of(half="\\ud800")),
    "raw NUL": (b'{"text": "a\x00b"}', invalid_json("Invalid control character")),
    "nested": (
        b'{"text": "a", "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        invalid_json(TokenMessage.NESTED_TOO_DEEPLY.fill()),
    ),
}


def tells(text: str, source: Path, line: int, byte: int, reason: Statement) -> bool:
    """Return whether a text reports this record, with its file, line, byte and problem."""
    place = TokenMessage.PLACE_IN_LINES.fill(line=line, byte=byte)
    is_named = says(text, TokenMessage.RECORD_LEFT_OUT, path=source, place=place)
    return is_named and says(text, reason.message, **reason.values)


def with_bad_line(bad: bytes) -> bytes:
    return json_lines(GOOD[:2]) + bad + b"\n" + json_lines(GOOD[2:])


@pytest.mark.parametrize("kind", BAD_LINES)
def test_bad_record_stops_with_file_line_and_byte(tmp_path: Path, kind: str) -> None:
    bad, reason = BAD_LINES[kind]
    source = tmp_path / "in.jsonl"
    source.write_bytes(with_bad_line(bad))
    with pytest.raises(DataError) as caught:
        prepare([source], tmp_path / "out")
    offset = len(json_lines(GOOD[:2]))
    assert caught.value.message is TokenMessage.BAD_RECORD
    assert tells(str(caught.value.values["problem"]), source, 3, offset, reason)
    left = [path for path in tmp_path.iterdir() if path != source]
    assert left == [], "a refused text leaves nothing behind"


def test_finished_shards_survive_a_bad_record_behind_them(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    texts = [f"document number {number}" for number in range(500)]
    content = json_lines(texts)
    source.write_bytes(content.replace(b'number 400"}', b"number 400}"))
    options = TokenizeOptions(shard_bytes=1000, workers=1)
    with refuses(DataError, TokenMessage.BAD_RECORD):
        prepare([source], tmp_path / "out", options)
    assert list((tmp_path / "out.parts").glob("*.mark"))
    assert (tmp_path / "out_text_document.bin.part").exists()


def test_a_folder_that_cannot_be_written_is_not_called_full(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(GOOD))
    with refuses(DataError, TokenMessage.FOLDER_NOT_WRITABLE, folder=source):
        prepare([source], source / "out")


@pytest.mark.parametrize("kind", BAD_LINES)
@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_bad_record_is_left_out_and_counted(tmp_path: Path, kind: str, policy: str) -> None:
    bad, reason = BAD_LINES[kind]
    source = tmp_path / "in.jsonl"
    source.write_bytes(with_bad_line(bad))
    manifest = prepare([source], tmp_path / "out", TokenizeOptions(bad_records=policy))
    assert made(tmp_path / "out") == expected(GOOD)
    assert (manifest.records, manifest.documents, manifest.skipped_records) == (4, 3, 1)
    assert tells(manifest.problems[0], source, 3, len(json_lines(GOOD[:2])), reason)
    warned = [check for check in verify(tmp_path / "out") if check.verdict != "pass"]
    assert [check.name for check in warned] == [TokenCheck.BAD_INPUT]
    assert (tmp_path / "out.quarantine").exists() == (policy == "quarantine")
    if policy == "quarantine":
        kept = json.loads((tmp_path / "out.quarantine").read_text())
        assert base64.b64decode(kept["base64"]) == bad + b"\n"
        assert (kept["line"], kept["offset"]) == (3, len(json_lines(GOOD[:2])))


@pytest.mark.parametrize("name", ["in.jsonl", "in.txt"])
def test_a_file_in_utf_16_is_named_as_such(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    source.write_text('{"text": "hello"}\n{"text": "world"}\n', encoding="utf-16")
    with pytest.raises(DataError) as caught:
        prepare([source], tmp_path / "out")
    assert caught.value.message is TokenMessage.BAD_RECORD
    assert says(str(caught.value.values["problem"]), TokenMessage.UTF16)


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        ("in.txt", "früher".encode("latin-1"), TokenMessage.MAYBE_LATIN_1.of(character="ü")),
        ("in.jsonl", b'{"text": "\x93so\x94"}', TokenMessage.MAYBE_LATIN_1.of(byte=0x93)),
        ("in.jsonl", b'[{"text": "a"}, {"text": "b"}]', TokenMessage.MAYBE_ARRAY.of()),
        ("in.jsonl", b'[\n {"text": "a"}\n]', TokenMessage.MAYBE_ARRAY.of()),
        ("in.jsonl", b'{\n "text": "a"\n}', TokenMessage.MAYBE_INDENTED.of()),
    ],
)
def test_a_file_in_another_format_is_named_with_the_command_that_converts_it(
    tmp_path: Path, name: str, content: bytes, hint: Statement
) -> None:
    source = tmp_path / name
    source.write_bytes(content)
    with refuses(DataError, TokenMessage.BAD_RECORD) as caught:
        prepare([source], tmp_path / "out")
    assert says(str(caught.value.values["format_hint"]), hint.message, **hint.values)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param('{"text": "größer"}'.encode() + b"\xff", id="damaged UTF-8"),
        pytest.param(b'{"text": "\x00\xff\xfe"}', id="not text"),
        pytest.param(b'{"text": "a"', id="cut off"),
        pytest.param(b'{"text": "\x81"}', id="in no Latin alphabet"),
    ],
)
def test_a_single_damaged_record_suggests_no_other_format(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(content)
    with refuses(DataError, TokenMessage.BAD_RECORD, format_hint=""):
        prepare([source], tmp_path / "out")


def test_line_and_byte_are_right_in_a_later_shard_and_in_zst(tmp_path: Path) -> None:
    content = json_lines([f"document number {number}" for number in range(500)])
    broken = content.replace(b'{"text": "document number 400"}', b'{"text": "document number 400}')
    for name, data in (("in.jsonl", broken), ("in.jsonl.zst", zstd.compress(broken))):
        source = tmp_path / name
        source.write_bytes(data)
        byte = broken.index(b"number 400") - 19
        with refuses(
            DataError,
            TokenMessage.BAD_RECORD,
            problem=containing(f"line 401, byte {byte}:", "JSON"),
        ):
            prepare([source], tmp_path / "out", TokenizeOptions(shard_bytes=1000, workers=1))


def test_many_bad_records_are_counted_and_the_first_ones_told(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes((b"oops\n" + json_lines(["fine"])) * 300)
    manifest = prepare([source], tmp_path / "out", TokenizeOptions(bad_records="quarantine"))
    assert (manifest.skipped_records, manifest.documents, len(manifest.problems)) == (300, 300, 20)
    assert len((tmp_path / "out.quarantine").read_text().splitlines()) == 300


def damaged(kind: str, good: bytes) -> bytes:
    packed = bytearray(zstd.compress(good, options={zstd.CompressionParameter.checksum_flag: 1}))
    if kind == "truncated":
        return bytes(packed[: len(packed) * 3 // 5])
    if kind == "bit-flipped":
        packed[len(packed) // 2] ^= 0x10
        return bytes(packed)
    if kind == "second frame cut":
        return bytes(packed) + bytes(packed[: len(packed) // 2])
    return b"<html><body>429 Too Many Requests</body></html>"


KINDS = ("truncated", "bit-flipped", "second frame cut", "error page")
REASONS_SAID = {
    "truncated": TokenMessage.CUT_OFF.of(),
    "second frame cut": TokenMessage.CUT_OFF.of(),
    "error page": TokenMessage.PERHAPS_AN_ERROR_PAGE.of(
        head=b"<html><body>429 Too Many Requests</body></html>"[:40]
    ),
}
"""Messages for kinds of damage that can be named.

A decompressor may report a flipped bit in any way.
"""


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_zst_stops_or_is_left_out_whole(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    texts = [f"document {number} " + os.urandom(60).hex() for number in range(3000)]
    (folder / "a.jsonl.zst").write_bytes(zstd.compress(json_lines(GOOD[:1])))
    (folder / "b.jsonl.zst").write_bytes(damaged(kind, json_lines(texts)))
    (folder / "c.jsonl.zst").write_bytes(zstd.compress(json_lines(GOOD[1:])))
    with pytest.raises(DataError) as caught:
        prepare([folder], tmp_path / "out")
    assert_about(
        caught.value,
        TokenMessage.BROKEN_FILE,
        path=folder / "b.jsonl.zst",
        remedy=TokenMessage.FETCH_AGAIN.fill(),
    )
    if kind in REASONS_SAID:
        reason = REASONS_SAID[kind]
        assert says(str(caught.value.values["reason"]), reason.message, **reason.values)
    else:
        assert int(str(caught.value.values["offset"])) > 0
    manifest = prepare([folder], tmp_path / "out", TokenizeOptions(bad_records="quarantine"))
    assert made(tmp_path / "out") == expected(GOOD)
    assert (manifest.skipped_files, manifest.skipped_records) == (1, 0)
    assert json.loads((tmp_path / "out.quarantine").read_text())["file"] == str(
        folder / "b.jsonl.zst"
    )


def test_truncated_gzip_and_xz_are_noticed(tmp_path: Path) -> None:
    import gzip
    import lzma

    for ending, pack in ((".gz", gzip.compress), (".xz", lzma.compress)):
        source = tmp_path / f"in.jsonl{ending}"
        source.write_bytes(pack(json_lines(GOOD * 500))[:-20])
        with refuses(
            DataError,
            TokenMessage.BROKEN_FILE,
            reason=containing(TokenMessage.CUT_OFF.fill(error="")),
        ):
            prepare([source], tmp_path / "out")


EMPTY = {"in.jsonl": b"", "in.jsonl.zst": b"", "frame.jsonl.zst": zstd.compress(b""), "in.txt": b""}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_file_stops_or_is_left_out_and_counted(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    good = tmp_path / "good.jsonl"
    source.write_bytes(EMPTY[name])
    good.write_bytes(json_lines(GOOD))
    with pytest.raises(DataError) as caught:
        prepare([good, source], tmp_path / "out")
    if EMPTY[name]:
        assert_about(caught.value, TokenMessage.BROKEN_FILE, path=source)
    else:
        assert_about(caught.value, TokenMessage.INPUT_EMPTY, path=source)
    assert not (tmp_path / "out.manifest.json").exists()
    manifest = prepare([good, source], tmp_path / "out", TokenizeOptions(bad_records="skip"))
    assert made(tmp_path / "out") == expected(GOOD)
    assert (manifest.skipped_files, manifest.skipped_records) == (1, 0)
    assert says(
        manifest.problems[0],
        TokenMessage.BROKEN_FILE,
        path=source,
        reason=TokenMessage.EMPTY_FILE.fill(),
        offset=0,
        remedy=TokenMessage.FETCH_AGAIN.fill(),
    )


@pytest.mark.parametrize(
    ("content", "options", "counts"),
    [
        (b"\n \n", {}, {"records": 0}),
        (
            b"oops\n" * 3,
            {"bad_records": "skip"},
            {"records": 3, "skipped_records": 3, "why": containing("line 1, byte 0:", "JSON")},
        ),
        (json_lines(["", ""]), {}, {"empty": 2}),
        (
            json_lines(GOOD),
            {"source_key": "meta.source", "drop_sources": ("unknown",)},
            {"dropped": 3},
        ),
    ],
)
def test_input_without_a_token_is_an_error(
    tmp_path: Path, content: bytes, options: dict[str, object], counts: dict[str, object]
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(content)
    with refuses(DataError, TokenMessage.NO_TEXT, **counts):
        prepare([source], tmp_path / "out", TokenizeOptions(**options))
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_damage_is_placed_where_it_is(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl.zst"
    content = json_lines([os.urandom(600).hex() for _ in range(3000)])
    source.write_bytes(zstd.compress(content)[:-200_000])
    with refuses(
        DataError, TokenMessage.BROKEN_FILE, reason=containing("it is cut off:")
    ) as caught:
        prepare([source], tmp_path / "out")
    place = int(re.findall(r"at byte (\d+)", str(caught.value))[0])
    assert len(content) * 0.5 < place < len(content)


def test_bad_utf8_in_a_text_file(tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_bytes(b"fine\nlines\ncaf\xe9\n")
    with refuses(
        DataError,
        TokenMessage.BAD_RECORD,
        problem=containing(f"{source}, line 3, byte 14:", "UTF-8"),
    ):
        prepare([source], tmp_path / "out")


class Meddler:
    """Changes the input as soon as there is progress."""

    def __init__(self, action: object) -> None:
        self.action = action

    def __call__(self, progress: DataProgress) -> None:
        if self.action is not None:
            action = self.action
            self.action = None
            action()


@pytest.mark.parametrize("what", ["changes", "vanishes"])
def test_a_file_that_changes_or_vanishes_while_read(tmp_path: Path, what: str) -> None:
    files = [tmp_path / f"{number}.jsonl" for number in range(2)]
    for file in files:
        file.write_bytes(json_lines(GOOD * 20_000))  # more than one block

    size = files[0].stat().st_size

    def meddle() -> None:
        if what == "vanishes":
            files[0].unlink()
        else:
            with files[0].open("ab") as file:
                file.write(json_lines(["one more"]))

    with pytest.raises(DataError) as caught:
        prepare(
            files,
            tmp_path / "out",
            TokenizeOptions(shard_bytes=10**9, workers=1),
            progress=Meddler(meddle),
        )
    if what == "vanishes":
        reason = TokenMessage.VANISHED.fill()
        remedy = TokenMessage.FETCH_AGAIN.fill()
    else:
        reason = TokenMessage.CHANGED_SINCE_PLANNED.fill(
            size=size, current_size=size + len(json_lines(["one more"]))
        )
        remedy = TokenMessage.LET_NOTHING_WRITE.fill()
    assert_about(
        caught.value, TokenMessage.BROKEN_FILE, path=files[0], reason=reason, remedy=remedy
    )
    if what == "changes":
        manifest = prepare(files, tmp_path / "out", TokenizeOptions(workers=1))
        assert manifest.documents == 120_001


TEXTS = {
    "English": [
        "It was the best of times, it was the worst of times, it was the age of wisdom. " * 40
    ]
    * 100,
    "short": [f"{number} short" for number in range(5000)],
    "Chinese": ["\u4f60\u597d\uff0c\u4e16\u754c\u3002\u65e5\u672c\u8a9e\u306e\u6587\u7ae0" * 20]
    * 300,
    "numbers": [" ".join(str(7919 * number) for number in range(500))] * 100,
}


@pytest.mark.parametrize("ending", ["", ".zst", ".gz"])
@pytest.mark.parametrize("kind", TEXTS)
def test_the_room_asked_for_is_that_of_the_files_made(tmp_path, monkeypatch, kind, ending):
    """Estimates must depend on the kind of text.

    With one estimate per compression, 151 MiB were requested where 251 MiB were needed.
    """
    from runbook.tokens.pipeline import tokenize

    monkeypatch.setattr(tokenize, "AMPLE_ROOM", 1e12)
    asked = []
    bytes_needed = tokenize.bytes_needed
    monkeypatch.setattr(
        tokenize, "bytes_needed", lambda *about: asked.append(bytes_needed(*about)) or asked[0]
    )
    content = json_lines(TEXTS[kind])
    source = tmp_path / f"in.jsonl{ending}"
    source.write_bytes(
        {"": lambda text: text, ".zst": zstd.compress, ".gz": gzip.compress}[ending](content)
    )
    prepare([source], tmp_path / "out", TokenizeOptions(workers=1))
    made_bytes = sum(
        (tmp_path / f"out_text_document.{kind}").stat().st_size for kind in ("bin", "idx")
    )
    assert made_bytes <= 1.02 * asked[0] <= 1.35 * made_bytes


def test_a_disk_that_is_too_small_is_refused_beforehand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(GOOD * 1000))
    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with refuses(
        DataError, TokenMessage.NO_ROOM_FOR_TOKENS, needed=containing("KiB"), free="1000 B"
    ):
        prepare([source], tmp_path / "out")
    prepare([source], tmp_path / "out", TokenizeOptions(check_space=False))
    assert read_manifest(tmp_path / "out").documents == 3000


def test_on_an_ample_disk_no_text_is_encoded_for_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runbook.tokens.pipeline import tokenize

    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(GOOD))
    free = shutil.disk_usage(tmp_path)
    asked = []
    monkeypatch.setattr(tokenize, "bytes_needed", lambda *_: asked.append(True) or 1)
    for times, estimates in ((tokenize.AMPLE_ROOM + 1, 0), (tokenize.AMPLE_ROOM - 1, 1)):
        guess = tokenize.first_guess(cut_shards([source], 1 << 30))
        room = free._replace(free=times * guess)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, room=room: room)
        prepare([source], tmp_path / f"out-{times}", TokenizeOptions(workers=1))
        assert len(asked) == estimates


@pytest.mark.parametrize("ending", [b"\r", b"\r\n", b"\n\r\n\r"])
def test_a_carriage_return_ends_a_line_as_in_pythons_text_mode(tmp_path, ending):
    """Megatron's preprocess_data.py opens its input in text mode: \\r, \\r\\n and \\n end a line."""
    source = tmp_path / "in.jsonl"
    source.write_bytes(json_lines(GOOD).replace(b"\n", ending))
    with source.open(encoding="utf-8") as lines:
        theirs = [json.loads(line)["text"] for line in lines if line.strip()]
    assert theirs == GOOD
    prepare([source], tmp_path / "out")
    assert made(tmp_path / "out") == expected(GOOD)


def test_a_bad_record_between_carriage_returns_is_named_with_its_own_byte(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'{"text": "one"}\r{"text": 2}\r{"text": "three"}\n')
    manifest = prepare([source], tmp_path / "out", TokenizeOptions(bad_records="skip"))
    assert (manifest.documents, manifest.skipped_records) == (2, 1)
    reason = TokenMessage.NOT_A_TEXT.of(text_key="text", kind="number")
    assert tells(manifest.problems[0], source, 1, 16, reason)


def test_a_record_is_read_as_deep_as_pythons_json_reads_it(tmp_path):
    """Nest 980 brackets, within the Python limit of 1,000 calls.

    Workers in Megatron start with an almost empty stack.
    """
    source = tmp_path / "in.jsonl"
    deep = b'{"deep": ' + b"[" * 980 + b"]" * 980 + b', "text": "bottom"}\n'
    source.write_bytes(json_lines(GOOD) + deep)
    prepare([source], tmp_path / "out", TokenizeOptions(workers=1))
    assert made(tmp_path / "out") == expected([*GOOD, "bottom"])

"""Compressed files: every legal form yields the same text, all damage is an error, and nothing is
lost silently.
"""

from __future__ import annotations

import gzip
import lzma
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd
from suite.messages import containing, refuses

from runbook.tokens.messages import TokenMessage
from runbook.tokens.sources.input_files import BrokenFileError, cut_shards, read_blocks

from .reference import json_lines

RANDOM = random.Random(5)
TEXT = json_lines(
    [
        RANDOM.randbytes(RANDOM.randrange(90)).hex() + " and so on" * RANDOM.randrange(30)
        for _ in range(4000)
    ]
)
PARTS = [TEXT[:1000], TEXT[1000:1001], TEXT[1001:300_000], TEXT[300_000:]]
SKIPPED = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"


def summed(data: bytes) -> bytes:
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


def each(pack: Callable[[bytes], bytes]) -> bytes:
    return b"".join(map(pack, PARTS))


WHOLE = {
    "one frame.zst": summed(TEXT),
    "frames.zst": each(summed),
    "frames without sums.zst": each(zstd.compress),
    "empty frames.zst": summed(b"") + each(summed) + summed(b""),
    "skippable frames.zst": SKIPPED + summed(TEXT) + SKIPPED,
    "level 19, long window.zst": zstd.compress(
        TEXT, options={zstd.CompressionParameter.window_log: 27}
    ),
    "one member.gz": gzip.compress(TEXT),
    "members.gz": each(gzip.compress),
    "zeros after it.gz": gzip.compress(b"") + gzip.compress(TEXT) + bytes(50),
    "one stream.xz": lzma.compress(TEXT),
    "streams.xz": each(lzma.compress),
    "padding.xz": lzma.compress(TEXT) + bytes(8) + lzma.compress(b"") + bytes(4),
    "old form.xz": lzma.compress(TEXT, format=lzma.FORMAT_ALONE),
}


def read(path: Path) -> bytes:
    """Return all text, and check the offsets."""
    found = bytearray()
    for offset, data in read_blocks(cut_shards([path], 1 << 60)[0].segments[0]):
        assert offset == len(found) and len(data) > 0
        found += data
    return bytes(found)


@pytest.mark.parametrize("name", WHOLE)
def test_every_legal_form_is_read_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / name.replace(".", ".jsonl.")
    path.write_bytes(WHOLE[name])
    assert read(path) == TEXT


@pytest.mark.parametrize(
    "name",
    ["one frame.zst", "frames.zst", "one member.gz", "members.gz", "one stream.xz", "streams.xz"],
)
def test_no_damage_passes_unseen(tmp_path: Path, name: str) -> None:
    """A file that is cut anywhere except between two parts, has a flipped bit or lacks some bytes
    gives an error or the same text.
    """
    path = tmp_path / name.replace(".", ".jsonl.")
    chance = random.Random(name)
    whole = WHOLE[name]
    noticed = 0
    for _ in range(60):
        content = bytearray(whole)
        place = chance.randrange(1, len(content))
        kind = chance.choice(["cut", "turn", "drop"])
        if kind == "cut":
            del content[place:]
        elif kind == "turn":
            content[place] ^= 1 << chance.randrange(8)
        else:
            del content[place : place + chance.randrange(1, 2000)]
        path.write_bytes(content)
        try:
            assert read(path) == TEXT, f"{kind} at {place} changed the text, and nothing was said"
        except BrokenFileError as error:
            assert str(error).startswith(f"{path}: ")
            noticed += 1
    assert noticed >= 58


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_garbage_after_a_whole_part_is_no_end_of_file(tmp_path: Path, ending: str) -> None:
    """LZMAFile takes such bytes for the end of the file.

    It would lose a second part if the start of that part is damaged.
    """
    pack = {".gz": gzip.compress, ".xz": lzma.compress}[ending]
    path = tmp_path / f"in.jsonl{ending}"
    path.write_bytes(pack(PARTS[0]) + b"\x00\x00\x00\x00oops" + pack(PARTS[2]))
    with refuses(BrokenFileError, TokenMessage.BROKEN_FILE, path=containing("in.jsonl.")):
        read(path)

"""Line blocks: nothing is lost or read twice, wherever a file is split and blocks end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.tokens.sources import input_files
from runbook.tokens.sources.input_files import LongRecord, read_blocks, whole_files

HUGE = 40
BLOCK = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks")


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_files, "BLOCK", BLOCK)
        patch.setattr(input_files, "HUGE", HUGE)
        yield


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 4 * HUGE), min_size=1, max_size=12),
    st.booleans(),
    st.lists(st.integers(0, 400), max_size=3),
)
def test_segments_have_the_lines_of_the_file(
    folder: Path, sizes: list[int], ends_with_newline: bool, cuts: list[int]
) -> None:
    lines = [bytes([97 + number]) * size + b"\n" for number, size in enumerate(sizes)]
    content = b"".join(lines)
    if not ends_with_newline:
        content = content[:-1] or b"z"
    path = folder / "in.jsonl"
    path.write_bytes(content)
    (whole,) = whole_files([path])
    borders = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    text = bytearray()
    for start, end in itertools.pairwise(borders):
        segment = replace(whole, start=start, end=end)
        for offset, block in read_blocks(segment):
            assert offset == len(text)
            assert start <= offset < end
            text += block
            assert block.endswith(b"\n") or len(text) == len(content)
            if len(block) > HUGE + 2 * BLOCK:
                assert block.count(b"\n") <= 1
    assert text == content


@pytest.mark.parametrize("sizes", [[300], [5, 300, 5], [300, 300], [100, 5, 300]])
def test_too_long_lines_leave_the_others(folder: Path, sizes: list[int]) -> None:
    path = folder / "long.jsonl"
    path.write_bytes(b"".join(b"x" * size + b"\n" for size in sizes))
    lengths = []
    for _, block in read_blocks(whole_files([path])[0], 150):
        if isinstance(block, LongRecord):
            lengths.append(block.length)
        else:
            lengths += map(len, block.splitlines(keepends=True))
    assert lengths == [size + 1 for size in sizes]

"""A word that takes megabytes is cut between tokens: the ids stay the same, and little memory is
needed.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runbook.tokens import long_words
from runbook.tokens.long_words import can_cut_words, cut_long_words
from runbook.tokens.tokenizer import Tokenizer, load_tokenizer

from .test_huge import PROGRAM


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return load_tokenizer("gpt2")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_words, "BLOCK", 64)
    monkeypatch.setattr(long_words, "WINDOW", 30)
    monkeypatch.setattr(long_words, "_PROBE", 8)


def ids_of_pieces(text: str, tokenizer: Tokenizer) -> tuple[list[int], int]:
    """Cut a text, and return the ids for all pieces and the number of pieces."""
    pieces = list(cut_long_words([text], tokenizer))
    assert "".join(pieces) == text
    return [token for piece in pieces for token in tokenizer.encode(piece)], len(pieces)


# Letters that form long tokens, so that a cut is often inside one, and the letters in a genome
ALPHABETS = (
    "a",
    "ab",
    "ACGT",
    "etaoinshrdlu",
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(ALPHABETS),
    st.integers(300, 900),
    st.integers(0, 2**32),
    st.sampled_from(["", "it's ", "'s", "12", " the <|endoftext|>", "é"]),
)
def test_a_cut_word_has_the_ids_of_the_whole(letters, length, seed, around):
    tokenizer = load_tokenizer("gpt2")
    word = "".join(random.Random(seed).choices(letters, k=length))
    text = f"{around}{word}{around}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_words, "BLOCK", 64)
        patch.setattr(long_words, "WINDOW", 30)
        patch.setattr(long_words, "_PROBE", 8)
        ids, number = ids_of_pieces(text, tokenizer)
    assert ids == tokenizer.encode(text)
    assert number > 1 or len(letters) == 1


def test_a_cut_that_would_change_an_id_is_not_made(gpt2, small_blocks, monkeypatch):
    """If neighbors were not tested, these cuts inside tokens would change the ids."""
    monkeypatch.setattr(long_words, "_token_border", lambda text, middle, tokenizer: middle)
    text = "understanding" * 100
    ids, number = ids_of_pieces(text, gpt2)
    assert ids == gpt2.encode(text)
    halves = [token for half in (text[:32], text[32:]) for token in gpt2.encode(half)]
    assert halves != ids, "a cut at the first middle changes the ids"
    assert number > 1


def test_usual_text_is_neither_cut_nor_encoded_twice(gpt2, monkeypatch):
    encoded = []
    monkeypatch.setattr(type(gpt2), "encode", lambda self, text: encoded.append(text))
    text = "It was the best of times. " * 10_000
    assert list(cut_long_words([text], gpt2)) == [text]
    assert encoded == []


def changed_tokenizer(path: Path, **changes: object) -> Tokenizer:
    """Return the GPT-2 tokenizer with some settings changed."""
    content = json.loads(load_tokenizer("gpt2").judge.tokenizer.to_str())
    content.update({name: value for name, value in changes.items() if name in content})
    content["model"].update({name: value for name, value in changes.items() if name not in content})
    path.write_text(json.dumps(content))
    return load_tokenizer(str(path))


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
        {"ignore_merges": True},
    ],
    ids=["normalizer", "words", "merges"],
)
def test_words_of_other_tokenizers_are_not_cut(changes, gpt2, tmp_path: Path):
    assert can_cut_words(gpt2)
    assert not can_cut_words(changed_tokenizer(tmp_path / "tokenizer.json", **changes))


def test_a_word_of_megabytes_needs_few_times_its_size(tmp_path: Path) -> None:
    """It needed 45 bytes per character."""
    small = tmp_path / "small.txt"
    large = tmp_path / "large.txt"
    small.write_text("one")
    large.write_text("".join(random.Random(1).choices("ACGT", k=2 << 20)))
    read_in_pieces = "from runbook.tokens.sources import documents\ndocuments.HUGE = 1 << 20\n"
    out = subprocess.run(
        [sys.executable, "-c", read_in_pieces + PROGRAM, "gpt2", str(small), str(large)],
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = map(int, out.stdout.split())
    assert after - before < 10 * large.stat().st_size

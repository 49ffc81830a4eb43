from __future__ import annotations

import random
from pathlib import Path

import pytest

from .reference import EDGE_TEXTS, json_lines

SENTENCE = (
    "the quick brown fox jumps over a lazy dog and then some 1984 naïve cafés in Zürich, isn't it?"
)


@pytest.fixture(scope="session")
def many_texts() -> list[str]:
    """Return about 600 kB of words, with edge texts in between and one document of 40 kB."""
    random.seed(7)
    words = SENTENCE.split()
    texts = [" ".join(random.choices(words, k=random.randint(1, 120))) for _ in range(1500)]
    for place in range(0, 1500, 100):
        texts[place] = EDGE_TEXTS[place // 100 % len(EDGE_TEXTS)]
    texts[777] = " ".join(random.choices(words, k=8000))
    return texts


@pytest.fixture
def corpus_file(tmp_path: Path, many_texts: list[str]) -> Path:
    path = tmp_path / "in" / "many.jsonl"
    path.parent.mkdir()
    path.write_bytes(json_lines(many_texts))
    return path

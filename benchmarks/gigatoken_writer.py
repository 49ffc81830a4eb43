"""The public library gigatoken with a minimal writer around it.

It reads JSON lines and writes .bin and .idx on one core.

    python -m benchmarks.gigatoken_writer PREFIX FILE.jsonl|FILE.jsonl.zst ...

`benchmarks.data_tokenize` compares `data tokenize` with this program where gigatoken and awkward
are installed. It cannot resume, checks neither records nor tokens, and writes no manifest.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

BLOCK = 4 << 20


def blocks(path: Path) -> Iterator[bytes]:
    """Yield whole lines from a file, compressed or not, a few megabytes at a time."""
    from backports import zstd

    tail = b""
    with contextlib.ExitStack() as stack:
        if path.suffix == ".zst":
            file = stack.enter_context(zstd.open(path))
        else:
            file = stack.enter_context(path.open("rb"))
        while data := file.read(BLOCK):
            whole, newline, rest = (tail + data).rpartition(b"\n")
            if newline:
                yield whole
            tail = rest
    if tail:
        yield tail


def main() -> None:
    """Tokenize with the GPT-2 vocabulary, and write an end-of-document token after each text."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prefix")
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()
    os.environ["RAYON_NUM_THREADS"] = "1"
    import gigatoken  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import msgspec
    import numpy as np

    from runbook.tokens.indexed_files import write_index
    from runbook.tokens.tokenizer import GPT2_VOCABULARY, _gpt2_json

    tokenizer = gigatoken.Tokenizer.from_json(_gpt2_json())
    record = msgspec.defstruct("Record", [("text", str)])
    decoder = msgspec.json.Decoder(record)
    eod = np.uint16(GPT2_VOCABULARY - 1)
    lengths = []
    with Path(f"{arguments.prefix}_text_document.bin").open("wb") as target:
        for name in arguments.files:
            for lines in blocks(Path(name)):
                texts = [each.text for each in decoder.decode_lines(lines)]
                encoded = tokenizer.encode_batch(texts, parallel=False)
                ids = np.asarray(encoded.layout.content.data).astype("<u2")
                ends = np.asarray(encoded.layout.offsets.data).astype(np.int64)
                counts = np.diff(ends)
                target.write(np.insert(ids[: ends[-1]], ends[1:][counts > 0], eod).tobytes())
                lengths.append((counts[counts > 0] + 1).astype(np.int32))
    pieces = [(each, np.empty(0, dtype=np.int64)) for each in lengths]
    with Path(f"{arguments.prefix}_text_document.idx").open("wb") as file:
        write_index(file, 8, lambda: pieces)


if __name__ == "__main__":
    main()

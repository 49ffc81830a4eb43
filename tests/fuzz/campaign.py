"""`campaign.py KIND FOLDER -runs=N`: atheris (libFuzzer) on one kind of file, guided by the
branches that it reaches."""

from __future__ import annotations

import random
import sys
import warnings
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))
with atheris.instrument_imports(include=["runbook"]), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from targets import make_targets, mutate


def main() -> None:
    kind = sys.argv[1]
    folder = Path(sys.argv[2])
    target = make_targets(folder / "files")[kind]
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(seed)

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        """Mutate an input: half the time with libFuzzer, and half the time by lines and values."""
        if seed % 2:
            return mutate(data, target.words, random.Random(seed))[:max_size]
        return bytes(atheris.Mutate(data, max_size))

    def one(data: bytes) -> None:
        target.look(data)

    words = [
        sys.argv[0],
        *sys.argv[3:],
        "-max_len=20000",
        "-artifact_prefix=" + str(folder) + "/",
        str(corpus),
    ]
    atheris.Setup(words, one, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

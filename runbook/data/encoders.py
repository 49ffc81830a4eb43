"""Encoders behind one interface: many texts in, flat ids out; the fast one is judged by the slow one."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from runbook.data.probes import PROBES
from runbook.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Encoder(Protocol):
    """Turns texts into ids; no token is added at either end."""

    name: str

    def encode_batch(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """All ids in a row, and len(texts) + 1 offsets: text i has ids[offsets[i] : offsets[i + 1]]."""
        ...


class Fastokens:
    """The fastokens package: exact BPE at several hundred MB/s on one core."""

    def __init__(self, tokenizer_json: str, special_tokens: bool) -> None:
        import fastokens

        self.name = f"fastokens {_version('fastokens')}"
        self._split = not special_tokens
        self._tokenizer: Any = fastokens.Tokenizer.from_json_str(tokenizer_json)

    def encode_batch(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """See Encoder."""
        import numpy as np

        ids, offsets = self._tokenizer.encode_batch_flat(texts, False, self._split)
        return np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<u8").astype(np.int64)


class HuggingFace:
    """The tokenizers package: the reference, and the encoder where fastokens is not installed."""

    def __init__(self, tokenizer_json: str, special_tokens: bool) -> None:
        from tokenizers import Tokenizer

        self.name = f"tokenizers {_version('tokenizers')}"
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = not special_tokens

    def encode_batch(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """See Encoder."""
        return _flat([each.ids for each in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)])


class SentencePiece:
    """A SentencePiece model, where that package is installed."""

    def __init__(self, model: Path) -> None:
        try:
            import sentencepiece  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            raise DataError(
                f"{model} is a SentencePiece model, and the package sentencepiece is not installed. "
                "Install it (pip install sentencepiece), or give a Hugging Face tokenizer.json."
            ) from None
        self.name = f"sentencepiece {_version('sentencepiece')}"
        try:
            self.processor: Any = sentencepiece.SentencePieceProcessor(model_file=str(model))
        except (OSError, RuntimeError) as error:
            raise DataError(f"{model} is not a SentencePiece model: {error}") from None

    def encode_batch(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """See Encoder."""
        return _flat(self.processor.encode(texts, out_type=int))


def _flat(lists: list[list[int]]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    import numpy as np

    offsets = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(each) for each in lists], out=offsets[1:])
    ids = np.fromiter((token for each in lists for token in each), dtype=np.uint32, count=int(offsets[-1]))
    return ids, offsets


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown version"


def choose_encoder(kind: str, tokenizer_json: str, special_tokens: bool) -> tuple[Encoder, HuggingFace]:
    """The encoder for the work and the judge; fastokens is used only after it agreed on every probe."""
    with ThreadPoolExecutor(1) as thread:  # both take a tenth of a second, most of it outside Python
        coming = thread.submit(_fast, kind, tokenizer_json, special_tokens)
        try:
            judge = HuggingFace(tokenizer_json, special_tokens)
        except ImportError:
            raise DataError(
                "the package tokenizers is missing; install the data extra: pip install 'gpt3-runbook[data]'"
            ) from None
        fast = coming.result()
    if fast is None:
        return judge, judge
    compare(fast, judge, list(PROBES), "the built-in edge texts")
    return fast, judge


def _fast(kind: str, tokenizer_json: str, special_tokens: bool) -> Fastokens | None:
    """The fast encoder; None where it is not wanted, or not to be had and not asked for by name."""
    if kind not in ("auto", "fastokens"):
        return None
    try:
        return Fastokens(tokenizer_json, special_tokens)
    except ImportError:
        if kind == "fastokens":
            raise DataError(
                "the package fastokens is not installed; choose encoder tokenizers, or install it"
            ) from None
    except ValueError as error:  # a kind of tokenizer.json that it does not know
        if kind == "fastokens":
            raise DataError(f"fastokens cannot read this tokenizer.json: {error}. Choose encoder tokenizers.") from None
    return None


def compare(fast: Encoder, judge: Encoder, texts: list[str], where: str) -> None:
    """Raise DataError unless both give the same ids for every text."""
    ids, offsets = fast.encode_batch(texts)
    expected, expected_offsets = judge.encode_batch(texts)
    if offsets.tolist() == expected_offsets.tolist() and ids.tobytes() == expected.tobytes():
        return
    for number, text in enumerate(texts):
        ours = ids[offsets[number] : offsets[number + 1]].tolist()
        theirs = expected[expected_offsets[number] : expected_offsets[number + 1]].tolist()
        if ours != theirs:
            raise DataError(
                f"{fast.name} and {judge.name} encode {text[:80]!r} ({where}) differently: "
                f"{ours[:12]} and {theirs[:12]}. Nothing was kept of it. "
                "Run with --encoder tokenizers (slower), and report the text."
            )


def use_one_thread() -> None:
    """Keep both encoders' thread pool at one thread: the processes are the parallel part. Call before the first encode.

    The pool reads the variable once, at its first use, which is why it is taken back at once: jobs that this process
    starts later must not inherit it.
    """
    before = os.environ.get("RAYON_NUM_THREADS")
    os.environ["RAYON_NUM_THREADS"] = "1"
    tiny = '{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}'
    try:
        for kind in (Fastokens, HuggingFace):
            with contextlib.suppress(ImportError):
                kind(tiny, False).encode_batch(["a", "a"])
    finally:
        if before is None:
            del os.environ["RAYON_NUM_THREADS"]
        else:
            os.environ["RAYON_NUM_THREADS"] = before

"""Loads tokenizers: GPT-2 from the shipped files, a tokenizer.json, or a SentencePiece model.

Each tokenizer has a fast encoder and a judge, a reference that the encoder is compared with.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import itertools
import json
import operator
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.package_versions import package_version

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GPT2_FOLDER = Path(__file__).parent / "gpt2"
GPT2_SHA256 = {
    "vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
GPT2_VOCABULARY = 50257
END_OF_TEXT = "<|endoftext|>"
EOD_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<eod>", "[EOS]")
PROBES: tuple[str, ...] = tuple(
    json.loads(Path(__file__).with_name("probes.json").read_text(encoding="utf-8"))
)
"""Texts for comparing an encoder with its judge.

The texts cover contractions, all kinds of white space in runs, digits, other scripts, combining
marks, emoji, control and unassigned characters, the special token and parts of it, and long runs
without a space.
"""


@dataclass(frozen=True)
class JoinedIds:
    """Token ids for joined texts, each followed by a special token."""

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    """Number of ids for each text, including its special token."""
    text_bytes: int
    """Size of all texts in UTF-8 bytes."""

    def ids_of(self, number: int) -> list[int]:
        """Return the ids for a single text, without its special token."""
        start = int(self.lengths[:number].sum())
        length = int(self.lengths[number])
        ids: list[int] = self.ids[start : start + length - 1].tolist()
        return ids


def interleave(ascii_ids: JoinedIds, wide_ids: JoinedIds, is_ascii: list[bool]) -> JoinedIds:
    """Merge the ids for ASCII texts and for other texts into the original order.

    `is_ascii` says for each text whether it is ASCII.
    """
    import numpy as np

    mask = np.array(is_ascii)
    lengths = np.empty(len(mask), dtype=np.int64)
    lengths[mask] = ascii_ids.lengths
    lengths[~mask] = wide_ids.lengths
    # Neighbours of the same kind form a run and are copied together. The two kinds alternate.
    run_starts = np.flatnonzero(np.diff(mask, prepend=not mask[0]))
    run_bytes = np.add.reduceat(lengths, run_starts) * ascii_ids.ids.itemsize
    first, second = (ascii_ids, wide_ids) if is_ascii[0] else (wide_ids, ascii_ids)
    runs = [memoryview(b"")] * len(run_bytes)
    runs[::2] = _cut_bytes(first.ids, run_bytes[::2])
    runs[1::2] = _cut_bytes(second.ids, run_bytes[1::2])
    # Joining bytes takes two thirds as long as joining arrays.
    ids = np.frombuffer(b"".join(runs), dtype=ascii_ids.ids.dtype)
    return JoinedIds(ids, lengths, ascii_ids.text_bytes + wide_ids.text_bytes)


def _cut_bytes(ids: NDArray[Any], sizes: NDArray[np.int64]) -> list[memoryview]:
    """Return the bytes in an id array, cut into pieces of the given sizes."""
    import numpy as np

    content = ids.view(np.uint8).data
    ends: list[int] = np.cumsum(sizes).tolist()
    return [content[start:end] for start, end in itertools.pairwise([0, *ends])]


class Fastokens:
    """The fastokens package: exact BPE at several hundred MB/s on one core."""

    def __init__(self, tokenizer_json: str, special_tokens: bool) -> None:
        import fastokens

        self.name = f"fastokens {package_version('fastokens')}"
        self._split = not special_tokens
        self._tokenizer: Any = fastokens.Tokenizer.from_json_str(tokenizer_json)

    def encode_batch(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return all ids in one array, and len(texts) + 1 offsets.

        Text i has ids[offsets[i] : offsets[i + 1]].
        """
        import numpy as np

        ids, offsets = self._tokenizer.encode_batch_flat(texts, False, self._split)
        return np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<u8").astype(np.int64)

    def encode_joined(
        self,
        texts: list[str],
        separator: str,
        separator_id: int,
        dtype: np.dtype[Any],
    ) -> JoinedIds | None:
        """Encode texts, each followed by a special token, as a single input.

        The encoder divides its input at special tokens, so the ids are the same as for separate
        texts, and a long input is encoded faster than many short inputs. Return None if the ids do
        not show where each text ends, because a text is empty or contains the token itself.
        """
        if not all(texts):
            return None
        # A single character beyond ASCII makes a whole Python string wider and slows down its
        # encoding.
        is_ascii = list(map(str.isascii, texts))
        if all(is_ascii) or not any(is_ascii):
            return self._encode_as_one(texts, separator, separator_id, dtype)
        is_wide = map(operator.not_, is_ascii)
        ascii_texts = list(itertools.compress(texts, is_ascii))
        wide_texts = list(itertools.compress(texts, is_wide))
        ascii_ids = self._encode_as_one(ascii_texts, separator, separator_id, dtype)
        wide_ids = self._encode_as_one(wide_texts, separator, separator_id, dtype)
        if ascii_ids is None or wide_ids is None:
            return None
        return interleave(ascii_ids, wide_ids, is_ascii)

    def _encode_as_one(
        self,
        texts: list[str],
        separator: str,
        separator_id: int,
        dtype: np.dtype[Any],
    ) -> JoinedIds | None:
        """Encode texts as a single input, which the encoder processes in the calling thread."""
        import numpy as np

        text = separator.join([*texts, ""])
        encoded, _ = self._tokenizer.encode_batch_flat([text], False, False)
        ids = np.frombuffer(encoded, dtype="<u4").astype(dtype)
        ends = np.flatnonzero(ids == separator_id)
        if len(ends) != len(texts):
            return None
        joined_bytes = len(text) if text.isascii() else len(text.encode())
        text_bytes = joined_bytes - len(separator.encode()) * len(texts)
        return JoinedIds(ids, np.diff(ends, prepend=-1), text_bytes)


class HuggingFace:
    """The package tokenizers, which is the judge, and the encoder if fastokens is not installed."""

    def __init__(self, tokenizer_json: str, special_tokens: bool) -> None:
        from tokenizers import Tokenizer

        self.name = f"tokenizers {package_version('tokenizers')}"
        self.tokenizer = Tokenizer.from_str(tokenizer_json)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = not special_tokens
        self.special = sorted(
            str(token.content) for token in self.tokenizer.get_added_tokens_decoder().values()
        )

    def encode_batch(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return all ids and the offsets, as `Fastokens.encode_batch` does."""
        return _flat(
            [
                encoding.ids
                for encoding in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            ]
        )

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids that are in the vocabulary."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def piece(self, token: int) -> str:
        """Return the text of a single token."""
        return self.decode([token])

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by its name in the vocabulary."""
        token_id: int | None = self.tokenizer.token_to_id(token)
        return token_id


class SentencePiece:
    """A SentencePiece model, which needs the package sentencepiece. The model is its own judge."""

    special: ClassVar[list[str]] = []

    def __init__(self, model: Path) -> None:
        try:
            import sentencepiece  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            raise DataError(TokenMessage.SENTENCEPIECE_MISSING, model=model) from None

        self.name = f"sentencepiece {package_version('sentencepiece')}"
        try:
            self.processor: Any = sentencepiece.SentencePieceProcessor(model_file=str(model))
        except (OSError, RuntimeError) as error:
            raise DataError(TokenMessage.NOT_SENTENCEPIECE, model=model, error=error) from None

    def encode_batch(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return all ids and the offsets, as `Fastokens.encode_batch` does."""
        return _flat(self.processor.encode(texts, out_type=int))

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids that are in the vocabulary."""
        return str(self.processor.decode(ids))

    def piece(self, token: int) -> str:
        """Return the text of a single token."""
        return str(self.processor.id_to_piece(token))

    def token_id(self, token: str) -> int | None:
        """Return the id of a token by its name in the vocabulary."""
        # If the model has no such token, this is the id of the unknown token.
        number = int(self.processor.piece_to_id(token))
        return number if self.piece(number) == token else None


Encoder: TypeAlias = Fastokens | HuggingFace | SentencePiece
"""An encoder that converts texts to ids and adds no tokens at either end."""


def _flat(lists: list[list[int]]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    import numpy as np

    offsets = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum(list(map(len, lists)), out=offsets[1:])
    return np.fromiter(
        itertools.chain.from_iterable(lists), dtype=np.uint32, count=int(offsets[-1])
    ), offsets


@functools.lru_cache(maxsize=2)
def _judge(tokenizer_json: str, special_tokens: bool, name: str) -> HuggingFace:
    """Return the judge for a tokenizer.json, and cache it.

    All encoders for a tokenizer share one judge, which takes 0.1 s to load.
    """
    try:
        return HuggingFace(tokenizer_json, special_tokens)
    except ImportError:
        remedy = "install the data extra: pip install 'gpt3-runbook[data]'"
        raise DataError(TokenMessage.TOKENIZERS_MISSING, remedy=remedy) from None
    except Exception as error:  # noqa: BLE001 - the package raises bare Exception and nothing narrower
        raise DataError(TokenMessage.TOKENIZER_REFUSED, name=name, error=error) from None


def _fast_encoder(tokenizer_json: str, special_tokens: bool, judge: HuggingFace) -> Encoder:
    """Return fastokens if it agrees with the judge on every probe, or else the judge itself."""
    try:
        encoder = Fastokens(tokenizer_json, special_tokens)
    except (
        ImportError,
        ValueError,
    ):  # fastokens is not installed, or does not support this kind of tokenizer.json
        return judge

    compare(encoder, judge, list(PROBES), "the built-in edge texts")
    return encoder


def compare(
    fast: Encoder,
    judge: Encoder,
    texts: list[str],
    where: str,
) -> None:
    """Raise `DataError` if the two encoders give different ids for a text."""
    ids, offsets = fast.encode_batch(texts)
    expected, expected_offsets = judge.encode_batch(texts)
    for number, text in enumerate(texts):
        ours = ids[offsets[number] : offsets[number + 1]].tolist()
        theirs = expected[expected_offsets[number] : expected_offsets[number + 1]].tolist()
        if ours != theirs:
            raise DataError(
                TokenMessage.ENCODERS_DISAGREE,
                fast_name=fast.name,
                judge_name=judge.name,
                text=text[:80],
                where=where,
                ours=ours[:12],
                theirs=theirs[:12],
            )


def use_one_thread() -> None:
    """Limit both encoders' thread pools to one thread, because processes provide the parallelism.

    Call this function before the first text is encoded.

    Each pool reads its environment variable when it is first used. The variable is removed
    immediately afterwards, because jobs that this process starts later must not inherit it.
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


@dataclass
class Tokenizer:
    """A tokenizer, which turns text into ids and back. `load_tokenizer` creates it."""

    name: str
    sha256: dict[str, str]
    encoder: Encoder
    judge: HuggingFace | SentencePiece
    vocabulary: int

    def encode(self, text: str) -> list[int]:
        """Return the ids for a single text, without an end-of-document token."""
        ids: list[int] = self.encoder.encode_batch([text])[0].tolist()
        return ids

    def check_sample(self, text: str, where: str) -> int:
        """Compare the encoder with the judge on a text, and return how many texts were compared."""
        if self.encoder is self.judge:
            return 0
        compare(self.encoder, self.judge, [text], where)
        return 1

    def check_ids(self, text: str, ids: list[int], where: str) -> None:
        """Raise `DataError` if a text encoded separately has ids other than `ids`."""
        alone = self.encode(text)
        if ids != alone:
            raise DataError(
                TokenMessage.ENCODERS_DISAGREE,
                fast_name=f"{self.encoder.name} (joined texts)",
                judge_name=self.encoder.name,
                text=text[:80],
                where=where,
                ours=ids[:12],
                theirs=alone[:12],
            )

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text; incomplete UTF-8 becomes U+FFFD.

        A model may sample an id that exists only to pad the vocabulary. Such an id is shown
        as <id 50300>.
        """
        texts = []
        runs = itertools.groupby(map(int, ids), key=range(self.vocabulary).__contains__)
        for is_known, run in runs:
            texts.append(self.judge.decode(list(run)) if is_known else _unknown(run))
        return "".join(texts)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the text for each token; incomplete characters become U+FFFD."""
        texts = []
        for token_id in map(int, ids):
            is_known = 0 <= token_id < self.vocabulary
            texts.append(self.judge.piece(token_id) if is_known else _unknown([token_id]))

        return texts

    def end_of_document(self, name: str = "") -> int:
        """Find the end-of-document token, which follows each document, and return its id.

        This is the named token, or else the first known one that the vocabulary has. Raise
        `DataError` if the vocabulary has no such token.
        """
        candidates = (name,) if name else EOD_NAMES
        for candidate in candidates:
            token_id = self.judge.token_id(candidate)
            if token_id is not None:
                return token_id

        if name:
            complaint = f"has no token {name!r}"
        else:
            complaint = f"has none of {', '.join(EOD_NAMES)}"

        special = ", ".join(self.judge.special) or "none"
        raise DataError(
            TokenMessage.NO_END_OF_DOCUMENT, name=self.name, complaint=complaint, special=special
        )


def _unknown(ids: Iterable[int]) -> str:
    return "".join(f"<id {token_id}>" for token_id in ids)


def tokenizer_path(name: str) -> Path:
    """Return the tokenizer file, given that file or its folder."""
    path = Path(name).expanduser()
    return path / "tokenizer.json" if path.is_dir() else path


def load_tokenizer(
    name: str = "gpt2", *, special_tokens: bool = False, encoder: str = "auto"
) -> Tokenizer:
    """Return the tokenizer `gpt2`, or the tokenizer in a tokenizer.json or a SentencePiece .model."""
    if name == "gpt2":
        return _gpt2(special_tokens, encoder)
    path = tokenizer_path(name)
    content = _content(path, name)
    sums = {path.name: hashlib.sha256(content).hexdigest()}
    if path.suffix == ".model":
        model = SentencePiece(path)
        return Tokenizer(
            name,
            sums,
            model,
            model,
            int(model.processor.vocab_size()),
        )

    text = content.decode("utf-8", errors="replace")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise DataError(TokenMessage.TOKENIZER_NOT_JSON, path=path, error=error) from None

    # The vocab.json for GPT-2 has a token "model" with a number.
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        if isinstance(document, dict) and "Ġthe" in document:
            hint = " It looks like GPT-2's vocab.json; for that tokenizer, use gpt2."
        else:
            hint = ""

        raise DataError(TokenMessage.NOT_A_TOKENIZER_JSON, path=path, hint=hint)

    judge = _judge(text, special_tokens, str(path))
    if encoder == "auto":
        fast = _fast_encoder(text, special_tokens, judge)
    else:
        fast = judge

    vocabulary = max(judge.tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    return Tokenizer(
        name,
        sums,
        fast,
        judge,
        vocabulary,
    )


@functools.lru_cache(maxsize=4)
def _gpt2(special_tokens: bool, encoder: str) -> Tokenizer:
    """Return the GPT-2 tokenizer.

    The tokenizer is cached, because it is needed often and takes 0.3 s to load.
    """
    text = _gpt2_json()
    judge = _judge(text, special_tokens, "gpt2")
    if encoder == "auto":
        fast = _fast_encoder(text, special_tokens, judge)
    else:
        fast = judge

    tokenizer = Tokenizer(
        "gpt2",
        dict(GPT2_SHA256),
        fast,
        judge,
        GPT2_VOCABULARY,
    )
    # The packages would free their 200,000 strings one by one when the process ends, which takes 20
    # ms.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(tokenizer))
    return tokenizer


def _content(path: Path, name: str) -> bytes:
    # Refuse anything that is not a regular file: reading a pipe would wait forever, and a device
    # has no end.
    if path.exists() and not path.is_file():
        raise DataError(TokenMessage.TOKENIZER_NOT_A_FILE, name=name, path=path)

    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(TokenMessage.NO_SUCH_TOKENIZER, name=name, reason=error.strerror) from None


def _gpt2_json() -> str:
    """Return the GPT-2 tokenizer in the tokenizer.json format.

    The content is built from the two shipped files, after their checksums have been compared.
    """
    content = {}
    for name, expected in GPT2_SHA256.items():
        content[name] = _content(GPT2_FOLDER / name, name)
        sha256 = hashlib.sha256(content[name]).hexdigest()
        if sha256 != expected:
            raise DataError(
                TokenMessage.TOKENIZER_CHANGED,
                gpt2_folder=GPT2_FOLDER / name,
                sha256=sha256,
                expected=expected,
            )

    merges = content["merges.txt"].decode().partition("\n")[2].rstrip("\n")
    merges = merges.replace("\\", "\\\\").replace('"', '\\"').replace("\n", '","')
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    document = {
        "version": "1.0",
        "added_tokens": [{"id": 50256, "content": END_OF_TEXT, **flags, "special": True}],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    # The vocabulary is already JSON, and the merges are nearly so; parsing and writing them again
    # would take a tenth as long as the whole start-up.
    return (
        json.dumps(document)
        .replace('"merges": []', f'"merges": ["{merges}"]', 1)
        .replace('"vocab": {}', '"vocab": ' + content["vocab.json"].decode(), 1)
    )


def tokenizer_files(name: str) -> dict[str, bytes]:
    """Return files, by name, from which `transformers` can load this tokenizer."""
    if name == "gpt2":
        return {"tokenizer.json": _gpt2_json().encode()}
    path = tokenizer_path(name)
    if path.suffix == ".model":
        file_name = "tokenizer.model"
    else:
        file_name = "tokenizer.json"

    settings_files = []
    for settings_file in ("tokenizer_config.json", "special_tokens_map.json"):
        settings_files.append(path.with_name(settings_file))

    return {file_name: _content(path, name)} | {
        settings_file.name: settings_file.read_bytes()
        for settings_file in settings_files
        if settings_file.is_file()
    }

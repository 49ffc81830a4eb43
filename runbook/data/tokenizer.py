"""Tokenizers: GPT-2 from the shipped files, any tokenizer.json, SentencePiece; ids to text and to visible pieces."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook.data.encoders import Encoder, HuggingFace, SentencePiece, choose_encoder, compare
from runbook.errors import DataError

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


class Tokenizer:
    """One vocabulary: text to ids and back. Made by `load_tokenizer`."""

    def __init__(self, name: str, sha256: dict[str, str], encoder: Encoder, judge: Encoder, vocabulary: int) -> None:
        self.name = name
        self.sha256 = sha256
        self.encoder = encoder
        self.judge = judge
        self.vocabulary = vocabulary
        self._tokenizer: Any = judge.tokenizer if isinstance(judge, HuggingFace) else None

    def encode(self, text: str) -> list[int]:
        """The ids of one text, without an end-of-document token."""
        ids, _ = self.encode_batch([text])
        return [int(each) for each in ids]

    @functools.cached_property
    def splits_words(self) -> bool:
        """Whether no token reaches over the border between two words, as with GPT-2's own splitting of text.

        True only for that one: byte-level with its expression, no normalizer, no added token with a space in it.
        """
        if not isinstance(self.judge, HuggingFace):
            return False
        content = json.loads(self.judge.tokenizer.to_str())
        splitter = content.get("pre_tokenizer") or {}
        plain = (
            splitter.get("type") == "ByteLevel" and splitter.get("use_regex") and not splitter.get("add_prefix_space")
        )
        added = content.get("added_tokens") or []
        flags = ("lstrip", "rstrip", "single_word", "normalized")
        simple = all(" " not in each["content"] and not any(each.get(flag) for flag in flags) for each in added)
        return bool(plain and simple and not content.get("normalizer"))

    def encode_batch(self, texts: list[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """All ids in a row, and where each text begins and ends."""
        return self.encoder.encode_batch(texts)

    def check_sample(self, texts: list[str], where: str) -> int:
        """Compare the encoder with the judge on texts of a corpus; how many were compared."""
        if self.encoder is self.judge:
            return 0
        compare(self.encoder, self.judge, texts, where)
        return len(texts)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; what is not whole UTF-8 becomes U+FFFD.

        A model may sample an id between the vocabulary and its padding; it is shown as <id 50300>.
        """
        runs: list[list[int]] = [[]]
        texts = []
        for each in map(int, ids):
            if 0 <= each < self.vocabulary:
                runs[-1].append(each)
            else:
                texts += [self._decode_known(runs.pop()), _outside(each)]
                runs.append([])
        return "".join([*texts, self._decode_known(runs.pop())])

    def pieces(self, ids: Iterable[int]) -> list[str]:
        r"""The text of each token alone; bytes that are part of a longer character are shown as \xNN."""
        return [self._piece(each) if 0 <= each < self.vocabulary else _outside(each) for each in map(int, ids)]

    def _decode_known(self, ids: list[int]) -> str:
        if self._tokenizer is None:
            return str(_sentencepiece(self.encoder).decode(ids))
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def _piece(self, token: int) -> str:
        if self._tokenizer is None:
            return str(_sentencepiece(self.encoder).id_to_piece(token))
        if token in self._special or not self._byte_level:
            return self._special.get(token) or self._decode_known([token])
        letters = byte_letters()
        spelled = bytes(letters[each] for each in str(self._tokenizer.id_to_token(token)))
        return spelled.decode("utf-8", errors="backslashreplace")

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name in the vocabulary."""
        if self._tokenizer is None:
            found = int(_sentencepiece(self.encoder).piece_to_id(token))
            return found if _sentencepiece(self.encoder).id_to_piece(found) == token else None
        found_id: int | None = self._tokenizer.token_to_id(token)
        return found_id

    def end_of_document(self, name: str = "") -> int:
        """The id put after each document: the named token, or the first known name that the vocabulary has."""
        for candidate in (name,) if name else EOD_NAMES:
            if (found := self.token_id(candidate)) is not None:
                return found
        asked = f"has no token {name!r}" if name else f"has none of {', '.join(EOD_NAMES)}"
        special = ", ".join(sorted(self._special.values())) or "none"
        raise DataError(
            f"the tokenizer {self.name} {asked}, which would end each document; its special tokens: {special}. "
            "Name the token (--eod-token), or choose --no-append-eod."
        )

    @functools.cached_property
    def _special(self) -> dict[int, str]:
        if self._tokenizer is None:
            return {}
        added = self._tokenizer.get_added_tokens_decoder()
        return {int(number): str(token.content) for number, token in added.items()}

    @functools.cached_property
    def _byte_level(self) -> bool:
        return "ByteLevel" in repr(self._tokenizer.decoder)


def _outside(token: int) -> str:
    return f"<id {token}>"


def _sentencepiece(encoder: Encoder) -> Any:
    assert isinstance(encoder, SentencePiece)
    return encoder.processor


@functools.cache
def byte_letters() -> dict[str, int]:
    r"""GPT-2's letter for each byte, turned round: printable bytes stand for themselves, others for U+0100 upwards.

    >>> byte_letters()["A"], byte_letters()["\u0120"], len(byte_letters())
    (65, 32, 256)
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}


def load_tokenizer(name: str = "gpt2", *, special_tokens: bool = False, encoder: str = "auto") -> Tokenizer:
    """The tokenizer called `gpt2`, or of a tokenizer.json or SentencePiece .model at a path."""
    if name == "gpt2":
        return _gpt2(special_tokens, encoder)
    path = Path(name).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    content = _content(path, name)
    sums = {path.name: hashlib.sha256(content).hexdigest()}
    if path.suffix == ".model":
        model = SentencePiece(path)
        return Tokenizer(name, sums, model, model, int(model.processor.vocab_size()))
    text = content.decode("utf-8", errors="replace")
    _check_json(text, path)
    fast, judge = choose_encoder(encoder, text, special_tokens)
    vocabulary = max(judge.tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    return Tokenizer(name, sums, fast, judge, vocabulary)


@functools.lru_cache(maxsize=4)
def _gpt2(special_tokens: bool, encoder: str) -> Tokenizer:
    """Kept: it is asked for again and again, and takes 0.3 s to load."""
    fast, judge = choose_encoder(encoder, _gpt2_json(), special_tokens)
    return Tokenizer("gpt2", dict(GPT2_SHA256), fast, judge, GPT2_VOCABULARY)


def _content(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"tokenizer {name!r} is neither gpt2 nor a file that can be read ({error.strerror}). "
            "Give gpt2, or the path of a tokenizer.json or of a SentencePiece .model."
        ) from None


def _check_json(text: str, path: Path) -> None:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error}); a tokenizer.json of Hugging Face is needed") from None
    if not isinstance(content, dict) or "model" not in content:
        hint = " It looks like GPT-2's vocab.json: for that one, give gpt2." if "Ġthe" in text[:1_000_000] else ""
        raise DataError(f"{path} has no key `model`, so it is not a Hugging Face tokenizer.json.{hint}")
    try:
        from tokenizers import Tokenizer as HuggingFaceTokenizer
    except ImportError:
        return  # choose_encoder says so
    try:
        HuggingFaceTokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001 - the package raises bare Exception and nothing narrower
        raise DataError(f"{path} is refused by the tokenizers package: {error}") from None


def _gpt2_json() -> str:
    """GPT-2 as one tokenizer.json, from the two shipped files, whose checksums are compared first."""
    content = {}
    for file, expected in GPT2_SHA256.items():
        content[file] = _content(GPT2_FOLDER / file, file)
        if (found := hashlib.sha256(content[file]).hexdigest()) != expected:
            raise DataError(
                f"{GPT2_FOLDER / file} has sha256 {found}, and GPT-2's has {expected}: "
                "the file was changed. Install the package anew."
            )
    merges = [line for line in content["merges.txt"].decode().split("\n")[1:] if line]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 50256, "content": END_OF_TEXT, **flags, "special": True}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model | {"vocab": {}, "merges": merges},
    }
    # The vocabulary is JSON already: reading and writing it again would take a tenth of what a start takes.
    return json.dumps(document).replace('"vocab": {}', '"vocab": ' + content["vocab.json"].decode(), 1)


def encode(text: str, tokenizer: str = "gpt2", *, special_tokens: bool = False) -> list[int]:
    """The ids of a prompt."""
    return load_tokenizer(tokenizer, special_tokens=special_tokens).encode(text)


def decode(ids: Iterable[int], tokenizer: str = "gpt2") -> str:
    """The text of a sample."""
    return load_tokenizer(tokenizer).decode(ids)


def pieces(ids: Iterable[int], tokenizer: str = "gpt2") -> list[str]:
    """The text of each token of a sample, for showing where tokens begin and end."""
    return load_tokenizer(tokenizer).pieces(ids)

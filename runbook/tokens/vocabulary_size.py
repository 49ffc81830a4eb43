"""Reads the vocabulary size from the tokenizer file, without a tokenizer package."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runbook.core.errors import DataError
from runbook.tokens.messages import TokenMessage
from runbook.tokens.tokenizer import GPT2_VOCABULARY, tokenizer_path

_PIECES_FIELD = 1
"""Field number for `repeated SentencePiece pieces` in ModelProto (sentencepiece_model.proto)."""
_VARINT = 0
_FIXED_64 = 1
_LENGTH = 2
_FIXED_32 = 5


def read_vocabulary_size(name: str) -> int | None:
    """Return the largest token id plus one, or None if the tokenizer file is not available.

    Raise `DataError` if the file exists and is neither a tokenizer.json nor a SentencePiece model.
    """
    if name == "gpt2":
        return GPT2_VOCABULARY
    path = tokenizer_path(name)
    try:
        content = path.read_bytes()
    except OSError:
        return None

    if path.suffix == ".model":
        return _count_pieces(content, path)
    return _largest_id(content, path) + 1


def _largest_id(content: bytes, path: Path) -> int:
    """Return the largest id in a tokenizer.json, including special tokens."""
    try:
        document: Any = json.loads(content)
        vocabulary = document["model"]["vocab"]
        # BPE and WordPiece map tokens to ids; Unigram lists tokens by ascending id.
        is_list = isinstance(vocabulary, list)
        ids = range(len(vocabulary)) if is_list else vocabulary.values()
        added = [int(token["id"]) for token in document.get("added_tokens") or ()]
        return max([*map(int, ids), *added])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            TokenMessage.NO_VOCABULARY, path=path, name=type(error).__name__, error=error
        ) from None


def _count_pieces(content: bytes, path: Path) -> int:
    """Return the number of pieces in a SentencePiece model. The position of a piece is its id."""
    try:
        pieces = sum(number == _PIECES_FIELD for number in _field_numbers(content))
    except IndexError:
        raise DataError(TokenMessage.MODEL_CUT_SHORT, path=path) from None

    if not pieces:
        raise DataError(TokenMessage.MODEL_WITHOUT_PIECES, path=path)
    return pieces


def _field_numbers(content: bytes) -> Iterator[int]:
    """Yield the field numbers at the top level of a protobuf message.

    Raise `IndexError` if the message is truncated or is not a protobuf.
    """
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        kind = key & 7
        if kind == _VARINT:
            _, position = _varint(content, position)
        elif kind == _FIXED_64:
            position += 8
        elif kind == _LENGTH:
            length, position = _varint(content, position)
            position += length
        elif kind == _FIXED_32:
            position += 4
        else:
            raise IndexError(position)

        if position > len(content):
            raise IndexError(position)
        yield key >> 3


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """Return a varint (seven bits per byte, lowest first) and the position that follows it."""
    value = 0
    shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise IndexError(position)

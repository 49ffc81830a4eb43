"""Cuts words of megabytes, such as a genome, between two tokens without changing their ids.

Encoders need about 45 bytes of memory per character in a word, and a word has no border at which
`tokens.huge_text` could cut. It can still be cut between two tokens. In byte-pair encoding, a token
sequence encodes a word exactly if any two neighbors encode their own text: the first merge that
crosses a border between two tokens sees only these two tokens, because all merges before it stay
inside one token. Two parts of a word can therefore be encoded and joined unchanged if the last
token in the first and the first token in the second are such neighbors. If they are not, the parts
are encoded as one.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from runbook.tokens.tokenizer import HuggingFace, Tokenizer

BLOCK = 32 << 10
"""Number of characters between two cuts in a word. Shorter words are not cut."""
WINDOW = 1000
"""How far from the middle of a block a border may be chosen, in characters."""
_PROBE = 64
"""Number of characters that must be letters before a whole block is tested."""
_PLAIN_MODEL = {
    "type": "BPE",
    "dropout": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "ignore_merges": False,
}
"""Settings for models to which the rule about neighbors applies."""
_WORD_RULE = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
"""Settings for the word rule in GPT-2, by which letters in a row are always in the same word."""


def can_cut_words(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer is a plain byte-level BPE, whose words may be cut."""
    judge = tokenizer.judge
    if not isinstance(judge, HuggingFace):
        return False
    content: dict[str, Any] = json.loads(judge.tokenizer.to_str())
    model = content["model"]
    words = content["pre_tokenizer"] or {}
    return (
        content["normalizer"] is None
        and {name: model.get(name) for name in _PLAIN_MODEL} == _PLAIN_MODEL
        and {name: words.get(name) for name in _WORD_RULE} == _WORD_RULE
        # An added token is found inside a word, too.
        and not any(_is_word(token["content"]) for token in content["added_tokens"])
    )


def cut_long_words(pieces: Iterable[str], tokenizer: Tokenizer) -> Iterator[str]:
    """Yield pieces of a text, with words longer than two blocks cut."""
    for piece in pieces:
        borders = [_token_border(piece, middle, tokenizer) for middle in _middles(piece)]
        if borders:
            yield from _joined_where_needed(piece, borders, tokenizer)
        else:
            yield piece


def _middles(text: str) -> Iterator[int]:
    """Yield the middle of each text block that consists of ASCII letters."""
    for start in range(0, len(text) - BLOCK + 1, BLOCK):
        if _is_word(text[start : start + _PROBE]) and _is_word(text[start : start + BLOCK]):
            yield start + BLOCK // 2


def _is_word(text: str) -> bool:
    return text.isascii() and text.isalpha()


def _token_border(text: str, middle: int, tokenizer: Tokenizer) -> int:
    """Return a position near the middle of a block at which a token probably ends."""
    start = middle - WINDOW
    end = start
    for token in tokenizer.encode(text[start : middle + WINDOW]):
        end += len(tokenizer.judge.piece(token))
        if end >= middle:
            break

    return end


def _joined_where_needed(text: str, borders: list[int], tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the text cut at these borders, except where a cut would change an id."""
    held = ""
    last_token = -1
    for start, end in zip([0, *borders], [*borders, len(text)], strict=True):
        part = text[start:end]
        ids = tokenizer.encode(part)
        if held and not _are_neighbors(last_token, ids[0], tokenizer):
            held += part
        else:
            if held:
                yield held
            held = part

        last_token = ids[-1] if held == part else tokenizer.encode(held)[-1]

    yield held


def _are_neighbors(left: int, right: int, tokenizer: Tokenizer) -> bool:
    """Return whether two tokens inside a word are the encoding of their own text."""
    text = tokenizer.judge.piece(left) + tokenizer.judge.piece(right)
    return _is_word(text) and tokenizer.encode(text) == [left, right]

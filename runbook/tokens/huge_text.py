"""Cuts of a huge document that leave the ids of the whole document."""

import json
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

from runbook.tokens.tokenizer import PROBES, Encoder, Fastokens, HuggingFace, Tokenizer

FAST_PIECE = 4 << 20
"""Characters that fastokens encodes at once: it needs about as much memory as the text."""
PIECE = 256 << 10
"""Characters for other encoders, which make Python objects of every token."""
WINDOW = 2000
"""Characters on either side of a border that are encoded together and apart, and must give the same
ids.
"""
_BORDER = re.compile(r" [A-Za-z]+(?= [A-Za-z])")
_CROSSES_BORDER = re.compile("[A-Za-z][\u0120\u2581 ]")
"""A token with a letter before a space: as byte-level vocabularies (U+0120), SentencePiece (U+2581)
or plain ones have it. Where no token is such, no merge and no best path reaches over the border,
whatever comes before and after it.
"""
_FLAGS = ("lstrip", "rstrip", "single_word")


class TextCut(StrEnum):
    """How a text is cut between a word and the space after it."""

    NEVER = "never"
    """A token may reach over the border: the text is encoded as a whole."""
    BEFORE_SPACE = "before the space"
    """The next piece begins with its space."""
    INSTEAD_OF_SPACE = "instead of the space"
    """The next piece begins with its word: the tokenizer itself puts a space before every text."""


def cut_of(tokenizer: Tokenizer) -> TextCut:
    """Return how texts may be cut for a tokenizer.

    Its vocabulary decides, and what it makes of the built-in edge texts.
    """
    if _may_cross(tokenizer):
        return TextCut.NEVER
    for cut in (TextCut.BEFORE_SPACE, TextCut.INSTEAD_OF_SPACE):
        if all(
            is_exact(tokenizer.encoder, cut, f"{text} and so", f" on it went {text}")
            for text in PROBES
        ):
            return cut

    return TextCut.NEVER


def is_exact(
    encoder: Encoder,
    cut: TextCut,
    before: str,
    after: str,
) -> bool:
    """Return whether two texts, cut apart, have the ids that they have together."""
    if cut is TextCut.INSTEAD_OF_SPACE:
        after_cut = after.removeprefix(" ")
    else:
        after_cut = after

    together, _ = encoder.encode_batch([before + after])
    apart, _ = encoder.encode_batch([before, after_cut])
    return bool(together.tolist() == apart.tolist())


def cut_text(parts: Iterable[str], encoder: Encoder, cut: TextCut) -> Iterator[str]:
    """Yield a text, which comes in parts, in the pieces that are encoded one after the other.

    Every border is tried with the text around it first; one that would change an id is passed over.
    """
    if cut is TextCut.NEVER:
        yield "".join(parts)
        return

    size = FAST_PIECE if isinstance(encoder, Fastokens) else PIECE
    text = ""
    searched = 0
    for part in parts:
        text += part
        while end := _border(text, max(size, searched), encoder, cut):
            yield text[:end]
            if cut is TextCut.INSTEAD_OF_SPACE:
                text = text[end + 1 :]
            else:
                text = text[end:]

            searched = 0

        searched = max(0, len(text) - WINDOW)

    if text:
        yield text


def _border(
    text: str,
    start: int,
    encoder: Encoder,
    cut: TextCut,
) -> int:
    """Return the end of the first piece that ends behind `start`.

    0 if there is none in what is there so far.
    """
    for border in _BORDER.finditer(text, start):
        end = border.end()
        if len(text) - end < WINDOW:
            # The text on its right is not all there
            return 0

        if is_exact(encoder, cut, text[max(0, end - WINDOW) : end], text[end : end + WINDOW]):
            return end

    return 0


def _may_cross(tokenizer: Tokenizer) -> bool:
    """Return whether something may reach over a border between two pieces.

    It may be a token of the vocabulary, or what the tokenizer does to a whole text.
    """
    judge = tokenizer.judge
    if not isinstance(judge, HuggingFace):
        size = tokenizer.vocabulary
        tokens = (str(judge.processor.id_to_piece(number)) for number in range(size))
        return any(map(_CROSSES_BORDER.search, tokens))

    content: dict[str, Any] = json.loads(judge.tokenizer.to_str())
    added = content["added_tokens"]
    if content["model"].get("dropout") or any(any(map(token.get, _FLAGS)) for token in added):
        return True
    return any(map(_CROSSES_BORDER.search, judge.tokenizer.get_vocab(with_added_tokens=True)))

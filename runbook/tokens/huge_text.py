"""Cuts huge documents into pieces without changing their token ids."""

import json
import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

from runbook.tokens.tokenizer import PROBES, Encoder, Fastokens, HuggingFace, Tokenizer

FAST_PIECE = 4 << 20
"""How many characters fastokens encodes per call. It needs about as much memory as the text itself.
"""
PIECE = 256 << 10
"""Number of characters per call for other encoders, which create Python objects for every token."""
WINDOW = 2000
"""Number of characters to test on each side of a cut.

Both sides must give the same ids whether they are encoded as a single text or as two texts.
"""
_BORDER = re.compile(r" [A-Za-z]+(?= [A-Za-z])")
_CROSSES_BORDER = re.compile("[A-Za-z][\u0120\u2581 ]")
"""A token that contains a letter before a space, in the forms used in vocabularies.

The space is U+0120 in byte-level vocabularies, U+2581 in SentencePiece, or a plain space. If no
token matches, neither a merge nor a best path crosses the border, whatever the surrounding text is.
"""
_FLAGS = ("lstrip", "rstrip", "single_word")


class TextCut(StrEnum):
    """How a text is cut at the border between a word and the following space."""

    NEVER = "never"
    """A token may cross the border, so the text is not cut."""
    BEFORE_SPACE = "before the space"
    """The next piece begins with the space."""
    INSTEAD_OF_SPACE = "instead of the space"
    """The next piece begins with the word, because the tokenizer adds a space before every text."""


def cut_of(tokenizer: Tokenizer) -> TextCut:
    """Return how texts may be cut for a tokenizer.

    The result depends on the tokenizer vocabulary, and on the ids given by the tokenizer for the
    built-in edge texts.
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
    """Return whether two texts give the same ids when encoded separately and when joined."""
    if cut is TextCut.INSTEAD_OF_SPACE:
        after_cut = after.removeprefix(" ")
    else:
        after_cut = after

    together, _ = encoder.encode_batch([before + after])
    apart, _ = encoder.encode_batch([before, after_cut])
    return bool(together.tolist() == apart.tolist())


def cut_text(parts: Iterable[str], encoder: Encoder, cut: TextCut) -> Iterator[str]:
    """Cut a text that arrives in parts, and yield pieces to be encoded one after another.

    Every border is first tested with the text around it, and is skipped if a cut there would change
    an id.
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
    """Return the first position after `start` where a piece may end.

    Return 0 if the text read so far contains no place to cut.
    """
    for border in _BORDER.finditer(text, start):
        end = border.end()
        if len(text) - end < WINDOW:
            # The text to the right of the border has not been read completely.
            return 0

        if is_exact(encoder, cut, text[max(0, end - WINDOW) : end], text[end : end + WINDOW]):
            return end

    return 0


def _may_cross(tokenizer: Tokenizer) -> bool:
    """Return whether a token or a rule may cross a border between two pieces.

    It may be a token in the vocabulary, or a rule that the tokenizer applies to a whole text.
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

"""Text to verified .bin/.idx: sources, the fused pipeline, indexed files."""

from __future__ import annotations

from runbook.data.indexed import IndexedReader
from runbook.data.options import Output, TokenizeOptions
from runbook.data.tokenizer import decode, encode, load_tokenizer, pieces

__all__ = ["IndexedReader", "Output", "TokenizeOptions", "decode", "encode", "load_tokenizer", "pieces"]

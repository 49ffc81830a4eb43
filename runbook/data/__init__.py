"""Text to verified .bin/.idx: sources, the fused pipeline, indexed files."""

from __future__ import annotations

from runbook.data.indexed import IndexedReader
from runbook.data.manifest import Manifest, read_manifest
from runbook.data.options import Output, TokenizeOptions
from runbook.data.pipeline import prepare
from runbook.data.progress import Progress
from runbook.data.samples import Document, show
from runbook.data.tokenizer import decode, encode, load_tokenizer, pieces
from runbook.data.verification import verify

__all__ = [
    "Document",
    "IndexedReader",
    "Manifest",
    "Output",
    "Progress",
    "TokenizeOptions",
    "decode",
    "encode",
    "load_tokenizer",
    "pieces",
    "prepare",
    "read_manifest",
    "show",
    "verify",
]

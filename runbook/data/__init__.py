"""Text to verified .bin/.idx: sources, the fused pipeline, indexed files.

Names are imported on first use: a worker process starts without the plan and the parameters.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runbook.data.blend import blend_checks, token_weights
    from runbook.data.indexed import IndexedReader
    from runbook.data.manifest import Manifest, read_manifest
    from runbook.data.options import Output, TokenizeOptions
    from runbook.data.pipeline import prepare, prepare_share
    from runbook.data.progress import Progress
    from runbook.data.samples import Document, show
    from runbook.data.sources import dataset_files, dataset_folder, token_prefixes
    from runbook.data.tokenizer import decode, encode, load_tokenizer, pieces
    from runbook.data.verification import verify

_HOMES = {
    "blend": ("blend_checks", "token_weights"),
    "indexed": ("IndexedReader",),
    "manifest": ("Manifest", "read_manifest"),
    "options": ("Output", "TokenizeOptions"),
    "pipeline": ("prepare", "prepare_share"),
    "progress": ("Progress",),
    "samples": ("Document", "show"),
    "sources": ("dataset_files", "dataset_folder", "token_prefixes"),
    "tokenizer": ("decode", "encode", "load_tokenizer", "pieces"),
    "verification": ("verify",),
}

__all__ = [
    "Document",
    "IndexedReader",
    "Manifest",
    "Output",
    "Progress",
    "TokenizeOptions",
    "blend_checks",
    "dataset_files",
    "dataset_folder",
    "decode",
    "encode",
    "load_tokenizer",
    "pieces",
    "prepare",
    "prepare_share",
    "read_manifest",
    "show",
    "token_prefixes",
    "token_weights",
    "verify",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"runbook.data.{module}"), name)
    raise AttributeError(f"runbook.data has no {name!r}")

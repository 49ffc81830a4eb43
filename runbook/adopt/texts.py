"""Which text a document trains on, by the paths of its token files."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.adopt.findings import Findings
from runbook.adopt.marks import Word

_KNOWN = {"slimpajama": "slimpajama", "pile": "the-pile", "oscar": "oscar-1GB", "my-gpt2": "oscar-1GB"}
"""Datasets of the catalogue by a word of their files' names."""


def data_path(values: Sequence[Word], findings: Findings) -> None:
    """Where token files lie: a name of the catalogue where it tells one, else files that are there already."""
    path, paths = values[-1], " ".join(value.shown for value in values)
    blend = _blend(values)
    if len(blend) > 1:
        weights = ", ".join(f"{name} {weight:g}" for name, weight in blend.items())
        why = f"name each in params/datasets.yaml (kind: tokenized, a folder of its own) and set data.blend: {weights}"
        findings.take("data.dataset", "tokenized", path.line, "--data-path", over=False)
        findings.leave(path.line, f"token files {paths[:80]}", why)
        return
    if dataset := _catalogued(paths):
        findings.take("data.dataset", dataset, path.line, "the token files' name", over=False)
        findings.does(path.line, f"token files {paths[:80]}", f"data.dataset: {dataset} knows its files")
        return
    findings.take("data.dataset", "tokenized", path.line, "--data-path", over=False)
    folder = path.text.rpartition("/")[0]
    if path.known and folder.startswith("/") and len(values) < 3:
        findings.take("data.folder", folder, path.line, "--data-path")
    else:
        findings.leave(path.line, f"token files {paths[:80]}", "set data.folder to the folder that holds them")


def _catalogued(path: str) -> str:
    return next((dataset for word, dataset in _KNOWN.items() if word in path.lower()), "")


def _blend(values: Sequence[Word]) -> dict[str, float]:
    """Weight of each text, where weights and paths take turns; files of one dataset are one text."""
    prefixes = [value.text for value in values[1::2]]
    try:
        weights = [float(value.text) for value in values[::2]]
    except ValueError:
        return {}
    shares: dict[str, float] = {}
    for weight, prefix in zip(weights, prefixes, strict=False):
        file = prefix.rpartition("/")[2].removesuffix("_text_document").lower()
        name = _catalogued(prefix) or re.sub(r"[^a-z0-9]+", "-", file).strip("-")
        shares[name] = shares.get(name, 0.0) + weight
    return shares

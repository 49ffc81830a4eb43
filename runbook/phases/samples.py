"""What a model wrote: ids of samples.jsonl as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runbook.data.tokenizer import decode


def rows(folder: Path, spec: Mapping[str, Any], tokenizer: str) -> list[dict[str, Any]]:
    """One row for each sample: at which iteration, the prompt, its continuation."""
    path = folder / spec["log"]["samples"]
    if not path.exists():
        return []
    found = {row["iteration"]: row for row in map(json.loads, path.read_text().splitlines())}
    return [
        {
            "after iteration": iteration,
            "prompt": decode(row["prompt_ids"], tokenizer),
            "continuation": decode(row["ids"], tokenizer),
        }
        for iteration, row in sorted(found.items())
    ]

"""What a model wrote: ids of samples.jsonl as text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runbook.data.tokenizer import decode
from runbook.phases.tail import read_lines


def rows(folder: Path, spec: Mapping[str, Any], tokenizer: str) -> list[dict[str, Any]]:
    """One row for each sample: at which iteration, the prompt, its continuation."""
    path = folder / spec["log"]["samples"]
    if not path.exists():
        return []
    found = {row["iteration"]: row for row in read_lines(path)}
    return [
        {
            "after iteration": iteration,
            "prompt": decode(row["prompt_ids"], tokenizer),
            "continuation": decode(row["ids"], tokenizer),
        }
        for iteration, row in sorted(found.items())
    ]

"""PyTorch's flight recorder: the newest collectives of a rank's process groups, kept where the rank hangs."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from runbook.training.ranks import on_gpu

ENTRIES_KEPT = 100  # of the newest collectives, and all under way: a file has some 50 kB, where all have a megabyte


def switch_on(folder: Path) -> None:
    """Let NCCL's groups record, and PyTorch dump on their time-out (a pickle, which nothing here reads).

    The names are those of torch 2.10 to 2.13. Call it before the groups are made; what the job has set stays.
    """
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(folder / "torch-collectives-"))
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


def write_record(path: Path) -> str:
    """Write this rank's record as JSON; what it shows, empty where torch has none or one that cannot be read.

    Whatever form a version of torch gives it: the thread that finds hung ranks must not end with it.
    """
    from torch._C import _distributed_c10d

    dump = getattr(_distributed_c10d, f"_dump_{'nccl' if on_gpu() else 'fr'}_trace_json", lambda: "{}")
    with contextlib.suppress(OSError, RuntimeError, AttributeError, KeyError, TypeError, ValueError):
        record = json.loads(dump())
        entries = record.get("entries") or []
        record["entries"] = [one for one in entries[:-ENTRIES_KEPT] if _is_under_way(one)] + entries[-ENTRIES_KEPT:]
        with contextlib.suppress(OSError):  # what it shows is said all the same
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record), "utf-8")
        return describe(entries)
    return ""


def describe(entries: list[Any]) -> str:
    """The oldest collective that is under way and the newest that is done."""
    under_way = [f"in {_named(entry)} ({entry['state']})" for entry in entries if _is_under_way(entry)]
    done = [f"after {_named(entry)}" for entry in entries if not _is_under_way(entry)]
    return ", ".join([*(under_way or ["in no collective"])[:1], *done[-1:]]) if entries else ""


def _is_under_way(entry: Any) -> bool:
    return not entry["retired"] and entry["state"] != "completed"


def _named(entry: Any) -> str:
    number, (group, purpose) = entry["p2p_seq_id" if entry["is_p2p"] else "collective_seq_id"], entry["process_group"]
    return f"{entry['profiling_name']} {number} of group {group} ({purpose})"

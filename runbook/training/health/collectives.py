"""Collectives of a rank: how many it has entered, by process group, and the newest in PyTorch's flight recorder."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from runbook.training.ranks import on_gpu

_COLLECTIVES = re.compile("gather|reduce|scatter|broadcast|barrier|all_?to_?all")
"""Methods of torch's ProcessGroup; whatever Python calls, megatron-core and DeepSpeed too, passes one of them."""

_entered: dict[str, int] = {}
_inside: list[str] = []
_keys: dict[tuple[str, str, int], str] = {}


def count_entries() -> None:
    """Count from now on, whatever the backend; a second call does nothing."""
    from torch.distributed import ProcessGroup

    if hasattr(ProcessGroup.allreduce, "__wrapped__"):
        return
    for name in filter(_COLLECTIVES.search, dir(ProcessGroup)):
        setattr(ProcessGroup, name, _counting(getattr(ProcessGroup, name)))
    for name in ("send", "recv"):
        setattr(ProcessGroup, name, _counting_messages(getattr(ProcessGroup, name), name))


def _counting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def counted(group: Any, *arguments: Any, **options: Any) -> Any:
        name = group.group_name
        _entered[name] = _entered.get(name, 0) + 1
        _inside.append(name)
        try:
            return method(group, *arguments, **options)
        finally:
            _inside.pop()

    return counted


def _counting_messages(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def counted(group: Any, tensors: Any, peer: int, *arguments: Any, **options: Any) -> Any:
        if (known := (group.group_name, name, peer)) not in _keys:
            from torch.distributed import get_global_rank, get_rank

            _keys[known] = message_key(known[0], name, get_rank(), get_global_rank(group, peer))
        _entered[_keys[known]] = _entered.get(_keys[known], 0) + 1
        return method(group, tensors, peer, *arguments, **options)

    return counted


def message_key(group: str, name: str, own: int, peer: int) -> str:
    """Name under which a rank counts its messages to or from another: as `recv` on one side, `send` on the other.

    >>> message_key("3", "send", 0, 4), message_key("3", "recv", 4, 0)
    ('send 3 0>4', 'recv 3 0>4')
    """
    return f"{name} {group} {own}>{peer}" if name == "send" else f"{name} {group} {peer}>{own}"


def is_inside() -> bool:
    """Whether this rank has begun a collective that has not taken its tensors: it should last microseconds."""
    return bool(_inside)


def entered() -> dict[str, int]:
    """Collectives by group, 0 for a group of this rank's that it has not used, and messages by direction."""
    counts = dict.fromkeys(_group_names(), 0)
    counts.update(list(_entered.items()))
    return counts


def clone_store() -> Any:
    """Another connection to the store at which the ranks met."""
    from torch.distributed import distributed_c10d

    store: Any = distributed_c10d._get_default_store()
    return store.clone()


def raise_timeouts(seconds: float) -> None:
    """Let every wait of this rank's groups last so long."""
    from torch.distributed import distributed_c10d

    for group in list(distributed_c10d._world.pg_names):
        with contextlib.suppress(ValueError, RuntimeError):
            distributed_c10d._set_pg_timeout(timedelta(seconds=seconds), group)


def _group_names() -> list[str]:
    from torch.distributed import distributed_c10d

    with contextlib.suppress(RuntimeError):  # a group is made at this moment
        return list(distributed_c10d._world.pg_names.values())
    return []


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

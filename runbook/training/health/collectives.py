"""How many collectives and messages this rank has entered, by process group: who lags is kept from its next one."""

import contextlib
import functools
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

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

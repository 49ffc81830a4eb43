"""How long DeepSpeed's sums and gatherings take on a CPU: a clock at its one door to torch.distributed."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

COLLECTIVES = (
    "all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor",
    "all_gather", "all_gather_base", "all_gather_into_tensor", "all_gather_coalesced",
)  # fmt: skip
"""Gradients brought together, and the weights of ZeRO 3; what pipeline stages send one another is not among them."""


class Clock:
    """Counts the seconds of the collectives that go through a backend of `deepspeed.comm`, waiting included."""

    def __init__(self, backend: Any) -> None:
        self.seconds = 0.0
        self._depth = 0
        for name in COLLECTIVES:
            if hasattr(backend, name):
                setattr(backend, name, self._timed(getattr(backend, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*arguments: Any, **options: Any) -> Any:
            answer = self._count(lambda: call(*arguments, **options))
            return _Handle(answer, self._count) if hasattr(answer, "wait") else answer

        return timed

    def _count(self, action: Callable[[], Any]) -> Any:
        """Do it; one that is part of another is counted once."""
        self._depth += 1
        begun = time.monotonic()
        try:
            return action()
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.seconds += time.monotonic() - begun


class _Handle:
    """A collective on its way; waiting for its end is counted too."""

    def __init__(self, work: Any, count: Callable[[Callable[[], Any]], Any]) -> None:
        self._work = work
        self._count = count

    def wait(self, *arguments: Any) -> Any:
        """As the handle's own."""
        return self._count(lambda: self._work.wait(*arguments))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

"""Seconds of a step's parts: by the host's clock on a CPU, by events in the stream of a GPU."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

DATA, COMPUTE = "data_wait_seconds", "forward_backward_seconds"  # waiting for data and communication are inside it
COMMUNICATION, OPTIMIZER = "communication_seconds", "optimizer_seconds"


class StepClock:
    """The time at the borders of a step's parts.

    The host only queues what a GPU has to do: its clock says nothing of how long that takes. There a border is an event
    in the stream. Events are read where the loop has waited for the GPU anyway, so that they make nobody wait.
    """

    def __init__(self, make_event: Callable[[], Any] | None = None) -> None:
        self._make_event = make_event  # of the GPU, with `record` and `elapsed_time` in ms; None: the host's clock
        self.is_late = make_event is not None  # a part can be read only once the GPU has passed it
        self._spans: dict[str, list[tuple[Any, Any]]] = {}
        self._running: set[str] = set()

    @contextlib.contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Count the body; a body within another of the same part is counted once."""
        start, is_outermost = self._mark(), part not in self._running
        self._running.add(part)
        try:
            yield
        finally:
            if is_outermost:
                self._running.discard(part)
                self._spans.setdefault(part, []).append((start, self._mark()))

    def timed(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, counted; where it returns a handle, waiting for the handle is counted too."""

        @functools.wraps(collective)
        def timed(*arguments: Any, **options: Any) -> Any:
            with self.during(COMMUNICATION):
                answer = collective(*arguments, **options)
            return _TimedHandle(answer, self) if hasattr(answer, "wait") else answer

        return timed

    def forget(self, *parts: str) -> None:
        """Drop what was counted of these parts."""
        self._spans = {part: spans for part, spans in self._spans.items() if part not in parts}

    def take(self) -> dict[str, float]:
        """Seconds of each part since the last time; on a GPU the stream must have passed them."""
        spans, self._spans = self._spans, {}
        return {part: sum(self._seconds(*span) for span in pairs) for part, pairs in spans.items()}

    def _mark(self) -> Any:
        """The moment at which the rank, or the stream of its GPU, comes here."""
        if self._make_event is None:
            return time.monotonic()
        event = self._make_event()
        event.record()
        return event

    def _seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end) / 1000 if self.is_late else end - start)


class _TimedHandle:
    """A collective under way."""

    def __init__(self, work: Any, clock: StepClock) -> None:
        self._work = work
        self.wait = clock.timed(work.wait)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

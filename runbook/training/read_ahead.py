"""Batches read ahead: a thread reads the next micro-batches while the training computes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from runbook.training.samples import Batch, BatchReader

PIECE_TOKENS, PIECE_MICRO_BATCHES = 2**16, 32
"""The thread wakes once for a piece of at most so much; at most two pieces (of 1.8 MB) are held."""


class ReadAhead:
    """Micro-batches of a training, read by a thread while those before are computed; for a GPU into pinned memory.

    A training takes its samples one after the other, whatever its batch ramp. Where it leaves some out, or goes back,
    reading begins again at that place. An error of the data is raised where the micro-batch is asked for. The thread
    reads no further than sample `end`, and never keeps the process from ending.
    """

    def __init__(self, reader: BatchReader, tokens: int, end: int) -> None:
        """`tokens`: of a micro-batch."""
        self.piece = max(1, min(PIECE_MICRO_BATCHES, PIECE_TOKENS // tokens))
        self._reader, self._end = reader, end
        self._stride = reader.share.micro * reader.share.copies
        self._dataset, self._next, self._ahead = None, 0, 0  # ahead: micro-batches that are ordered and not taken
        self._batches: SimpleQueue[Batch | Exception] = SimpleQueue()
        self._orders: SimpleQueue[tuple[SimpleQueue[Batch | Exception], Any, int, int] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._read, name="read ahead", daemon=True)

    def step(self, dataset: Any, consumed_samples: int, num_microbatches: int) -> Iterator[Batch]:
        """The micro-batches of one step."""
        for number in range(num_microbatches):
            start = consumed_samples + number * self._stride
            yield self._reader.deliver(partial(self._wait_for_batch, dataset, start))

    def close(self) -> None:
        """End the thread after the micro-batch that it reads, without waiting for it."""
        self._batches = SimpleQueue()
        self._orders.put(None)

    def _wait_for_batch(self, dataset: Any, start: int) -> Batch:
        if self._thread.ident is None:
            self._thread.start()
        if dataset is not self._dataset or start != self._next or not self._ahead:
            self._dataset, self._batches, self._ahead = dataset, SimpleQueue(), 0
        for _ in range(2):  # pieces, as far as the training goes; beyond its end what is asked for
            place = start + self._ahead * self._stride
            number = min(self.piece, (self._end - place) // self._stride) if self._ahead <= self.piece else 0
            if number := max(number, int(not self._ahead)):
                self._orders.put((self._batches, dataset, place, number))
                self._ahead += number
        batch = self._batches.get()
        if isinstance(batch, Exception):
            self._ahead = 0
            raise batch
        self._next, self._ahead = start + self._stride, self._ahead - 1
        return batch

    def _read(self) -> None:
        on_gpu = self._reader.device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self._reader.device)  # each thread has its own, and memory is pinned for it
        while order := self._orders.get():
            batches, dataset, *place = order
            try:
                for indices in self._reader.share.indices(*place):
                    if batches is not self._batches:
                        break  # the training is elsewhere, or ends
                    batch = self._reader.read(dataset, indices)
                    batches.put({key: value.pin_memory() for key, value in batch.items()} if on_gpu else batch)
            except Exception as error:  # noqa: BLE001 - raised again by the step that needs it
                batches.put(error)

"""Reads the micro-batches for a rank; during training, a thread reads them ahead of time."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias

import torch
from megatron.core import parallel_state

from runbook.plan_file.errors import TrainingError
from runbook.plan_file.schema import PhasePlan
from runbook.training.context_parallel import slice_sequences
from runbook.training.engines.engine import DATA, StepClock
from runbook.training.messages import TrainingMessage
from runbook.training.process_groups import device
from runbook.training.sample_order import DataParallelShare

Batch: TypeAlias = dict[str, torch.Tensor]


class BatchReader:
    """Micro-batches for the replica this rank belongs to, on its device.

    Each micro-batch is read when it is requested.
    """

    def __init__(
        self,
        spec: PhasePlan,
        share: DataParallelShare,
        clock: StepClock,
    ) -> None:
        self.share = share
        self.clock = clock
        self.device = device()
        self._vocabulary = spec.model.shape.vocabulary
        self._shape = (
            len(_KEYS),
            share.micro,
            spec.model.shape.sequence_length // spec.parallel.context,
        )
        if spec.tuning.broadcast_batches:
            self._group = parallel_state.get_tensor_model_parallel_group()
        else:
            self._group = None

        # This time is measured separately, because a rank that waits for the reader is not itself
        # slow.
        self._broadcast = clock.timed(torch.distributed.broadcast)

    def step(
        self,
        dataset: Any,
        consumed_samples: int,
        num_microbatches: int,
    ) -> Iterator[Batch]:
        """Yield the micro-batches for one step."""
        for indices in self.share.indices(consumed_samples, num_microbatches):
            yield self.deliver(partial(self.read, dataset, indices))

    def deliver(self, read: Callable[[], Batch]) -> Batch:
        """Return the next micro-batch on the device used by this rank.

        The micro-batch comes from `read`, or from the tensor-parallel rank responsible for reading
        it.
        """
        group = self._group
        batch = Batch()
        with self.clock.during(DATA):
            if group is None or group.rank() == 0:
                batch = {key: self._on_device(value) for key, value in read().items()}
            if group is None:
                return batch
            if batch:
                message = _pack(batch)
            else:
                message = torch.empty(self._shape, dtype=torch.int32, device=self.device)

            source_rank = parallel_state.get_tensor_model_parallel_src_rank()
            self._broadcast(message, source_rank, group=group)
            return _unpack(message)

    def _on_device(self, value: torch.Tensor) -> torch.Tensor:
        """Move a micro-batch to the device used by this rank.

        The source is pinned memory, since the host would otherwise wait for the GPU.
        """
        if self.device.type == "cuda":
            # This does nothing for samples that were read ahead, since these are already pinned
            value = value.pin_memory()

        return value.to(self.device, non_blocking=True)

    def read(self, dataset: Any, indices: range) -> Batch:
        """Read the samples with these indices into a micro-batch in host memory.

        A rank in a context-parallel group gets only its own pieces of each sample.
        """
        samples = [dataset[index] for index in indices]
        batch = {}
        for key in _KEYS:
            batch[key] = torch.stack([sample[key] for sample in samples])

        highest = int(max(batch["tokens"].max(), batch["labels"].max()))
        if highest >= self._vocabulary:
            raise TrainingError(
                TrainingMessage.SAMPLE_OUTSIDE_VOCABULARY,
                start=indices.start,
                stop=indices.stop - 1,
                highest=highest,
                vocabulary=self._vocabulary,
            )

        return slice_sequences(batch)


_KEYS = ("tokens", "labels", "loss_mask", "position_ids")


def _pack(batch: Batch) -> torch.Tensor:
    """Pack a micro-batch into one message with 32-bit numbers.

    No token id needs more than 32 bits, and the mask bits are copied unchanged.
    """
    parts = []
    for key in _KEYS:
        part = batch[key]
        if part.is_floating_point():
            parts.append(part.view(torch.int32))
        else:
            parts.append(part.int())

    return torch.stack(parts)


def _unpack(message: torch.Tensor) -> Batch:
    """Unpack a micro-batch from a message made by `_pack`."""
    batch = Batch()
    for key, part in zip(_KEYS, message, strict=True):
        if key == "loss_mask":
            batch[key] = part.view(torch.float32)
        else:
            batch[key] = part.long()

    return batch


PIECE_TOKENS = 2**16
PIECE_MICRO_BATCHES = 32
"""Maximum number of micro-batches the thread reads in one piece.

At most two pieces (of 1.8 MB) are kept in memory.
"""


class ReadAhead:
    """Micro-batches for a training run, which a thread reads while earlier ones are computed.

    For a GPU, the thread reads them into pinned memory. Training uses the samples in sequence,
    whatever the batch ramp. If training skips samples or goes back, reading restarts at the new
    position. An error in the data is raised when the affected micro-batch is requested. The thread
    stops reading at sample `end`, and does not keep the process alive.
    """

    def __init__(
        self,
        reader: BatchReader,
        tokens: int,
        end: int,
    ) -> None:
        """`tokens` is the number of tokens in a micro-batch."""
        self.piece = max(1, min(PIECE_MICRO_BATCHES, PIECE_TOKENS // tokens))
        self._reader = reader
        self._end = end
        self._stride = reader.share.micro * reader.share.copies
        self._dataset = None
        self._next = 0
        # Number of micro-batches requested but not yet taken
        self._ahead = 0
        self._batches: SimpleQueue[Batch | Exception] = SimpleQueue()
        self._orders: SimpleQueue[tuple[SimpleQueue[Batch | Exception], Any, int, int] | None] = (
            SimpleQueue()
        )
        self._thread = threading.Thread(
            target=self._read,
            name="read ahead",
            daemon=True,
        )

    def step(
        self,
        dataset: Any,
        consumed_samples: int,
        num_microbatches: int,
    ) -> Iterator[Batch]:
        """Yield the micro-batches for one step."""
        for number in range(num_microbatches):
            start = consumed_samples + number * self._stride
            yield self._reader.deliver(partial(self._wait_for_batch, dataset, start))

    def close(self) -> None:
        """Let the thread end after its current micro-batch, but do not wait for it."""
        self._batches = SimpleQueue()
        self._orders.put(None)

    def _wait_for_batch(self, dataset: Any, start: int) -> Batch:
        if self._thread.ident is None:
            self._thread.start()
        if dataset is not self._dataset or start != self._next or not self._ahead:
            self._dataset = dataset
            self._batches = SimpleQueue()
            self._ahead = 0

        # Read full pieces up to the end of training; past the end, read only the requested samples
        for _ in range(2):
            self._order_piece(dataset, start)
        batch = self._batches.get()
        if isinstance(batch, Exception):
            self._ahead = 0
            raise batch

        self._next = start + self._stride
        self._ahead -= 1
        return batch

    def _order_piece(self, dataset: Any, start: int) -> None:
        """Request the next piece, unless two pieces are already requested."""
        first = start + self._ahead * self._stride
        num_batches = 0
        if self._ahead <= self.piece:
            num_batches = min(self.piece, (self._end - first) // self._stride)
        if not self._ahead:
            num_batches = max(num_batches, 1)
        if num_batches > 0:
            self._orders.put((self._batches, dataset, first, num_batches))
            self._ahead += num_batches

    def _read(self) -> None:
        on_gpu = self._reader.device.type == "cuda"
        while order := self._orders.get():
            batches, dataset, first, num_batches = order
            try:
                if on_gpu:
                    # Memory is pinned for the current device, and each thread has its own.
                    torch.cuda.set_device(self._reader.device)

                for indices in self._reader.share.indices(first, num_batches):
                    if batches is not self._batches:
                        # Training has jumped to another position, or has ended
                        break

                    batch = self._reader.read(dataset, indices)
                    if on_gpu:
                        batch = {key: value.pin_memory() for key, value in batch.items()}
                    batches.put(batch)
            except Exception as error:  # noqa: BLE001 - raised again by the step that needs it
                batches.put(error)

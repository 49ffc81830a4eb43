"""Samples that are read ahead, in an order that depends only on the seed and the text.

The datasets are megatron-core's.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy
import torch
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset

from runbook.plan_file.errors import TrainingError
from runbook.plan_file.schema import PhasePlan, Source
from runbook.training import data_cache
from runbook.training.context_parallel import slice_sequences
from runbook.training.engines.engine import DATA, StepClock
from runbook.training.messages import TrainingMessage
from runbook.training.process_groups import device, run_long_on_first_rank
from runbook.training.token_files import DataParallelShare, shuffled_epochs


@dataclass(frozen=True)
class Samples:
    """The samples of a training, in order."""

    train: Any
    validation: Any
    """None if there is no evaluation."""
    cache: data_cache.CacheCheck
    """The checksum of the cached order as rank 0 read it, the same on all ranks."""


def datasets(spec: PhasePlan, tokens: Mapping[str, int]) -> Samples:
    """Return the samples of a training. All ranks call it together, and rank 0 builds the caches.

    `tokens`: of each file, by which the files of a text share its weight.
    """
    data = spec.data
    evaluates = spec.evaluation.interval > 0 and spec.evaluation.iterations > 0
    config = _dataset_config(spec, tokens)
    if config.split_matrix is not None:
        # No test samples are drawn here, and megatron-core loops forever on a split without
        # documents.
        train_range, validation_range, _ = config.split_matrix
        config.split_matrix = [train_range, validation_range if evaluates else None, None]

    sizes = [spec.duration.samples, spec.evaluation.iterations * spec.batch.global_, 0]
    kind = MockEpochDataset if data.mock else EpochDataset
    builder = BlendedMegatronDatasetBuilder(kind, sizes, lambda: True, config)
    cache = data_cache.CacheCheck()
    if not data.mock:
        sources = (*data.train, *data.validation)
        indexes = [Path(f"{spec.path(source.prefix)}.idx") for source in sources]
        timeout = spec.limits.process_group_timeout_seconds
        work = partial(_build_cache, spec.path(data.cache), indexes, builder)
        cache = run_long_on_first_rank(work, "building the order of the text", timeout)

    train, validation, _ = builder.build()
    if not evaluates:
        validation = None
    return Samples(train, validation, cache)


def _dataset_config(spec: PhasePlan, tokens: Mapping[str, int]) -> GPTDatasetConfig:
    """Return which samples megatron-core draws, and from which files.

    Made-up samples have no files. Validation has files of its own, or a part of the same.
    """
    data = spec.data
    files: dict[str, Any] = {}
    if not data.mock:
        files["path_to_cache"] = str(spec.path(data.cache))
        train_files = _weighted(spec, data.train, tokens)
        if data.held_out:
            held_out = _weighted(spec, data.validation, tokens) if data.validation else None
            files["blend_per_split"] = [train_files, held_out, None]
        else:
            files["blend"] = train_files
            files["split"] = data.split

    # What megatron-core's datasets ask of a tokenizer; nothing is tokenized here.
    tokenizer = SimpleNamespace(
        vocab_size=spec.model.shape.vocabulary,
        eod=spec.sampling.end_of_document,
        unique_identifiers=(),
    )
    return GPTDatasetConfig(
        random_seed=spec.seed,
        sequence_length=spec.model.shape.sequence_length,
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        **files,
    )


SampleOrder = tuple[numpy.ndarray[Any, Any], numpy.ndarray[Any, Any], numpy.ndarray[Any, Any]]
"""The order of documents, the start of each sample in it, and the order of samples in training."""


class EpochDataset(GPTDataset):  # type: ignore[misc]
    """megatron-core's samples of one token file, with each epoch shuffled separately.

    megatron-core shuffles all epochs together, so another number of epochs changes the data from
    the first step on. Here a longer training starts with exactly the samples of a shorter one. A
    single epoch is in megatron-core's own order. Blends need no change: megatron-core picks the
    next text from the weights and the samples drawn so far. The names of the cache files hash this
    class and the number of samples, so two lengths never share a file.
    """

    def _build_document_sample_shuffle_indices(self) -> SampleOrder:
        if self.config.path_to_cache is None:
            return self._order()
        stem = f"{self.unique_description_hash}-{type(self).__name__}-{self.index_split.name}"
        parts = ("document_index", "sample_index", "shuffle_index")
        paths = [Path(self.config.path_to_cache) / f"{stem}-{part}.npy" for part in parts]
        is_first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
        if is_first and not all(path.exists() for path in paths):
            for path, array in zip(paths, self._order(), strict=True):
                numpy.save(path, array)

        documents, samples, shuffled = (numpy.load(path, mmap_mode="r") for path in paths)
        return documents, samples, shuffled

    def _order(self) -> SampleOrder:
        # Compiled: a source checkout builds it at startup.
        from megatron.core.datasets import helpers

        lengths = self.dataset.sequence_lengths
        if 2 * len(self.indices) > len(lengths):
            # One sequential read instead of page faults in the documents' order.
            lengths = numpy.array(lengths)

        tokens_per_epoch = int(lengths[self.indices].sum(dtype=numpy.int64))
        length = self.config.sequence_length
        num_tokens = 1
        if self.num_samples:
            # The last sample's labels need one token more.
            num_tokens = self.num_samples * length + 1

        epochs = max(1, -(-num_tokens // tokens_per_epoch))
        ends = [(epoch * tokens_per_epoch - 1) // length for epoch in range(1, epochs + 1)]
        documents, shuffled = shuffled_epochs(self.indices, ends, self.config.random_seed)
        samples = helpers.build_sample_idx(
            lengths,
            documents,
            length,
            epochs,
            tokens_per_epoch,
            True,
            True,
        )
        return documents, samples, shuffled


class MockEpochDataset(EpochDataset, MockGPTDataset):  # type: ignore[misc]
    """megatron-core's synthetic documents, each epoch shuffled separately."""


def _build_cache(
    folder: Path,
    indexes: list[Path],
    builder: BlendedMegatronDatasetBuilder,
) -> data_cache.CacheCheck:
    """Build on rank 0 the caches that the other ranks read.

    Megatron-core lets them wait in a barrier, however large the text is.
    """
    cache = data_cache.CacheFolder(folder)
    cache.remove_faulty(indexes)
    is_initialized = torch.distributed.is_initialized
    torch.distributed.is_initialized = lambda: False
    try:
        builder.build()
    finally:
        torch.distributed.is_initialized = is_initialized

    return data_cache.CacheCheck(cache.faults, cache.seal())


def _weighted(
    spec: PhasePlan,
    sources: tuple[Source, ...],
    tokens: Mapping[str, int],
) -> tuple[list[str], list[float] | None]:
    """Paths of the files, and their shares of the samples.

    Of a text with several files by their tokens.
    """
    prefixes = [str(spec.path(source.prefix)) for source in sources]
    weights = []
    for source in sources:
        files = [source]
        if source.text:
            files = [file for file in sources if file.text == source.text]
        text_tokens = sum(tokens.get(file.prefix, 0) for file in files)
        text_weight = sum(file.weight for file in files)
        if text_tokens:
            share = tokens.get(source.prefix, 0) / text_tokens
        else:
            share = 1 / len(files)

        weights.append(share * text_weight)

    if len(sources) == 1:
        return prefixes, None
    return prefixes, weights


Batch: TypeAlias = dict[str, torch.Tensor]


class BatchReader:
    """Micro-batches of this rank's data-parallel copy, on its device.

    Each is read when it is asked for.
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

        # Timed separately: a rank that waits for the reader is not slow itself.
        self._broadcast = clock.timed(torch.distributed.broadcast)

    def step(
        self,
        dataset: Any,
        consumed_samples: int,
        num_microbatches: int,
    ) -> Iterator[Batch]:
        """The micro-batches of one step."""
        for indices in self.share.indices(consumed_samples, num_microbatches):
            yield self.deliver(partial(self.read, dataset, indices))

    def deliver(self, read: Callable[[], Batch]) -> Batch:
        """Return the next micro-batch on this rank's device.

        By `read`, or from the tensor-parallel rank that reads it.
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
        """Move what was read to this rank's device.

        From pinned memory, as the host else waits for the GPU.
        """
        if self.device.type == "cuda":
            # This does nothing for samples that were read ahead
            value = value.pin_memory()

        return value.to(self.device, non_blocking=True)

    def read(self, dataset: Any, indices: range) -> Batch:
        """Return these samples as a micro-batch in host memory.

        A rank of a context-parallel group gets its pieces of each.
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
    """One message of 32-bit numbers: no id is larger, and the mask goes bit for bit."""
    parts = []
    for key in _KEYS:
        part = batch[key]
        if part.is_floating_point():
            parts.append(part.view(torch.int32))
        else:
            parts.append(part.int())

    return torch.stack(parts)


def _unpack(message: torch.Tensor) -> Batch:
    """Return the micro-batch that `_pack` turned into a message."""
    batch = Batch()
    for key, part in zip(_KEYS, message, strict=True):
        if key == "loss_mask":
            batch[key] = part.view(torch.float32)
        else:
            batch[key] = part.long()

    return batch


PIECE_TOKENS = 2**16
PIECE_MICRO_BATCHES = 32
"""The thread wakes once for a piece of at most so much; at most two pieces (of 1.8 MB) are held."""


class ReadAhead:
    """Micro-batches of a training, read by a thread while those before are computed.

    For a GPU into pinned memory.

    A training takes its samples one after the other, whatever its batch ramp. Where it leaves some
    out, or goes back, reading begins again at that place. An error of the data is raised where the
    micro-batch is asked for. The thread reads no further than sample `end`, and never keeps the
    process from ending.
    """

    def __init__(
        self,
        reader: BatchReader,
        tokens: int,
        end: int,
    ) -> None:
        """`tokens`: of a micro-batch."""
        self.piece = max(1, min(PIECE_MICRO_BATCHES, PIECE_TOKENS // tokens))
        self._reader = reader
        self._end = end
        self._stride = reader.share.micro * reader.share.copies
        self._dataset = None
        self._next = 0
        # Micro-batches that are requested and not yet taken
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
        """The micro-batches of one step."""
        for number in range(num_microbatches):
            start = consumed_samples + number * self._stride
            yield self._reader.deliver(partial(self._wait_for_batch, dataset, start))

    def close(self) -> None:
        """End the thread after its current micro-batch, without waiting for it."""
        self._batches = SimpleQueue()
        self._orders.put(None)

    def _wait_for_batch(self, dataset: Any, start: int) -> Batch:
        if self._thread.ident is None:
            self._thread.start()
        if dataset is not self._dataset or start != self._next or not self._ahead:
            self._dataset = dataset
            self._batches = SimpleQueue()
            self._ahead = 0

        # Whole pieces up to the end of the training; beyond it, exactly what is requested
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
        """Request another piece, unless more than a piece is requested already."""
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
        if on_gpu:
            # Each thread has a device of its own, and memory is pinned for it.
            torch.cuda.set_device(self._reader.device)

        while order := self._orders.get():
            batches, dataset, first, num_batches = order
            try:
                for indices in self._reader.share.indices(first, num_batches):
                    if batches is not self._batches:
                        # The training jumped elsewhere, or has ended
                        break

                    batch = self._reader.read(dataset, indices)
                    if on_gpu:
                        batch = {key: value.pin_memory() for key, value in batch.items()}
                    batches.put(batch)
            except Exception as error:  # noqa: BLE001 - raised again by the step that needs it
                batches.put(error)

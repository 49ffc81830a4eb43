"""Makes the datasets for a training run. megatron-core draws sequences from the token files.

The sequence order depends only on the seed and the text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset

from runbook.plan_file.schema import PhasePlan, Source
from runbook.training import data_cache
from runbook.training.process_groups import run_long_on_first_rank
from runbook.training.sample_order import shuffled_epochs


@dataclass(frozen=True)
class TrainingDatasets:
    """The sequences to train on, in order, and the sequences to evaluate on."""

    train: Any
    validation: Any
    """Sequences to evaluate on; None if there is no evaluation."""
    cache: data_cache.CacheCheck
    """Result of the cache check, which rank 0 runs for all ranks."""


def make_datasets(spec: PhasePlan, tokens: Mapping[str, int]) -> TrainingDatasets:
    """Return the datasets for a training run.

    All ranks call this function together, and rank 0 builds the caches. `tokens` is the number of
    tokens in each file. The weight of a text is divided among its files in proportion to their
    tokens.
    """
    data = spec.data
    evaluates = spec.evaluation.interval > 0 and spec.evaluation.iterations > 0
    config = _dataset_config(spec, tokens)
    if config.split_matrix is not None:
        # No test samples are used, and megatron-core loops forever on a split without documents.
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
    return TrainingDatasets(train, validation, cache)


def _dataset_config(spec: PhasePlan, tokens: Mapping[str, int]) -> GPTDatasetConfig:
    """Return the configuration used to tell megatron-core which samples to draw from which files.

    Synthetic samples have no files. Validation uses separate files, or a part of the same files.
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

    # The tokenizer attributes needed by megatron-core datasets. Nothing is tokenized here.
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
"""The document order, where each sample starts in that order, and the sample order during training.
"""


class EpochDataset(GPTDataset):  # type: ignore[misc]
    """Samples that megatron-core makes from one token file, with each epoch shuffled separately.

    megatron-core shuffles all epochs together, so changing the number of epochs changes the data
    from the first step on. Here, a longer training run starts with exactly the same samples as a
    shorter one. With a single epoch, the order is the megatron-core order. Blends do not need this
    change, because megatron-core picks the next text based on the weights and the samples drawn so
    far. Cache file names include a hash of this class and the number of samples, so runs with
    different lengths never share a file.
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
        # This module is compiled. In a source checkout, it is built at start-up.
        from megatron.core.datasets import helpers

        lengths = self.dataset.sequence_lengths
        if 2 * len(self.indices) > len(lengths):
            # Read the file sequentially once. Otherwise page faults would load it in document
            # order.
            lengths = numpy.array(lengths)

        tokens_per_epoch = int(lengths[self.indices].sum(dtype=numpy.int64))
        length = self.config.sequence_length
        num_tokens = 1
        if self.num_samples:
            # The labels for the last sample need one more token.
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
    """Synthetic documents from megatron-core, with each epoch shuffled separately."""


def _build_cache(
    folder: Path,
    indexes: list[Path],
    builder: BlendedMegatronDatasetBuilder,
) -> data_cache.CacheCheck:
    """Build the caches on rank 0; the other ranks read them.

    In megatron-core itself, the other ranks would wait in a barrier, which times out if the text is
    large.
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
    """Return the file paths, and the share of samples from each file.

    The weight of a text is divided among its files in proportion to their tokens.
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

"""Samples in one order that depends on the seed and the sample count alone: megatron-core's datasets, our sampler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset

from runbook.training.distributed import on_first
from runbook.training.errors import RefusedError, TrainingError
from runbook.training.order import Share
from runbook.training.spec import Source, Spec


@dataclass(frozen=True)
class Tokenizer:
    """The two facts megatron-core's datasets ask of a tokenizer; nothing is tokenized here."""

    vocab_size: int
    eod: int
    unique_identifiers: tuple[str, ...] = ()


def datasets(spec: Spec) -> tuple[Any, Any]:
    """Training and validation samples (the latter None where evaluation is off).

    The index caches are built by rank 0 while the others wait; call it on all ranks.
    """
    evaluates = spec.evaluation.interval > 0 and spec.evaluation.iterations > 0
    if not spec.data.mock:
        on_first(lambda: _prepare_cache(spec.path(spec.data.cache), _indexes(spec)))
    config = GPTDatasetConfig(
        random_seed=spec.seed,
        sequence_length=spec.model.sequence_length,
        path_to_cache=None if spec.data.mock else str(spec.path(spec.data.cache)),
        tokenizer=Tokenizer(spec.model.vocabulary, spec.sampling.end_of_document),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        **_blend(spec),
    )
    if config.split_matrix is not None:
        # No test samples are drawn here, and megatron-core loops for ever on a split without documents.
        config.split_matrix = [config.split_matrix[0], config.split_matrix[1] if evaluates else None, None]
    sizes = [spec.duration.samples, spec.evaluation.iterations * spec.batch.global_, 0]
    kind = MockGPTDataset if spec.data.mock else GPTDataset
    train, validation, _ = BlendedMegatronDatasetBuilder(kind, sizes, lambda: True, config).build()
    return train, validation if evaluates else None


def _indexes(spec: Spec) -> list[Path]:
    return [Path(f"{spec.path(source.prefix)}.idx") for source in (*spec.data.train, *spec.data.validation)]


def _prepare_cache(folder: Path, indexes: list[Path]) -> None:
    """Remove cached orders that a killed run left unfinished, and those older than a token file.

    megatron-core knows them by the file's path alone, and would take them for whole and for the text that is there now.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"data.cache {folder} cannot be made: {error}") from error
    # ctime as well: a file that was moved or copied here keeps the mtime it had elsewhere.
    states = [path.stat() for path in indexes if path.exists()]
    newest = max((max(state.st_mtime_ns, state.st_ctime_ns) for state in states), default=0)
    for path in folder.glob("*.npy"):
        try:
            numpy.load(path, mmap_mode="r")
        except (ValueError, OSError):
            path.unlink()
        else:
            if path.stat().st_mtime_ns < newest:
                path.unlink()


def _blend(spec: Spec) -> dict[str, Any]:
    if spec.data.mock:
        return {}
    train = _weighted(spec, spec.data.train)
    if not spec.data.validation and not spec.data.test:
        return {"blend": train, "split": spec.data.split}
    held_out = _weighted(spec, spec.data.validation) if spec.data.validation else None
    return {"blend_per_split": [train, held_out, None]}


def _weighted(spec: Spec, sources: list[Source]) -> tuple[list[str], list[float] | None]:
    prefixes = [str(spec.path(source.prefix)) for source in sources]
    return prefixes, [source.weight for source in sources] if len(sources) > 1 else None


class Reader:
    """Micro-batches of this rank's data-parallel copy, on its device."""

    def __init__(self, share: Share, vocabulary: int, device: torch.device) -> None:
        self.share = share
        self.vocabulary = vocabulary
        self.device = device

    def step(self, dataset: Any, consumed_samples: int, num_microbatches: int) -> Iterator[dict[str, torch.Tensor]]:
        """The micro-batches of one step, read one by one as they are asked for."""
        for indices in self.share.indices(consumed_samples, num_microbatches):
            samples = [dataset[index] for index in indices]
            batch = {key: torch.stack([sample[key] for sample in samples]) for key in _KEYS}
            highest = int(max(batch["tokens"].max(), batch["labels"].max()))
            if highest >= self.vocabulary:
                raise TrainingError(
                    f"samples {indices.start} to {indices.stop - 1} hold token {highest}, but the model's vocabulary "
                    f"is {self.vocabulary}: the data was tokenized with another vocabulary"
                )
            yield {key: value.to(self.device) for key, value in batch.items()}


_KEYS = ("tokens", "labels", "loss_mask", "position_ids")

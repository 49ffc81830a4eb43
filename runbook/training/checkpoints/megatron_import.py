"""Reads checkpoints from Megatron-LM, but runs no code they contain.

It reads the `torch_dist` format and the format with one file per rank.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.distributed.checkpoint import metadata

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import PlannedModel
from runbook.training.checkpoints import folders, torch_dist
from runbook.training.checkpoints.hugging_face import (
    PADDED,
    SourceWeights,
    check_shapes,
    our_shapes,
    to_ours,
)
from runbook.training.checkpoints.weights import finite, stored_key
from runbook.training.messages import TrainingMessage

_MEGATRON: dict[str, Any] = json.loads(
    Path(__file__).with_suffix(".json").read_text(encoding="utf-8")
)
"""Facts about checkpoints from Megatron-LM.

`not_ours` lists the arguments that change the model if they are set, `absent` how versions that
lack an argument behave, and `older_names` the names used before megatron-core. The other entries
list weights that tensor parallelism splits, and tensors that are not weights.
"""
_CUT_ROWS = (*PADDED, *_MEGATRON["cut_rows"])
Stored: TypeAlias = dict[str, tuple[tuple[int, ...], Callable[[], torch.Tensor]]]
"""The shape of each weight, and a function that reads it."""


class MegatronWeights(SourceWeights):
    """Weights from a Megatron-LM checkpoint."""

    def __init__(self, folder: Path, model: PlannedModel) -> None:
        """Compare arguments, names and shapes with the planned model.

        Raise `RefusedError` with each difference.
        """
        shapes = our_shapes(model)
        super().__init__(model, shapes)
        self._folder = folder = _newest(folder)
        shards = [folder / name for name in (torch_dist.COMMON_FILE, ".metadata")]
        rank_files = sorted(folder.glob("mp_rank_*/model_optim_rng.pt"))
        try:
            if any(path.exists() for path in shards):
                described = torch_dist.check_shards(folder)
                content = torch_dist.read_common(folder, described)
                rows, *_ = _check_arguments(content, folder, model)
                stored = _shards(folder, described)
            elif rank_files:
                content = torch_dist.read_pickle(rank_files[0])
                rows, *cut = _check_arguments(content, rank_files[0], model)
                stored = _rank_files(folder, *cut, gated=model.shape.gated)
            else:
                raise RefusedError(TrainingMessage.NOT_MEGATRON_LM, folder=folder)
        except torch_dist.READ_ERRORS as error:
            raise RefusedError(
                TrainingMessage.CHECKPOINT_NOT_READABLE,
                folder=folder,
                name=type(error).__name__,
                error=str(error)[:300],
            ) from error

        stored_shapes = {}
        self._read = {}
        for key, (shape, read) in stored.items():
            stored_shapes[key] = shape
            self._read[key] = read

        planned_shapes = {}
        for ours, shape in shapes.items():
            # The vocabulary is stored with padding for the layout that saved it.
            stored_shape = (rows, *shape[1:]) if ours in PADDED else shape
            planned_shapes[stored_key(ours)] = stored_shape

        ignored = tuple(_MEGATRON["no_weights"])
        if model.shape.tied_embeddings:
            # The output layer is a copy of the embedding.
            ignored += ("output_layer.weight",)

        check_shapes(folder, stored_shapes, planned_shapes, ignored)

    def read_weight(self, key: str) -> torch.Tensor:
        """Return a complete weight in float32. Padding rows in the vocabulary are zero."""
        value = finite(self._read[key](), self._folder, key).float()
        if key in PADDED:
            return to_ours(key, [value[: self.model.shape.vocabulary]], self.model)
        return value


def _newest(folder: Path) -> Path:
    """Return the subfolder the tracker names, or `folder` itself if it has no tracker."""
    tracker = folder / "latest_checkpointed_iteration.txt"
    if not tracker.is_file():
        return folder
    named = tracker.read_text(encoding="utf-8", errors="replace").strip()[:20]
    newest = folder / (folders.folder_name(int(named)) if named.isdecimal() else "release")
    if not (named.isdecimal() or named == "release") or not newest.is_dir():
        raise RefusedError(
            TrainingMessage.TRACKER_NAMES_ANOTHER, tracker=tracker, named=named, newest=newest
        )

    return newest


def _check_arguments(content: Any, path: Path, model: PlannedModel) -> tuple[int, int, int]:
    """Return the padded vocabulary and the tensor and pipeline sizes.

    Raise `RefusedError` with each difference from the plan.
    """
    if not isinstance(content, dict):
        raise RefusedError(
            TrainingMessage.NOT_MEGATRONS_STATE, path=path, name=type(content).__name__
        )
    version = content.get("checkpoint_version")
    arguments = content.get("args")
    if not isinstance(arguments, argparse.Namespace):
        raise RefusedError(TrainingMessage.STATE_WITHOUT_ARGS, path=path)
    if not isinstance(version, int | float) or version < 3:
        raise RefusedError(TrainingMessage.CHECKPOINT_VERSION, path=path, version=version)

    stored = _stored_arguments(arguments)
    planned = _planned_arguments(model)
    # The vocabulary padding depends on the layout that saved it, not on the planned layout.
    if getattr(stored, "padded_vocab_size", None) != model.shape.vocabulary:
        multiple = max(1, stored.make_vocab_size_divisible_by * stored.tensor_model_parallel_size)
        # Integer division that rounds up.
        num_multiples = -(-model.shape.vocabulary // multiple)
        planned["padded_vocab_size"] = num_multiples * multiple

    if wrong := folders.differences(vars(stored), planned):
        raise RefusedError(TrainingMessage.ANOTHER_MODEL, path=path, wrong=wrong)
    return (
        stored.padded_vocab_size,
        stored.tensor_model_parallel_size,
        stored.pipeline_model_parallel_size,
    )


def _stored_arguments(arguments: argparse.Namespace) -> argparse.Namespace:
    """Return the options used by the program that saved the checkpoint.

    If an older version lacks an option, the option gets the value this version implies.
    """
    values: dict[str, Any] = dict(_MEGATRON["absent"])
    for key, value in vars(arguments).items():
        if value is not None:
            values[key] = value

    # If an option is switched off, it means the same as an absent one.
    for key in _MEGATRON["not_ours"]:
        if not values.get(key):
            values[key] = None

    has_rotary = values.get("use_rotary_position_embeddings")
    values.setdefault("position_embedding_type", "rope" if has_rotary else "learned_absolute")
    values.setdefault("norm_epsilon", values.get("layernorm_epsilon"))
    values["add_qkv_bias"] = bool(values["add_bias_linear"] or values.get("add_qkv_bias"))
    if not values.get("group_query_attention"):
        values["num_query_groups"] = values.get("num_attention_heads")
    return argparse.Namespace(**values)


def _planned_arguments(model: PlannedModel) -> dict[str, object]:
    """Return the options needed to build the planned model in Megatron-LM."""
    shape = model.shape
    has_rotary = shape.position_embedding == "rope"
    values: dict[str, object] = {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "ffn_hidden_size": shape.ffn_hidden,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.kv_heads,
        "kv_channels": shape.head_size,
        "position_embedding_type": "rope" if has_rotary else "learned_absolute",
        "normalization": "RMSNorm" if shape.normalization == "rmsnorm" else "LayerNorm",
        "norm_epsilon": shape.norm_epsilon,
        "swiglu": shape.gated,
        "add_bias_linear": shape.biases,
        "add_qkv_bias": shape.biases or shape.qkv_biases,
        "softmax_type": "vanilla",
        "untie_embeddings_and_output_weights": not shape.tied_embeddings,
        **dict.fromkeys(_MEGATRON["not_ours"]),
    }
    if has_rotary:
        values |= {"rotary_base": shape.rope_base, "rotary_percent": 1.0}
    else:
        values["max_position_embeddings"] = shape.positions

    if not shape.gated:
        # GPT-2 computes GELU with tanh. Megatron-LM also has a GELU that uses the error function.
        values["bias_gelu_fusion"] = True

    return values


def _shards(folder: Path, described: metadata.Metadata) -> Stored:
    """Return the weights in a `torch_dist` folder.

    Megatron-LM stores the same weight from all layers as one tensor.
    """
    tensors = dict[str, Any]()
    places = {}
    for index, storage in described.storage_data.items():
        key = index.fqn
        offset = index.offset
        tensor = described.state_dict_metadata.get(index.fqn)
        if key.startswith("optimizer.") or not isinstance(tensor, metadata.TensorStorageMetadata):
            continue
        path = folder / storage.relative_path
        end = storage.offset + storage.length
        if not path.is_file() or path.stat().st_size < end:
            raise RefusedError(TrainingMessage.SHARD_CUT_SHORT, path=path, key=key, end=end)
        (length,) = {chunk.sizes for chunk in tensor.chunks if chunk.offsets == offset}
        size = tensor.size
        if re.match(r"decoder\.layers\.\D", key):
            if length[0] != 1:
                raise RefusedError(
                    TrainingMessage.LAYERS_IN_ONE_PIECE, folder=folder, key=key, length=length[0]
                )

            key = key.replace("layers.", f"layers.{offset[0]}.", 1)
            size = size[1:]
            offset = offset[1:]
            length = length[1:]

        whole = tensors.setdefault(key, metadata.TensorStorageMetadata(tensor.properties, size, []))
        whole.chunks.append(metadata.ChunkStorageMetadata(offset, length))
        places[metadata.MetadataIndex(key, offset)] = storage

    shards = torch_dist.StoredShards(folder, metadata.Metadata(tensors, storage_data=places))
    stored: Stored = {}
    for key, tensor in tensors.items():
        stored[key] = (tuple(tensor.size), partial(shards.read_whole, key))

    return stored


def _rank_files(
    folder: Path,
    tensor: int,
    pipeline: int,
    *,
    gated: bool,
) -> Stored:
    """Return the weights in the files from all tensor and pipeline ranks.

    Shapes are returned immediately. The parts are joined only when a weight is read, to keep only
    one weight in memory at a time.
    """
    stages = _read_stages(folder, tensor, pipeline)
    pieces_by_key: dict[str, list[torch.Tensor]] = {}
    first_layer = 0
    # An interleaved pipeline runs the first chunk on every stage, then the second chunk on every
    # stage.
    for chunk in _chunk_names(stages[0][0]):
        for ranks in stages:
            num_layers = 0
            for content in ranks:
                for stored_name, piece in _tensors(content[chunk]):
                    name, layer = _with_layer_of_model(stored_name, first_layer)
                    num_layers = max(num_layers, layer + 1)
                    pieces_by_key.setdefault(stored_key(name), []).append(piece)

            first_layer += num_layers

    join = partial(_join, gated=gated)
    stored: Stored = {}
    for key, pieces in pieces_by_key.items():
        shape = join(key, [piece.to("meta") for piece in pieces]).shape
        stored[key] = (tuple(shape), partial(join, key, pieces))

    return stored


def _read_stages(folder: Path, tensor: int, pipeline: int) -> list[list[Any]]:
    """Return the content of each file, ordered by pipeline stage and then tensor rank."""
    stages = []
    for stage in range(pipeline):
        # Megatron-LM omits the stage from the name if there is only one.
        stage_suffix = f"_{stage:03d}" if pipeline > 1 else ""
        ranks = []
        for rank in range(tensor):
            path = folder / f"mp_rank_{rank:02d}{stage_suffix}" / "model_optim_rng.pt"
            ranks.append(torch_dist.read_pickle(path))

        stages.append(ranks)

    return stages


def _chunk_names(content: Iterable[str]) -> list[str]:
    """Return `model`, or `model0`, `model1`, ... in order if the pipeline is interleaved."""
    names = [name for name in content if re.fullmatch(r"model\d*", name)]
    return sorted(names, key=lambda name: int(name.removeprefix("model") or 0))


def _with_layer_of_model(name: str, first_layer: int) -> tuple[str, int]:
    """Return a weight name with the layer in the full model, and the layer in the chunk (or -1).

    `first_layer` is the number of layers before the chunk, and a chunk numbers its layers from 0.
    """
    for older, newer in _MEGATRON["older_names"].items():
        name = name.replace(older, newer)

    match = re.match(r"decoder\.layers\.(\d+)\.", name)
    if match is None:
        return name, -1
    layer = int(match[1])
    return f"decoder.layers.{first_layer + layer}.{name[match.end() :]}", layer


def _join(key: str, pieces: list[torch.Tensor], gated: bool) -> torch.Tensor:
    """Join the parts of a weight from all tensor ranks."""
    if "linear_fc1" in key and gated and key.endswith(_CUT_ROWS):
        # Each rank stores part of the gate, followed by part of the gated input
        halves = [piece.chunk(2) for piece in pieces]
        pieces = []
        for number in (0, 1):
            for half in halves:
                pieces.append(half[number])

    if key.endswith(_CUT_ROWS):
        return torch.cat(pieces)
    if key.endswith(tuple(_MEGATRON["cut_columns"])):
        return torch.cat(pieces, 1)
    return pieces[0]


def _tensors(content: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all tensors in nested mappings, with their dotted names."""
    for name, value in content.items():
        if (
            isinstance(value, torch.Tensor)
            and value.layout == torch.strided
            and value.device.type == "cpu"
        ):
            yield f"{prefix}{name}", value
        elif isinstance(value, Mapping):
            yield from _tensors(value, f"{prefix}{name}.")

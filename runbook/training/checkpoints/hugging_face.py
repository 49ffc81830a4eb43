"""Imports and exports weights and configs as Hugging Face folders.

Each of our models has a corresponding `transformers` model.
"""

import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.json_records import value_at
from runbook.plan_file.schema import PlannedModel
from runbook.training.checkpoints import folders
from runbook.training.checkpoints.weights import WholeWeights, finite, stored_key
from runbook.training.engines.engine import CommonState, Shards, State
from runbook.training.messages import TrainingMessage
from runbook.training.offline_request import OfflineRequest

_NOT_OURS = (
    "sliding_window",
    "quantization_config",
    "use_parallel_residual",
    "qk_layernorm",
    "add_cross_attention",
    "scale_attn_by_inverse_layer_idx",
)
"""Config keys that change the model architecture when they are set."""
_HARMLESS = frozenset(
    {
        *("_name_or_path", "architectures", "model_type", "torch_dtype", "dtype"),
        *("transformers_version", "use_cache", "task_specific_params", "gradient_checkpointing"),
        *("output_attentions", "output_hidden_states", "return_dict", "return_dict_in_generate"),
        *("_attn_implementation", "_attn_implementation_autoset", "attn_implementation"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id"),
        *("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id"),
        # Keys for text generation, and for heads used in other tasks
        *("temperature", "top_k", "top_p", "typical_p", "do_sample", "max_length", "min_length"),
        *("num_beams", "num_beam_groups", "num_return_sequences", "early_stopping"),
        *("repetition_penalty", "encoder_no_repeat_ngram_size", "no_repeat_ngram_size"),
        *("length_penalty", "diversity_penalty", "bad_words_ids", "begin_suppress_tokens"),
        *("suppress_tokens", "exponential_decay_length_penalty", "remove_invalid_values"),
        *("output_scores", "summary_type", "summary_use_proj", "summary_activation"),
        *("summary_proj_to_labels", "summary_first_dropout", "id2label", "label2id", "num_labels"),
        *("problem_type", "finetuning_task", "prefix", "tokenizer_class", "classifier_dropout"),
        # Keys for dropout during training, and for the order of summation
        *("hidden_dropout", "residual_dropout", "embedding_dropout", "pretraining_tp"),
        *("reorder_and_upcast_attn", "chunk_size_feed_forward", "torchscript", "use_bfloat16"),
        *("tf_legacy_loss", "max_window_layers", "scale_attn_by_inverse_layer_idx"),
        *("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "is_llama_config"),
        *("transformers.js_config", "unsloth_version", "unsloth_fixed"),
        *("rope_scaling", "rope_parameters", "use_sliding_window", "layer_types"),
    }
)
"""Keys in config.json that do not change what a model computes, or that are checked separately."""
_FIXED: dict[str, object] = {
    # Only matters with cross-attention, which is refused
    "is_decoder": (False, True),
    "is_encoder_decoder": (False,),
    "tie_encoder_decoder": (False,),
    "is_causal": (True,),
    "use_qk_norm": (False,),
    "pruned_heads": ({},),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "norm_type": ("layer_norm",),  # Used by bigcode/starcoder2
    "mlp_type": ("default",),
    # Refers to code that comes with the folder
    "auto_map": (),
}
"""Keys accepted only with these values."""
_ALIASES = {
    "gpt2": {
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "max_position_embeddings": "n_positions",
        "n_ctx": "n_positions",
    }
}
"""Alternative key names also accepted by `transformers`. If both names are given, the last one
applies."""
_ROTARY_KEYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_FLOAT32_BYTES = 4
PADDED = ("embedding.word_embeddings.weight", "output_layer.weight")
_SAME_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
_BUFFERS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq", "lm_head.weight")
"""Tensors in a folder that are not weights.

They are masks and angles saved by older versions, and copies of tied heads.
"""


@dataclass(frozen=True)
class Kind:
    """A `transformers` model that computes the same function as a model in our own trainer.

    hugging_face.json lists all kinds.
    """

    architecture: str
    # Values our model must have to be exported as this kind
    needed: dict[str, object]
    # Our value for each key in the config
    values: dict[str, str]
    constants: dict[str, object]
    # Config keys that switch biases on, each with our modules that then have a bias
    biases: dict[str, list[str]]
    # The `transformers` module for each of our modules, or several if `transformers` splits our
    # matrix
    modules: dict[str, list[str]]
    # By model type in the imported folder: defaults for missing keys, and which modules have biases
    reads: dict[str, dict[str, Any]]


@functools.cache
def kinds() -> dict[str, Kind]:
    """Return all kinds by `model_type`."""
    content = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {model_type: Kind(**values) for model_type, values in content.items()}


def kind_of(model: PlannedModel) -> str:
    """Return the `model_type` that computes the same function as our model.

    Raise `RefusedError` with the differences if there is none.
    """
    reasons = []
    for name, kind in kinds().items():
        needed = kind.needed | ({"kv_heads": model.shape.heads} if name == "gpt2" else {})
        wrong = folders.differences(
            {key: getattr(model.shape, key) for key in needed}, needed, "needed"
        )
        if not wrong:
            return name
        reasons.append(f"{name}: {wrong}")

    raise RefusedError(
        TrainingMessage.NO_MODEL_OF_TRANSFORMERS, model=model.name, reasons="; ".join(reasons)
    )


def config_of(model: PlannedModel, end_of_document: int) -> dict[str, object]:
    """Return the config.json for the model."""
    model_type = kind_of(model)
    kind = kinds()[model_type]
    config: dict[str, object] = {
        "architectures": [kind.architecture],
        "model_type": model_type,
    }
    for their_key, our_key in kind.values.items():
        config[their_key] = value_at(model, our_key)

    config |= kind.constants
    for their_key, modules in kind.biases.items():
        config[their_key] = all(_has_bias(module, model) for module in modules)

    # If the number is negative, the tokenizer has no such token.
    token = end_of_document if end_of_document >= 0 else None
    config |= {"bos_token_id": token, "eos_token_id": token, "torch_dtype": "float32"}
    if "rope_theta" in config:
        # transformers 5 expects this value in a mapping, and transformers 4 at the top level.
        config["rope_parameters"] = {
            "rope_type": "default",
            "rope_theta": config["rope_theta"],
            "partial_rotary_factor": config["partial_rotary_factor"],
        }

    return config


def _their_names(model: PlannedModel, kind: Kind) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each weight our model may have, with its name or names in `transformers`."""
    shape = model.shape
    for ours, theirs in kind.modules.items():
        # A tied head is the embedding itself, so it is written only once.
        if ours == "output_layer" and shape.tied_embeddings:
            continue

        suffixes = ["weight"]
        if "linear_" in ours or ("norm" in ours and shape.normalization == "layernorm"):
            suffixes.append("bias")

        is_in_layer = "{" in theirs[0]
        num_copies = shape.layers if is_in_layer else 1
        for layer in range(num_copies):
            name = f"decoder.layers.{layer}.{ours}" if is_in_layer else ours
            modules = [module.format(layer) for module in theirs]
            for suffix in suffixes:
                yield f"{name}.{suffix}", tuple(f"{module}.{suffix}" for module in modules)


def _our_shape(name: str, model: PlannedModel) -> tuple[int, ...]:
    """Return the shape a weight has in the complete model."""
    hidden = model.shape.hidden
    ffn_rows = 2 * model.shape.ffn_hidden if model.shape.gated else model.shape.ffn_hidden
    qkv_heads = model.shape.heads + 2 * model.shape.kv_heads
    matrix_shapes = {
        "word_embeddings": (model.shape.padded_vocabulary, hidden),
        "output_layer": (model.shape.padded_vocabulary, hidden),
        "position_embeddings": (model.shape.positions, hidden),
        "linear_qkv": (qkv_heads * model.shape.head_size, hidden),
        "linear_proj": (hidden, hidden),
        "linear_fc1": (ffn_rows, hidden),
        "linear_fc2": (hidden, model.shape.ffn_hidden),
    }
    module = name.split(".")[-2]
    shape = matrix_shapes.get(module, (hidden,))
    is_bias = not name.endswith("weight")
    return shape[:1] if is_bias else shape


def our_shapes(model: PlannedModel) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights, including those that `transformers` does not have."""
    has_rotary = model.shape.position_embedding == "rope"
    shapes = {}
    # GPT-2 in `transformers` has every module our models may have.
    for name, _ in _their_names(model, kinds()["gpt2"]):
        if _lacks_bias(name, model):
            continue
        if has_rotary and "position" in name:
            continue

        shapes[name] = _our_shape(name, model)

    return shapes


def to_theirs(name: str, value: torch.Tensor, model: PlannedModel) -> list[torch.Tensor]:
    """Convert one of our weights to the form used in `transformers`.

    In our query-key-value matrix, the queries for a group of heads come before the key and value
    for that group. GPT-2 stores all queries, then all keys, then all values in one matrix, and its
    matrices have the shape [in, out]. The other models have three matrices, and a separate gate. In
    both formats, a rotary pair consists of the elements i and i + size / 2.
    """
    shape = model.shape
    is_gpt2 = shape.position_embedding == "learned"
    parts = [value[: shape.vocabulary] if name in PADDED else value]
    if "linear_qkv" in name:
        # [group, queries of the group + 1 key + 1 value, head size, hidden]
        groups = value.view(shape.kv_heads, -1, shape.head_size, *value.shape[1:])
        queries = groups[:, :-2]
        keys = groups[:, -2:-1]
        values = groups[:, -1:]
        parts = [part.flatten(0, 2) for part in (queries, keys, values)]
    elif "linear_fc1" in name and shape.gated:
        parts = list(value.chunk(2))

    if is_gpt2 and "linear_" in name:
        joined = torch.cat(parts)
        # Linear layers there are `Conv1D`, with matrices of shape [in, out].
        parts = [joined.T if joined.dim() > 1 else joined]

    return [part.contiguous() for part in parts]


def to_ours(name: str, parts: list[torch.Tensor], model: PlannedModel) -> torch.Tensor:
    """Convert weights from `transformers` to weights for our own trainer.

    Padding rows in the vocabulary, which no loss uses, are zero.
    """
    shape = model.shape
    is_gpt2 = shape.position_embedding == "learned"
    if is_gpt2 and "linear_" in name:
        joined = parts[0].T if parts[0].dim() > 1 else parts[0]
        parts = list(joined.chunk(3)) if "linear_qkv" in name else [joined]

    if "linear_qkv" in name:
        groups = []
        for part in parts:
            groups.append(part.reshape(shape.kv_heads, -1, shape.head_size, *part.shape[1:]))

        return torch.cat(groups, 1).flatten(0, 2)

    value = torch.cat(parts)
    if name in PADDED:
        num_padding_rows = shape.padded_vocabulary - len(value)
        value = torch.nn.functional.pad(value, (0, 0, 0, num_padding_rows))

    return value.contiguous()


def _shapes_there(name: str, model: PlannedModel) -> list[tuple[int, ...]]:
    # Tensors on the meta device have shapes but no memory.
    weight = torch.empty(_our_shape(name, model), device="meta")
    return [tuple(part.shape) for part in to_theirs(name, weight, model)]


def export_folder(
    whole: WholeWeights,
    model: PlannedModel,
    request: OfflineRequest,
    end_of_document: int,
) -> dict[str, object]:
    """Write config.json and the weights in float32, in files of the requested size.

    Only one weight is in memory at a time, since a large model would not fit.
    """
    config = config_of(model, end_of_document)
    their_names = dict(_their_names(model, kinds()[str(config["model_type"])]))
    absent = {name for name in their_names if _lacks_bias(name, model)}
    # A checkpoint that lacks a weight is refused here, before anything is written.
    whole.stored_names(their_names.keys() - absent, masters=True)
    # GPT-2 always has biases, so absent biases are written as zeros.
    if config["model_type"] != "gpt2":
        for name in absent:
            del their_names[name]

    out = Path(request.out)
    _make_empty_folder(out)
    their_shapes = {name: _shapes_there(name, model) for name in their_names}
    shards = _split_into_shards(their_shapes, request.shard_bytes)
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for number, shard in enumerate(shards, 1):
        file_name = _shard_name(number, len(shards))
        for name in shard:
            weight_map |= dict.fromkeys(their_names[name], file_name)

        with (out / file_name).open("wb") as stream:
            header: dict[str, tuple[int, ...]] = {}
            for name in shard:
                header |= zip(their_names[name], their_shapes[name], strict=True)

            _write_header(stream, header)
            for name in shard:
                weight = _read_weight(whole, name, model, is_absent=name in absent)
                for tensor in to_theirs(name, weight, model):
                    stream.write(tensor.numpy().tobytes())

        total_bytes += (out / file_name).stat().st_size

    if len(shards) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        _write_json(out / "model.safetensors.index.json", index)

    _write_json(out / "config.json", config)
    return {
        "architecture": config["architectures"][0],  # type: ignore[index]
        "files": len(shards),
        "bytes": total_bytes,
    }


def _make_empty_folder(folder: Path) -> None:
    """Create `folder`.

    Raise `RefusedError` if it is not empty, since existing files are never overwritten.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise RefusedError(TrainingMessage.FOLDER_NOT_MADE, folder=folder, error=error) from None

    if not is_empty:
        raise RefusedError(TrainingMessage.FOLDER_NOT_EMPTY, folder=folder)


def _split_into_shards(
    shapes: Mapping[str, list[tuple[int, ...]]], shard_bytes: int
) -> list[list[str]]:
    """Return the names of the weights to write to each file, in order.

    A file exceeds `shard_bytes` only if a single weight does.
    """
    shards: list[list[str]] = [[]]
    room_bytes = shard_bytes
    for name, parts in shapes.items():
        weight_bytes = _FLOAT32_BYTES * sum(map(math.prod, parts))
        if weight_bytes > room_bytes and shards[-1]:
            shards.append([])
            room_bytes = shard_bytes

        shards[-1].append(name)
        room_bytes -= weight_bytes

    return shards


def _shard_name(number: int, count: int) -> str:
    """Return the file name expected by `transformers`. A single file has no number."""
    if count == 1:
        return "model.safetensors"
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def _read_weight(
    whole: WholeWeights,
    name: str,
    model: PlannedModel,
    *,
    is_absent: bool,
) -> torch.Tensor:
    """Return a weight in float32, or zeros if our model has no such weight. Check its shape."""
    shape = _our_shape(name, model)
    if is_absent:
        return torch.zeros(shape)

    weight = whole.read([name], masters=True)[name].float()
    if tuple(weight.shape) != shape:
        raise RefusedError(
            TrainingMessage.WEIGHT_SHAPE, name=name, shape=tuple(weight.shape), planned_shape=shape
        )
    return weight


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _is_linear_bias(name: str) -> bool:
    return "linear_" in name and name.endswith("bias")


def _has_bias(module: str, model: PlannedModel) -> bool:
    return model.shape.biases or (model.shape.qkv_biases and module == "linear_qkv")


def _lacks_bias(name: str, model: PlannedModel) -> bool:
    return _is_linear_bias(name) and not _has_bias(name.split(".")[-2], model)


def _write_header(stream: BinaryIO, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write the header of a safetensors file.

    The safetensors library is not used, because it can only write tensors that are completely in
    memory. The header consists of the length in eight bytes, followed by JSON
    (https://huggingface.co/docs/safetensors).
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, shape in shapes.items():
        end = start + _FLOAT32_BYTES * math.prod(shape)
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [start, end],
        }
        start = end

    text = json.dumps(header).encode()
    # Padded to align the following tensors to eight bytes.
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)


def check_shapes(
    folder: Path,
    stored: Mapping[str, tuple[int, ...]],
    planned: Mapping[str, tuple[int, ...]],
    ignored: tuple[str, ...],
) -> None:
    """Raise `RefusedError` if a weight is missing, misshapen, or not part of our model."""
    for name, shape in planned.items():
        if not stored.get(name):
            raise RefusedError(TrainingMessage.WEIGHT_MISSING, folder=folder, name=name)
        if stored[name] != shape:
            raise RefusedError(
                TrainingMessage.STORED_SHAPE,
                folder=folder,
                name=name,
                stored=stored[name],
                shape=shape,
            )

    unplanned = []
    for name in sorted(stored.keys() - planned.keys()):
        if not name.endswith(ignored):
            unplanned.append(name)

    if unplanned:
        raise RefusedError(
            TrainingMessage.UNPLANNED_WEIGHTS, folder=folder, unplanned=", ".join(unplanned[:4])
        )


class SourceWeights:
    """Weights from a different program, as a state that can be saved.

    `read_weight` reads each weight only when it is written.
    """

    # There is nothing to copy before the save
    host_copies = None

    def __init__(self, model: PlannedModel, names: Iterable[str]) -> None:
        """`names` are our names for the weights in the files from the other program."""
        self.model, self._ours = model, {stored_key(ours): ours for ours in names}

    def sharded_state(self) -> State:
        """Return all weights as shapes without data."""
        shapes = {}
        for key, ours in self._ours.items():
            shapes[key] = torch.empty(_our_shape(ours, self.model), device="meta")

        return {
            "model0": Shards(
                {key: ShardedTensor.from_rank_offsets(key, shape) for key, shape in shapes.items()}
            )
        }

    def common_state(self) -> CommonState:
        """Return zero steps, since the weights were not trained here."""
        return CommonState(0, {})


class ImportedWeights(SourceWeights):
    """Weights from a Hugging Face folder."""

    def __init__(self, folder: Path, model: PlannedModel) -> None:
        """Compare config.json, names and shapes with the planned model.

        Raise `RefusedError` with each difference.
        """
        biased = _check_config(folder, model)
        self._files = _SafetensorsFiles(folder)
        their_names = dict(_their_names(model, kinds()[kind_of(model)]))
        for ours in their_names:
            if _is_linear_bias(ours) and ours.split(".")[-2] not in biased:
                # A bias only the planned model has starts at zero
                their_names[ours] = ()

        shapes: dict[str, tuple[int, ...]] = {}
        for ours, theirs in their_names.items():
            if theirs:
                shapes |= zip(theirs, _shapes_there(ours, model), strict=True)

        self._files.check(shapes)
        absent = [ours for ours in their_names if _lacks_bias(ours, model)]
        for ours in absent:
            self._refuse_bias(their_names.pop(ours), folder)

        self._names = their_names
        super().__init__(model, self._names)

    def _refuse_bias(self, names: Iterable[str], folder: Path) -> None:
        """Raise `RefusedError` if a bias our model lacks is not zero."""
        for name in names:
            if bool(self._files.read(name).any()):
                raise RefusedError(TrainingMessage.BIAS_NOT_ZERO, folder=folder, name=name)

    def read_weight(self, key: str) -> torch.Tensor:
        """Read the parts of a weight and join them in our layout. A missing bias becomes zero."""
        ours = self._ours[key]
        parts = [self._files.read(name) for name in self._names[ours]]
        if parts:
            return to_ours(ours, parts, self.model)
        return torch.zeros(_our_shape(ours, self.model))


def _check_config(folder: Path, model: PlannedModel) -> set[str]:
    """Return our modules that have biases in the folder.

    Raise `RefusedError` with each value different from the plan.
    """
    path = folder / "config.json"
    theirs = _read_config(path)
    kind = kinds()[kind_of(model)]
    model_type = str(theirs.get("model_type"))
    if model_type not in kind.reads:
        needed = ", ".join(f"{key} {value}" for key, value in kind.needed.items())
        raise RefusedError(
            TrainingMessage.MODEL_TYPE,
            path=path,
            model_type=model_type,
            model_name=model.name,
            needed=needed,
            reads=", ".join(kind.reads),
        )

    _refuse_unknown(path, theirs, kind)
    values = _meaning(theirs, kind, model)
    planned = _planned_values(kind, model)
    # The same function can have several names, so both sides are mapped to a single name before
    # they are compared.
    for key in planned.keys() & {"activation_function", "hidden_act"}:
        for activations in (planned, values):
            activation = activations.get(key)
            activations[key] = _SAME_ACTIVATIONS.get(str(activation), activation)

    if wrong := folders.differences(values, planned):
        raise RefusedError(TrainingMessage.ANOTHER_MODEL, path=path, wrong=wrong)

    _refuse_two_values(path, theirs)
    biased = set(kind.reads[model_type]["biased"])
    for key, modules in kind.biases.items():
        if values.get(key):
            biased.update(modules)

    return biased


def _read_config(path: Path) -> dict[str, object]:
    try:
        folders.require_file(path)
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError(TrainingMessage.CONFIG_NOT_JSON, path=path, error=error) from None

    if not isinstance(content, dict):
        raise RefusedError(TrainingMessage.NOT_A_MAPPING, path=path)
    return content


def _planned_values(kind: Kind, model: PlannedModel) -> dict[str, object]:
    """Return the values that config.json must contain to match the planned model."""
    # Dropout and initialization do not change what trained weights compute. If positions are
    # rotary, the longest sequence does not matter either.
    free = {"dropout", "init_std"}
    if model.shape.position_embedding == "rope":
        free.add("positions")

    values: dict[str, object] = {}
    for their_key, our_key in kind.values.items():
        if our_key not in free:
            values[their_key] = value_at(model, our_key)

    return {
        **values,
        **kind.constants,
        "rope_type": "default",
        **dict.fromkeys(_NOT_OURS),
    }


def _refuse_unknown(path: Path, theirs: Mapping[str, object], kind: Kind) -> None:
    """Raise `RefusedError` for an unknown key, or if two names for one key have different values.

    An unknown key in config.json may change the model, so only known keys are accepted.
    """
    model_type = str(theirs["model_type"])
    aliases = _ALIASES.get(model_type, {})
    accepted = {
        *_HARMLESS,
        *_NOT_OURS,
        *kind.values,
        *kind.constants,
        *kind.biases,
        *kind.reads[model_type]["defaults"],
        *aliases,
    }
    for key, value in theirs.items():
        if value is None:
            continue
        if key in _FIXED:
            if value not in _FIXED[key]:  # type: ignore[operator]
                raise RefusedError(
                    TrainingMessage.KEY_OF_ANOTHER_MODEL, path=path, key=key, value=_shown(value)
                )
        elif key not in accepted:
            raise RefusedError(
                TrainingMessage.UNKNOWN_CONFIG_KEY, path=path, key=key, value=_shown(value)
            )

    for alias, name in aliases.items():
        if alias in theirs and theirs[alias] != theirs.get(name, theirs[alias]):
            raise RefusedError(
                TrainingMessage.ALIAS_DIFFERS,
                path=path,
                name=name,
                value=theirs[name],
                value_of_alias=theirs[alias],
                alias=alias,
            )

    layer_types = theirs.get("layer_types")
    if layer_types is not None and not _is_full_attention(layer_types):
        raise RefusedError(TrainingMessage.LAYER_TYPES, path=path, layer_types=_shown(layer_types))

    _refuse_scaled_positions(path, theirs)


def _is_full_attention(layer_types: object) -> bool:
    if not isinstance(layer_types, list):
        return False
    return all(layer_type == "full_attention" for layer_type in layer_types)


def _refuse_scaled_positions(path: Path, theirs: Mapping[str, object]) -> None:
    """Raise `RefusedError` unless rotary positions have the default type, without scaling."""
    for key in ("rope_scaling", "rope_parameters"):
        rotary = theirs.get(key)
        if rotary is None:
            continue
        if not isinstance(rotary, Mapping):
            raise RefusedError(
                TrainingMessage.ROTARY_NOT_A_MAPPING, path=path, key=key, rotary=_shown(rotary)
            )
        for name in ("rope_type", "type"):
            if rotary.get(name, "default") not in ("default", None):
                raise RefusedError(
                    TrainingMessage.ROPE_TYPE, path=path, key=key, rotary=rotary[name]
                )

        if unknown := sorted(map(str, rotary.keys() - _ROTARY_KEYS)):
            raise RefusedError(
                TrainingMessage.ROTARY_KEYS, path=path, key=key, unknown=", ".join(unknown)
            )


def _refuse_two_values(path: Path, theirs: Mapping[str, object]) -> None:
    """Raise `RefusedError` if config.json has two values for the same rotary position key."""
    mappings = [theirs, theirs.get("rope_scaling"), theirs.get("rope_parameters")]
    for name in ("rope_theta", "partial_rotary_factor"):
        values = []
        for mapping in mappings:
            if isinstance(mapping, Mapping) and mapping.get(name) is not None:
                values.append(mapping[name])

        if any(value != values[0] for value in values):
            raise RefusedError(
                TrainingMessage.ROTARY_TWICE,
                path=path,
                name=name,
                values=", ".join(map(str, values)),
            )


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _meaning(theirs: dict[str, object], kind: Kind, model: PlannedModel) -> dict[str, object]:
    """Return the content of a config.json with defaults filled in."""
    model_type = str(theirs.get("model_type"))
    rotary: dict[str, object] = {}
    # transformers 4 writes the first name, and transformers 5 writes the second.
    for key in ("rope_scaling", "rope_parameters"):
        rotary.update(theirs.get(key) or {})  # type: ignore[call-overload]

    values = {**kind.reads[model_type]["defaults"], **theirs, **rotary}
    for alias, name in _ALIASES.get(model_type, {}).items():
        if alias in theirs:
            values.setdefault(name, theirs[alias])

    # A null value means the same as a missing key.
    defaults = {
        "n_inner": 4 * model.shape.hidden,
        "num_key_value_heads": values.get("num_attention_heads"),
        "head_dim": model.shape.head_size,
    }
    for key, default in defaults.items():
        if values.get(key) is None:
            values[key] = default

    # Qwen 2 writes a sliding window it does not use.
    if model_type == "qwen2" and not theirs.get("use_sliding_window"):
        values["sliding_window"] = None
    values["rope_type"] = rotary.get("rope_type") or rotary.get("type") or "default"
    for key in _NOT_OURS:
        if not values.get(key):
            values[key] = None

    return values


_EIGHT_BITS = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4", "F6_E2M3")


class _SafetensorsFiles:
    """All tensors in the .safetensors files in a folder, by name.

    Files in other formats are not opened.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:
            # A container image may have only torch and megatron-core
            raise RefusedError(TrainingMessage.SAFETENSORS_MISSING) from None

        self._folder = folder
        self._files: dict[str, Any] = {}
        self._places: dict[str, str] = {}
        for path in sorted(folder.glob("*.safetensors")):
            try:
                folders.require_file(path)
                file: Any = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise RefusedError(
                    TrainingMessage.NOT_SAFETENSORS, path=path, error=error
                ) from None

            self._add(path, file)

        if not self._files:
            raise RefusedError(TrainingMessage.NO_SAFETENSORS, folder=folder)

        self._check_index(folder / "model.safetensors.index.json")

    def _add(self, path: Path, file: Any) -> None:
        """Add the names in a file. Raise `RefusedError` if a weight occurs twice."""
        for name in file.offset_keys():
            if _plain(name) in self._files:
                raise RefusedError(
                    TrainingMessage.WEIGHT_TWICE,
                    folder=self._folder,
                    name=_plain(name),
                    stored_name=name,
                    file=path.name,
                )

            self._files[_plain(name)] = (file, name)
            self._places[_plain(name)] = path.name

    def _check_index(self, path: Path) -> None:
        """Raise `RefusedError` if an index file exists and assigns a weight to the wrong file."""
        if not path.exists():
            return
        try:
            folders.require_file(path)
            places = dict(json.loads(path.read_text(encoding="utf-8"))["weight_map"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RefusedError(TrainingMessage.INDEX_NOT_READABLE, path=path, error=error) from None

        for name, file in places.items():
            if self._places.get(_plain(str(name))) != file:
                raise RefusedError(
                    TrainingMessage.WEIGHT_IN_ANOTHER_FILE,
                    path=path,
                    name=name,
                    named_file=file,
                    place=self._places.get(_plain(str(name)), "no file of the folder"),
                )

    def check(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Raise `RefusedError` for a missing, unknown or unexpected tensor.

        Shape and format must match our model.
        """
        for name in shapes:
            if _plain(name) in self._files:
                self._refuse_format(name)

        shapes_there = {}
        for plain_name, (file, stored_name) in self._files.items():
            shapes_there[plain_name] = tuple(file.get_slice(stored_name).get_shape())

        # First check the tensors the model needs, then those it does not need.
        compared = {name: shapes_there.pop(_plain(name), ()) for name in shapes}
        compared |= shapes_there
        check_shapes(self._folder, compared, shapes, _BUFFERS)

    def _refuse_format(self, name: str) -> None:
        """Raise `RefusedError` if a tensor is in float64, or in a format with 8 bits or fewer."""
        file, stored_name = self._files[_plain(name)]
        number_format = file.get_slice(stored_name).get_dtype()
        if number_format in ("F64", *_EIGHT_BITS):
            raise RefusedError(
                TrainingMessage.NUMBER_FORMAT,
                folder=self._folder,
                name=name,
                number_format=number_format,
            )

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor in float32."""
        file, there = self._files[_plain(name)]
        return finite(file.get_tensor(there), self._folder, name).float()


def _plain(name: str) -> str:
    """Remove the prefix that a weight name has in the model it was saved in."""
    return name.removeprefix("transformer.").removeprefix("model.")

"""Whole weights of a checkpoint, and Hugging Face's GPT-2 folder: export and import."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import PhasePlan, PlannedModel
from runbook.training.checkpoints import folders, torch_dist


@dataclass(frozen=True)
class WholeWeights:
    """The weights of one checkpoint that was verified."""

    folder: Path
    iteration: int
    metadata: Metadata

    def stored_names(self, names: Iterable[str], *, masters: bool) -> dict[str, str]:
        """The names under which weights are stored: where `masters`, as the optimizer has them, if it has them."""
        known, stored = self.metadata.state_dict_metadata, {}
        for name in names:
            key = name
            for norm, fused in _FUSED_NORMS.items():
                key = key.replace(f".{norm}.", f".{fused}.layer_norm_")
            if not isinstance(known.get(key), TensorStorageMetadata):
                raise RefusedError(f"{self.folder} lacks {name}: it is of another model")
            master = f"optimizer.state.fp32_param.{key}"  # the float32 copy, which the optimizer steps
            stored[name] = master if masters and master in known else key
        return stored

    def read(self, names: Iterable[str], *, masters: bool) -> dict[str, torch.Tensor]:
        """These weights; `RefusedError` where one is missing or damaged."""
        shards = torch_dist.StoredShards(self.folder / folders.SHARDS, self.metadata)
        weights = {}
        for name, key in self.stored_names(names, masters=masters).items():
            weight = weights[name] = shards.read_whole(key)
            if not weight.is_floating_point() or not bool(torch.isfinite(weight).all()):
                raise RefusedError(
                    f"{shards.folder}: {name} holds numbers that are none (NaN or infinite), or whole ones"
                )
        return weights


_FUSED_NORMS = {"input_layernorm": "self_attention.linear_qkv", "pre_mlp_layernorm": "mlp.linear_fc1"}
"""megatron-core stores a norm with the matrix behind it, as Transformer Engine joins them."""


def newest_weights(spec: PhasePlan, iteration: int = 0) -> WholeWeights:
    """The newest whole checkpoint, or that of one iteration; `RefusedError` says why there is none."""
    root = spec.path(spec.checkpoint.folder)
    checkpoints, problems = folders.candidates(root)
    for candidate in checkpoints:
        if iteration and candidate.iteration != iteration:
            continue
        problem = folders.checksum_fault(candidate, sorted(candidate.metadata["files"]))
        if problem:
            problems.append(problem)
            continue
        described = torch_dist.check_shards(candidate.folder / folders.SHARDS, candidate.shards())
        return WholeWeights(candidate.folder, candidate.iteration, described)
    available = ", ".join(str(candidate.iteration) for candidate in checkpoints) or "none"
    wanted = f"no whole checkpoint of iteration {iteration}" if iteration else "no whole checkpoint"
    raise RefusedError("\n  ".join([f"{root} has {wanted} (there are: {available})", *problems]))


def gpt2_weights(model: PlannedModel) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Hugging Face's name and shape of each of our weights; `RefusedError` says in what a model is not GPT-2's kind."""
    needed = {
        "position_embedding": "learned", "normalization": "layernorm", "activation": "gelu", "biases": True,
        "kv_heads": model.heads,
    }  # fmt: skip
    if wrong := folders.differences({key: getattr(model, key) for key in needed}, needed, "needed"):
        raise RefusedError(f"model {model.name} is not of GPT-2's kind: {wrong}")
    hidden, ffn = model.hidden, model.ffn_hidden
    layer_modules: dict[str, tuple[str, tuple[int, ...]]] = {
        "input_layernorm": ("ln_1", (hidden,)),
        "self_attention.linear_qkv": ("attn.c_attn", (hidden, 3 * hidden)),
        "self_attention.linear_proj": ("attn.c_proj", (hidden, hidden)),
        "pre_mlp_layernorm": ("ln_2", (hidden,)),
        "mlp.linear_fc1": ("mlp.c_fc", (hidden, ffn)),
        "mlp.linear_fc2": ("mlp.c_proj", (ffn, hidden)),
    }
    modules = {
        f"decoder.layers.{layer}.{ours}": (f"transformer.h.{layer}.{theirs}", shape)
        for layer in range(model.layers)
        for ours, (theirs, shape) in layer_modules.items()
    }
    weights: dict[str, tuple[str, tuple[int, ...]]] = {
        "embedding.word_embeddings.weight": ("transformer.wte.weight", (model.vocabulary, hidden)),
        "embedding.position_embeddings.weight": ("transformer.wpe.weight", (model.positions, hidden)),
    }
    for ours, (theirs, shape) in {**modules, "decoder.final_layernorm": ("transformer.ln_f", (hidden,))}.items():
        weights[f"{ours}.weight"] = f"{theirs}.weight", shape
        weights[f"{ours}.bias"] = f"{theirs}.bias", shape[-1:]
    if not model.tied_embeddings:
        weights["output_layer.weight"] = "lm_head.weight", (model.vocabulary, hidden)
    return weights


def export_gpt2(whole: WholeWeights, model: PlannedModel, out: Path, end_of_document: int) -> None:
    """Write config.json and model.safetensors in float32; one weight at a time is in memory."""
    known = gpt2_weights(model)
    whole.stored_names(known, masters=True)  # before anything is written
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"{out} cannot be made a folder: {error}") from None

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for theirs, shape in known.values():
        size = 4 * math.prod(shape)
        header[theirs] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = out / "model.safetensors.part"
    with part.open("wb") as stream:  # by hand: the safetensors library writes only what is in memory as a whole
        stream.write(len(text).to_bytes(8, "little") + text)
        for ours, (theirs, shape) in known.items():
            tensor = to_gpt2(ours, whole.read([ours], masters=True)[ours].float(), model)
            if tuple(tensor.shape) != shape:
                raise RefusedError(f"{theirs} is {tuple(tensor.shape)}, and the plan's model has {shape}")
            stream.write(tensor.contiguous().numpy().tobytes())
    part.rename(out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(gpt2_config(model, end_of_document), indent=1) + "\n", encoding="utf-8")


def import_gpt2(folder: Path, model: PlannedModel) -> dict[str, torch.Tensor]:
    """Our weights from a Hugging Face folder; `RefusedError` names each value of its config that is not the plan's."""
    known = gpt2_weights(model)
    defaults = {"activation_function": "gelu_new", "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5}
    wanted = {key: value for key, value in gpt2_config(model, 0).items() if key in _MUST_AGREE}
    if wrong := folders.differences({**defaults, **_read_config(folder)}, wanted):
        raise RefusedError(f"{folder}/config.json is of another model: {wrong}")
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= {name.removeprefix("transformer."): value for name, value in read_safetensors(path).items()}
    if not tensors:
        raise RefusedError(f"{folder} has no .safetensors file; other formats may hold code and are not read")
    imported: dict[str, torch.Tensor] = {}
    for ours, (name, shape) in known.items():
        value = tensors.get(name.removeprefix("transformer."))
        if value is None:
            raise RefusedError(f"{folder} has no weight {name}")
        if tuple(value.shape) != shape:
            raise RefusedError(f"{folder}: {name} is {tuple(value.shape)}, and the plan's model has {shape}")
        if not bool(torch.isfinite(value).all()):
            raise RefusedError(f"{folder}: {name} holds numbers that are none (NaN or infinite)")
        imported[ours] = from_gpt2(ours, value, model)
    return imported


def _read_config(folder: Path) -> dict[str, object]:
    path = folder / "config.json"
    try:
        theirs = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(theirs, dict):
        raise RefusedError(f"{path} is no mapping of names to values")
    return theirs


def to_gpt2(name: str, value: torch.Tensor, model: PlannedModel) -> torch.Tensor:
    """One of our weights as Hugging Face keeps it: [in, out] for matrices, all queries before all keys and values."""
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return value[: model.vocabulary]
    if "linear_qkv" in name:
        value = _swap_blocks(value, model.heads, 3)
    return value.T.contiguous() if _is_matrix(name) else value


def from_gpt2(name: str, value: torch.Tensor, model: PlannedModel) -> torch.Tensor:
    """The reverse of `to_gpt2`; rows of the padding of the vocabulary are zero."""
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return torch.cat([value, torch.zeros(model.padded_vocabulary - len(value), value.shape[1])])
    value = value.T.contiguous() if _is_matrix(name) else value
    if "linear_qkv" in name:
        value = _swap_blocks(value, 3, model.heads)
    return value.contiguous()


def _swap_blocks(value: torch.Tensor, outer: int, inner: int) -> torch.Tensor:
    """The rows, which are `outer` blocks of `inner` blocks, as `inner` blocks of `outer` blocks."""
    return value.reshape(outer, inner, -1, *value.shape[1:]).transpose(0, 1).reshape(value.shape)


def gpt2_config(model: PlannedModel, end_of_document: int) -> dict[str, object]:
    """The model as Hugging Face's config.json describes it."""
    return {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": model.vocabulary,
        "n_positions": model.positions, "n_embd": model.hidden, "n_layer": model.layers, "n_head": model.heads,
        "n_inner": model.ffn_hidden, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "initializer_range": model.init_std, "resid_pdrop": model.dropout, "embd_pdrop": model.dropout,
        "attn_pdrop": model.dropout, "tie_word_embeddings": model.tied_embeddings,
        "bos_token_id": end_of_document if end_of_document >= 0 else None,
        "eos_token_id": end_of_document if end_of_document >= 0 else None, "torch_dtype": "float32",
    }  # fmt: skip


_MUST_AGREE = (
    "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "activation_function", "layer_norm_epsilon",
    "tie_word_embeddings",
)  # fmt: skip


def _is_matrix(name: str) -> bool:
    return "linear_" in name and name.endswith("weight")


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file, in float32; `RefusedError` where it is none."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:  # an image of torch and megatron-core alone
        raise RefusedError("the package safetensors is not installed here: install gpt3-runbook[train]") from None
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise RefusedError(f"{path} is no safetensors file, or it is cut short: {error}") from None
    return {name: tensor.float() for name, tensor in tensors.items() if tensor.is_floating_point()}

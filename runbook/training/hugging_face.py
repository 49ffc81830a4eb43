"""Hugging Face's GPT-2 folder (config.json, model.safetensors) from our weights and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from runbook.training import safetensors_file
from runbook.training.errors import RefusedError
from runbook.training.spec import Model
from runbook.training.whole_weights import Whole

_LAYER = {
    "input_layernorm.weight": "ln_1.weight",
    "input_layernorm.bias": "ln_1.bias",
    "self_attention.linear_qkv.weight": "attn.c_attn.weight",
    "self_attention.linear_qkv.bias": "attn.c_attn.bias",
    "self_attention.linear_proj.weight": "attn.c_proj.weight",
    "self_attention.linear_proj.bias": "attn.c_proj.bias",
    "pre_mlp_layernorm.weight": "ln_2.weight",
    "pre_mlp_layernorm.bias": "ln_2.bias",
    "mlp.linear_fc1.weight": "mlp.c_fc.weight",
    "mlp.linear_fc1.bias": "mlp.c_fc.bias",
    "mlp.linear_fc2.weight": "mlp.c_proj.weight",
    "mlp.linear_fc2.bias": "mlp.c_proj.bias",
}
"""Megatron's names in a layer, and Hugging Face's."""


def names(model: Model) -> dict[str, str]:
    """Our name of every weight, and Hugging Face's; `RefusedError` where the model is not GPT-2's kind."""
    refuse_other(model)
    found = {
        "embedding.word_embeddings.weight": "transformer.wte.weight",
        "embedding.position_embeddings.weight": "transformer.wpe.weight",
    }
    for layer in range(model.layers):
        found |= {f"decoder.layers.{layer}.{ours}": f"transformer.h.{layer}.{hf}" for ours, hf in _LAYER.items()}
    found |= {f"decoder.final_layernorm.{kind}": f"transformer.ln_f.{kind}" for kind in ("weight", "bias")}
    return found if model.tied_embeddings else found | {"output_layer.weight": "lm_head.weight"}


def refuse_other(model: Model) -> None:
    """`RefusedError` with everything in which a model is not GPT-2's kind."""
    rules = {
        "position_embedding": "learned", "normalization": "layernorm", "activation": "gelu", "biases": True,
        "kv_heads": model.heads,
    }  # fmt: skip
    wrong = [f"{key} {getattr(model, key)} (needed: {value})" for key, value in rules.items()]
    wrong = [text for text, (key, value) in zip(wrong, rules.items(), strict=True) if getattr(model, key) != value]
    if wrong:
        raise RefusedError(f"model {model.name} is not of GPT-2's kind: {', '.join(wrong)}")


def export(whole: Whole, model: Model, out: Path, end_of_document: int) -> None:
    """Write config.json and model.safetensors in float32; one weight at a time is in memory."""
    known = names(model)
    missing = sorted(set(known) - set(whole.names()))
    if missing:
        raise RefusedError(f"{whole.folder} lacks {missing[0]}: it is of another model")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"{out} cannot be made a folder: {error}") from None

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for ours, theirs in known.items():
            yield theirs, to_gpt2(ours, whole.read([ours], masters=True)[ours].float(), model)

    shapes = {theirs: _shape(ours, whole, model) for ours, theirs in known.items()}
    safetensors_file.write(out / "model.safetensors", shapes, tensors())
    (out / "config.json").write_text(json.dumps(config(model, end_of_document), indent=1) + "\n", encoding="utf-8")


def read(folder: Path, model: Model) -> dict[str, torch.Tensor]:
    """Our weights from a Hugging Face folder; `RefusedError` names each value of its config that is not the plan's."""
    known = names(model)
    theirs = _config_of(folder)
    wanted = {key: value for key, value in config(model, 0).items() if key in _MUST_AGREE}
    defaults = {"activation_function": "gelu_new", "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5}
    wrong = [
        f"{key} {found} (plan: {value})"
        for key, value in wanted.items()
        if (found := theirs.get(key, defaults.get(key))) != value
    ]
    if wrong:
        raise RefusedError(f"{folder}/config.json is of another model: {', '.join(wrong)}")
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= {name.removeprefix("transformer."): value for name, value in safetensors_file.read(path).items()}
    if not tensors:
        raise RefusedError(f"{folder} has no .safetensors file; other formats may hold code and are not read")
    found = {}
    for ours, name in known.items():
        value = tensors.get(name.removeprefix("transformer."))
        if value is None:
            raise RefusedError(f"{folder} has no weight {name}")
        if tuple(value.shape) != (shape := gpt2_shape(ours, model)):
            raise RefusedError(f"{folder}: {name} is {tuple(value.shape)}, and the plan's model has {shape}")
        if not bool(torch.isfinite(value).all()):
            raise RefusedError(f"{folder}: {name} holds numbers that are none (NaN or infinite)")
        found[ours] = from_gpt2(ours, value, model)
    return found


def _config_of(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        theirs = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(theirs, dict):
        raise RefusedError(f"{path} is no mapping of names to values")
    return theirs


def gpt2_shape(name: str, model: Model) -> tuple[int, ...]:
    """The shape in which Hugging Face keeps one of our weights."""
    hidden, ffn = model.hidden, model.ffn_hidden
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return (model.vocabulary, hidden)
    if name == "embedding.position_embeddings.weight":
        return (model.positions, hidden)
    part = name.split(".")[-2]
    into, out = {"linear_qkv": (hidden, 3 * hidden), "linear_fc1": (hidden, ffn), "linear_fc2": (ffn, hidden)}.get(
        part, (hidden, hidden)
    )
    return (into, out) if _is_matrix(name) else (out,)


def to_gpt2(name: str, value: torch.Tensor, model: Model) -> torch.Tensor:
    """One of our weights as Hugging Face keeps it: [in, out] for matrices, all queries before all keys and values."""
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return value[: model.vocabulary]
    if "linear_qkv" in name:
        size = model.hidden // model.heads
        value = value.view(model.heads, 3, size, -1).transpose(0, 1).reshape(3 * model.hidden, -1)
        value = value[:, 0] if name.endswith("bias") else value
    return value.T.contiguous() if _is_matrix(name) else value


def from_gpt2(name: str, value: torch.Tensor, model: Model) -> torch.Tensor:
    """The reverse of `to_gpt2`; rows of the padding of the vocabulary are zero."""
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return torch.cat([value, torch.zeros(model.padded_vocabulary - len(value), value.shape[1])])
    value = value.T.contiguous() if _is_matrix(name) else value
    if "linear_qkv" in name:
        size = model.hidden // model.heads
        value = value.reshape(3, model.heads, size, -1).transpose(0, 1).reshape(3 * model.hidden, -1)
        value = value[:, 0] if name.endswith("bias") else value
    return value.contiguous()


def config(model: Model, end_of_document: int) -> dict[str, Any]:
    """The model in Hugging Face's own words."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.vocabulary,
        "n_positions": model.positions,
        "n_embd": model.hidden,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_inner": model.ffn_hidden,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "initializer_range": model.init_std,
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.dropout,
        "tie_word_embeddings": model.tied_embeddings,
        "bos_token_id": end_of_document if end_of_document >= 0 else None,
        "eos_token_id": end_of_document if end_of_document >= 0 else None,
        "torch_dtype": "float32",
    }


_MUST_AGREE = (
    "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "activation_function", "layer_norm_epsilon",
    "tie_word_embeddings",
)  # fmt: skip


def _is_matrix(name: str) -> bool:
    return "linear_" in name and name.endswith("weight")


def _shape(name: str, whole: Whole, model: Model) -> tuple[int, ...]:
    shape = whole.shape(name)
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return (model.vocabulary, shape[1])
    return shape[::-1] if _is_matrix(name) else shape

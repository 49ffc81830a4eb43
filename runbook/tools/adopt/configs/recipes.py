"""Recipes in NeMo 2 and Megatron Bridge, each with its model and settings.

Based on NVIDIA/NeMo (nemo/collections/llm/recipes, 2025-09) and NVIDIA-NeMo/Megatron-Bridge
(2026-08).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from runbook.tools.adopt.program_arguments import ModelKind

LLAMA: ModelKind = {
    "activation": "swiglu",
    "tied_embeddings": False,
    "biases": False,
    "position_embedding": "rope",
    "normalization": "rmsnorm",
}
LLAMA_3: ModelKind = {**LLAMA, "rope_base": 500_000}
LLAMA_3_SMALL: ModelKind = {**LLAMA_3, "tied_embeddings": True}
QWEN_2: ModelKind = {
    **LLAMA,
    "qkv_biases": True,
    "norm_epsilon": 1e-6,
    "rope_base": 1_000_000,
}
GPT: ModelKind = {"activation": "gelu"}


@dataclass(frozen=True)
class ModelRecipe:
    """The model trained by a recipe."""

    model: str = ""
    """The model name in the catalogue; empty if `shape` defines the model."""
    shape: Mapping[str, int] = field(default_factory=dict)
    kind: ModelKind = field(default_factory=dict)
    vocabulary: int = 0
    layout: Mapping[str, Any] = field(default_factory=dict)
    """Layout and batch in NeMo, by dotted key."""


def _layout(
    *,
    tensor: int = 1,
    pipeline: int = 1,
    context: int = 1,
    virtual: int | None = None,
    global_batch: int = 512,
    micro_batch: int = 1,
    sequence_length: int = 8192,
) -> dict[str, object]:
    """Return the layout and batch in a recipe by dotted key."""
    strategy = "trainer.strategy"
    return {
        f"{strategy}.tensor_model_parallel_size": tensor,
        f"{strategy}.pipeline_model_parallel_size": pipeline,
        f"{strategy}.context_parallel_size": context,
        f"{strategy}.virtual_pipeline_model_parallel_size": virtual,
        f"{strategy}.sequence_parallel": tensor > 1 and pipeline > 1,
        "data.global_batch_size": global_batch,
        "data.micro_batch_size": micro_batch,
        "data.seq_length": sequence_length,
    }


def _qwen_layout(tensor: int = 1) -> dict[str, object]:
    """Return the layout in a Qwen recipe. These recipes use small batches."""
    return _layout(tensor=tensor, global_batch=32, micro_batch=2, sequence_length=4096)


_LLAMA_3_70B_LAYOUT = _layout(tensor=4, pipeline=4, context=2, virtual=5)
_LLAMA_2_7B = ModelRecipe(
    model="llama-2-7b",
    kind=LLAMA,
    layout=_layout(tensor=2, sequence_length=4096),
)
_LLAMA_3_8B = ModelRecipe(
    model="llama-3-8b",
    kind=LLAMA_3,
    layout=_layout(context=2),
)
_LLAMA_3_70B = ModelRecipe(
    model="llama-3-70b",
    kind=LLAMA_3,
    layout=_LLAMA_3_70B_LAYOUT,
)
_LLAMA_31_405B = ModelRecipe(
    model="llama-3-405b",
    kind=LLAMA_3,
    layout=_layout(tensor=8, pipeline=8, context=4, virtual=2),
)
_LLAMA_32_1B = ModelRecipe(
    shape={
        "layers": 16,
        "hidden": 2048,
        "heads": 32,
        "kv_heads": 8,
        "ffn_hidden": 8192,
    },
    kind=LLAMA_3_SMALL,
    vocabulary=128_256,
    layout=_layout(),
)
_LLAMA_32_3B = ModelRecipe(
    shape={
        "layers": 28,
        "hidden": 3072,
        "heads": 24,
        "kv_heads": 8,
        "ffn_hidden": 8192,
    },
    kind=LLAMA_3_SMALL,
    vocabulary=128_256,
    layout=_layout(),
)
_GPT_3_175B = ModelRecipe(
    model="175b",
    kind=GPT,
    layout=_layout(
        tensor=4,
        pipeline=8,
        virtual=6,
        global_batch=2048,
        micro_batch=2,
        sequence_length=2048,
    ),
)
_QWEN_2_500M = ModelRecipe(
    shape={
        "layers": 24,
        "hidden": 896,
        "heads": 14,
        "kv_heads": 2,
        "ffn_hidden": 4864,
    },
    kind=QWEN_2,
    vocabulary=151_936,
    layout=_qwen_layout(),
)
_QWEN_2_1P5B = ModelRecipe(
    shape={
        "layers": 28,
        "hidden": 1536,
        "heads": 12,
        "kv_heads": 2,
        "ffn_hidden": 8960,
    },
    kind=QWEN_2,
    vocabulary=151_936,
    layout=_qwen_layout(),
)
_QWEN_2_7B = ModelRecipe(
    shape={
        "layers": 28,
        "hidden": 3584,
        "heads": 28,
        "kv_heads": 4,
        "ffn_hidden": 18_944,
    },
    kind=QWEN_2,
    vocabulary=152_064,
    layout=_qwen_layout(tensor=2),
)
RECIPES: Mapping[str, ModelRecipe] = {
    "llama2_7b": _LLAMA_2_7B,
    "llama3_8b": _LLAMA_3_8B,
    "llama31_8b": _LLAMA_3_8B,
    "llama3_70b": _LLAMA_3_70B,
    "llama31_70b": _LLAMA_3_70B,
    "llama31_405b": _LLAMA_31_405B,
    "llama32_1b": _LLAMA_32_1B,
    "llama32_3b": _LLAMA_32_3B,
    "gpt3_175b": _GPT_3_175B,
    "qwen2_500m": _QWEN_2_500M,
    "qwen25_500m": _QWEN_2_500M,
    "qwen2_1p5b": _QWEN_2_1P5B,
    "qwen25_1p5b": _QWEN_2_1P5B,
    "qwen2_7b": _QWEN_2_7B,
    "qwen25_7b": _QWEN_2_7B,
}
_CLASSES: Mapping[str, ModelRecipe] = {
    "Llama2Config7B": _LLAMA_2_7B,
    "Llama3Config8B": _LLAMA_3_8B,
    "Llama31Config8B": _LLAMA_3_8B,
    "Llama3Config70B": _LLAMA_3_70B,
    "Llama31Config70B": _LLAMA_3_70B,
    "Llama31Config405B": _LLAMA_31_405B,
    "Llama32Config1B": _LLAMA_32_1B,
    "Llama32Config3B": _LLAMA_32_3B,
    "GPTConfig175B": _GPT_3_175B,
    "Qwen2Config500M": _QWEN_2_500M,
    "Qwen25Config500M": _QWEN_2_500M,
    "Qwen2Config1P5B": _QWEN_2_1P5B,
    "Qwen25Config1P5B": _QWEN_2_1P5B,
    "Qwen2Config7B": _QWEN_2_7B,
    "Qwen25Config7B": _QWEN_2_7B,
}
"""Classes that hold model sizes (nemo/collections/llm/gpt/model), in model.config._target_."""
_WEIGHTS: Mapping[str, ModelRecipe] = {
    "llama-2-7b-hf": _LLAMA_2_7B,
    "meta-llama-3-8b": _LLAMA_3_8B,
    "meta-llama-3.1-8b": _LLAMA_3_8B,
    "llama-3.1-8b": _LLAMA_3_8B,
    "meta-llama-3-70b": _LLAMA_3_70B,
    "meta-llama-3.1-70b": _LLAMA_3_70B,
    "llama-3.1-70b": _LLAMA_3_70B,
    "meta-llama-3.1-405b": _LLAMA_31_405B,
    "llama-3.1-405b": _LLAMA_31_405B,
    "llama-3.2-1b": _LLAMA_32_1B,
    "llama-3.2-3b": _LLAMA_32_3B,
    "qwen2-0.5b": _QWEN_2_500M,
    "qwen2.5-0.5b": _QWEN_2_500M,
    "qwen2-1.5b": _QWEN_2_1P5B,
    "qwen2.5-1.5b": _QWEN_2_1P5B,
    "qwen2-7b": _QWEN_2_7B,
    "qwen2.5-7b": _QWEN_2_7B,
}
"""Hugging Face Hub models used in Megatron Bridge recipes, named without the owner."""
OTHER_MODELS = (
    "mixtral",
    "deepseek",
    "moe",
    "llama4",
    "mamba",
    "nemotronh",
    "nemotron_nano",
    "nemotron_3",
    "hyena",
    "bert",
    "t5",
    "llava",
    "vl",
    "flux",
    "wan",
    "dit",
    "gpt_oss",
    "a3b",
    "a22b",
    "e5_",
    "embedding",
    "reranker",
    "diffusion",
    "kimi",
    "glm45",
    "minimax",
)
"""Substrings in names of recipes whose models are not dense GPTs."""


def recipe_of(name: str) -> ModelRecipe | None:
    """Return the recipe with a name, which may end in a sequence length.

    Return None if the table has no such recipe.

    >>> recipe_of("llama3_8b_16k").layout["data.seq_length"], recipe_of("nemotron4_15b")
    (16384, None)
    """
    if name in RECIPES:
        return RECIPES[name]
    base, _, ending = name.rpartition("_")
    lengths = {"16k": 16_384, "64k": 65_536, "128k": 131_072}
    if base not in RECIPES or ending not in lengths:
        return None
    recipe = RECIPES[base]
    layout = {**recipe.layout, "data.seq_length": lengths[ending]}
    return replace(recipe, layout=layout)


def recipe_of_class(path: str) -> ModelRecipe | None:
    """Return the model for a class such as `llm.Llama31Config8B`, or None."""
    return _CLASSES.get(path.rpartition(".")[2])


def weights_of(source: str) -> str:
    """Return the Hub name of the model in the source of a provider, or an empty string.

    >>> weights_of('AutoBridge.from_hf_pretrained("meta-llama/Llama-3.2-1B").get_model_config')
    'Llama-3.2-1B'
    """
    literal = re.search(r"from_hf_pretrained\(\s*(['\"])(?:[^'\"]*/)?([^'\"/]+)\1", source)
    return literal[2] if literal else ""


def recipe_of_weights(name: str) -> ModelRecipe | None:
    """Return the model that has this name on the Hugging Face Hub, or None."""
    return _WEIGHTS.get(name.lower())


def is_other_model(name: str) -> bool:
    """Return whether a recipe trains a model other than a dense GPT."""
    return any(part in name for part in OTHER_MODELS)

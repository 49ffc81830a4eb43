"""Recipes of NeMo 2 and Megatron Bridge: which model each trains, and what each sets.

Read from NVIDIA/NeMo (nemo/collections/llm/recipes, 2025-09) and NVIDIA-NeMo/Megatron-Bridge
(2026-08).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runbook.tools.adopt.options import ModelKind

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
    """What a recipe trains."""

    model: str = ""
    """The catalogue's name; empty if `shape` says it."""
    shape: Mapping[str, int] = field(default_factory=dict)
    kind: ModelKind = field(default_factory=dict)
    vocabulary: int = 0
    layout: Mapping[str, Any] = field(default_factory=dict)
    """NeMo's layout and batch, by dotted key."""


def _layout(
    tensor: int,
    pipeline: int,
    context: int,
    virtual: int | None = None,
    batch: tuple[int, int, int] = (512, 1, 8192),
) -> dict[str, object]:
    strategy = "trainer.strategy"
    global_batch, micro_batch, length = batch
    return {
        f"{strategy}.tensor_model_parallel_size": tensor,
        f"{strategy}.pipeline_model_parallel_size": pipeline,
        f"{strategy}.context_parallel_size": context,
        f"{strategy}.virtual_pipeline_model_parallel_size": virtual,
        f"{strategy}.sequence_parallel": tensor > 1 and pipeline > 1,
        "data.global_batch_size": global_batch,
        "data.micro_batch_size": micro_batch,
        "data.seq_length": length,
    }


_QWEN_BATCH = (32, 2, 4096)
RECIPES: Mapping[str, ModelRecipe] = {
    "llama2_7b": ModelRecipe(
        "llama-2-7b", kind=LLAMA, layout=_layout(2, 1, 1, batch=(512, 1, 4096))
    ),
    "llama3_8b": ModelRecipe("llama-3-8b", kind=LLAMA_3, layout=_layout(1, 1, 2)),
    "llama31_8b": ModelRecipe("llama-3-8b", kind=LLAMA_3, layout=_layout(1, 1, 2)),
    "llama3_70b": ModelRecipe("llama-3-70b", kind=LLAMA_3, layout=_layout(4, 4, 2, 5)),
    "llama31_70b": ModelRecipe("llama-3-70b", kind=LLAMA_3, layout=_layout(4, 4, 2, 5)),
    "llama31_405b": ModelRecipe("llama-3-405b", kind=LLAMA_3, layout=_layout(8, 8, 4, 2)),
    "llama32_1b": ModelRecipe(
        shape={
            "layers": 16,
            "hidden": 2048,
            "heads": 32,
            "kv_heads": 8,
            "ffn_hidden": 8192,
        },
        kind=LLAMA_3_SMALL,
        vocabulary=128_256,
        layout=_layout(1, 1, 1),
    ),
    "llama32_3b": ModelRecipe(
        shape={
            "layers": 28,
            "hidden": 3072,
            "heads": 24,
            "kv_heads": 8,
            "ffn_hidden": 8192,
        },
        kind=LLAMA_3_SMALL,
        vocabulary=128_256,
        layout=_layout(1, 1, 1),
    ),
    "gpt3_175b": ModelRecipe(
        "175b",
        kind=GPT,
        layout=_layout(
            4,
            8,
            1,
            6,
            (2048, 2, 2048),
        ),
    ),
    "qwen2_500m": ModelRecipe(
        shape={
            "layers": 24,
            "hidden": 896,
            "heads": 14,
            "kv_heads": 2,
            "ffn_hidden": 4864,
        },
        kind=QWEN_2,
        vocabulary=151_936,
        layout=_layout(1, 1, 1, batch=_QWEN_BATCH),
    ),
    "qwen2_1p5b": ModelRecipe(
        shape={
            "layers": 28,
            "hidden": 1536,
            "heads": 12,
            "kv_heads": 2,
            "ffn_hidden": 8960,
        },
        kind=QWEN_2,
        vocabulary=151_936,
        layout=_layout(1, 1, 1, batch=_QWEN_BATCH),
    ),
    "qwen2_7b": ModelRecipe(
        shape={
            "layers": 28,
            "hidden": 3584,
            "heads": 28,
            "kv_heads": 4,
            "ffn_hidden": 18_944,
        },
        kind=QWEN_2,
        vocabulary=152_064,
        layout=_layout(2, 1, 1, batch=_QWEN_BATCH),
    ),
}
_SAME = {"qwen25_500m": "qwen2_500m", "qwen25_1p5b": "qwen2_1p5b", "qwen25_7b": "qwen2_7b"}
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
"""Parts of the names of recipes whose models are no dense GPT."""


def recipe_of(name: str) -> ModelRecipe | None:
    """Return a recipe by its name, with the length that some names end with.

    None if the table has none.

    >>> recipe_of("llama3_8b_16k").layout["data.seq_length"], recipe_of("nemotron4_15b")
    (16384, None)
    """
    base, _, ending = name.rpartition("_")
    lengths = {"16k": 16_384, "64k": 65_536, "128k": 131_072}
    recipe = RECIPES.get(_SAME.get(name, name))
    if recipe is None and ending in lengths:
        recipe = RECIPES.get(base)
        if recipe:
            layout = {**recipe.layout, "data.seq_length": lengths[ending]}
            return ModelRecipe(
                recipe.model,
                recipe.shape,
                recipe.kind,
                recipe.vocabulary,
                layout,
            )

    return recipe


def is_other_model(name: str) -> bool:
    """Return whether a recipe trains something that is no dense GPT."""
    return any(part in name for part in OTHER_MODELS)

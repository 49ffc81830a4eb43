"""megatron-core's GPTModel, built from the spec."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.transformer_config import TransformerConfig

from runbook.training import initialization, products
from runbook.training.cross_entropy import cross_entropy
from runbook.training.errors import RefusedError
from runbook.training.layers import layers
from runbook.training.spec import Spec

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Gpt(GPTModel):  # type: ignore[misc]
    """GPTModel with our cross entropy."""

    def compute_language_model_loss(self, labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Loss of each token [batch, sequence] from logits [sequence, batch, vocabulary of this rank]."""
        losses = cross_entropy(logits, labels.transpose(0, 1).contiguous(), self.pg_collection.tp)
        return losses.transpose(0, 1).contiguous()


def build(spec: Spec) -> list[GPTModel]:
    """The chunks of the model that this rank holds (one, or virtual_pipeline of them), with their first weights."""
    config = transformer_config(spec)
    chunks = []
    for chunk in range(spec.parallel.virtual_pipeline):
        stage = chunk if spec.parallel.virtual_pipeline > 1 else None
        model = Gpt(
            config=config,
            transformer_layer_spec=layers(config, stage, spec.engine),
            vocab_size=spec.model.padded_vocabulary,
            max_sequence_length=spec.model.positions,
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
            share_embeddings_and_output_weights=spec.model.tied_embeddings,
            position_embedding_type="rope" if spec.model.position_embedding == "rope" else "learned_absolute",
            vp_stage=stage,
        )
        if torch.cuda.is_available():
            model.cuda(torch.cuda.current_device())
        model.to(DTYPES[spec.precision.format])
        _mark_cut_weights(model)
        if spec.precision.format == "fp32":
            products.use_in(model)
        initialization.fill(sharded_weights(model), spec.model, spec.seed)
        chunks.append(model)
    return chunks


def sharded_weights(model: GPTModel) -> dict[str, Any]:
    """The weights as megatron-core's sharded tensors, each layer under its own number in the whole model."""
    weights: dict[str, Any] = model.sharded_state_dict(metadata={"non_homogeneous_layers": True})
    if any("_extra_state" in name and leaf.data is not None for name, leaf in weights.items()):
        # Transformer Engine's notes on fp8, which is not trained in here; some versions pickle more than data.
        weights = {name: leaf for name, leaf in weights.items() if "_extra_state" not in name}
    return weights


def take_up(model: GPTModel, weights: dict[str, Any]) -> None:
    """Load weights as `sharded_weights` names them; what is not among them may only be such notes."""
    missing, unexpected = model.load_state_dict(weights, strict=False)
    missing = [name for name in missing if "_extra_state" not in name]
    if missing or unexpected:
        raise RefusedError(f"the checkpoint is of another model: it lacks {missing}, and has {unexpected} besides")


def _mark_cut_weights(model: GPTModel) -> None:
    """Say which weights are cut over tensor-parallel ranks; megatron-core says it only where it initializes them.

    Unmarked, such a weight counts as a copy, and the gradient norm forgets the other ranks' parts.
    """
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if isinstance(module, _CUT) and weight is not None and not hasattr(weight, "tensor_model_parallel"):
            set_tensor_model_parallel_attributes(weight, True, 1 if isinstance(module, RowParallelLinear) else 0, 1)


_CUT = (ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding)


def gelu(values: torch.Tensor) -> torch.Tensor:
    """GPT-2's GELU (the tanh form), which Megatron's fused kernel computes as well."""
    return torch.nn.functional.gelu(values, approximate="tanh")


def transformer_config(spec: Spec) -> TransformerConfig:
    """The spec in megatron-core's own words."""
    model, parallel = spec.model, spec.parallel
    gated = model.activation == "swiglu"
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden,
        num_attention_heads=model.heads,
        num_query_groups=model.kv_heads,
        ffn_hidden_size=model.ffn_hidden,
        kv_channels=model.hidden // model.heads,
        hidden_dropout=model.dropout,
        attention_dropout=model.dropout,
        layernorm_epsilon=1e-5,
        normalization="RMSNorm" if model.normalization == "rmsnorm" else "LayerNorm",
        gated_linear_unit=gated,
        add_bias_linear=model.biases,
        init_method_std=model.init_std,
        perform_initialization=False,  # initialization.py does it
        use_cpu_initialization=not torch.cuda.is_available(),
        params_dtype=DTYPES[spec.precision.format],
        pipeline_dtype=DTYPES[spec.precision.format],
        bf16=spec.precision.format == "bf16",
        fp16=spec.precision.format == "fp16",
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline if parallel.virtual_pipeline > 1 else None,
        sequence_parallel=parallel.sequence and parallel.tensor > 1,
        attention_softmax_in_fp32=True,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,  # needs Apex
        apply_rope_fusion=False,
        deallocate_pipeline_outputs=True,
        # Two interleaved stages are each other's next and previous at once: batched, their messages would be mixed up.
        batch_p2p_comm=parallel.virtual_pipeline == 1,
        **_activation(spec),
        **_recompute(spec),
    )


def fuses() -> bool:
    """Whether a bias with the activation after it, and one with dropout and sum, become one kernel each.

    megatron-core does so by torch.compile, which on a GPU needs a C compiler; where it finds none, torch says so and
    the parts are computed one by one. On a CPU the kernels gain too little to ask for a compiler.
    """
    return torch.cuda.is_available()


def _activation(spec: Spec) -> dict[str, Any]:
    fused, gated = fuses(), spec.model.activation == "swiglu"
    if fused:
        from torch import _dynamo

        _dynamo.config.suppress_errors = True
    # megatron-core's fused GELU is the tanh form as well, goes by the name of the other, and wants a bias.
    named = torch.nn.functional.gelu if fused and spec.model.biases else gelu
    return {
        "activation_func": torch.nn.functional.silu if gated else named,
        "bias_activation_fusion": fused and (gated or spec.model.biases),
        "bias_dropout_fusion": fused,
    }


def _recompute(spec: Spec) -> dict[str, Any]:
    if spec.recompute == "full":
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if spec.recompute == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}
    return {}

"""Builds a GPTModel (from megatron-core) with layers and initial weights, according to the plan.

The seed, the weight name and the position in the weight determine each initial value, so each rank
generates only its own values. A counter-based generator (Philox in numpy, with the same stream in
every version) is set to the positions in the slice on a rank. So every layout starts from exactly
the weights a single process would start from, and losses can be compared digit by digit.
"""

import contextlib
import copy
import functools
import hashlib
import importlib
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import (
    gather_from_sequence_parallel_region,
    get_cuda_rng_tracker,
    layers,
)
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_config import TransformerConfig

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import PhasePlan, PlannedModel
from runbook.training import cpu
from runbook.training.engines.engine import Shards, each_shard, sharded_weights
from runbook.training.kernels import blocked, linear
from runbook.training.kernels.blocked import blocked_attention, blocked_is_faster
from runbook.training.kernels.kernel_choice import chosen_parts, fault_of_8_bits
from runbook.training.messages import TrainingMessage
from runbook.training.ranks import cores_of_rank, on_gpu

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Gpt(GPTModel):  # type: ignore[misc]
    """GPTModel with our cross entropy, which ignores vocabulary padding.

    The megatron-core cross entropy includes the padding.
    """

    vocabulary = 0
    cross_entropy: Callable[..., torch.Tensor] = staticmethod(blocked.cross_entropy)

    def compute_language_model_loss(
        self, labels: torch.Tensor, logits: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss for each token [batch, sequence].

        The logits have the shape [sequence, batch, vocabulary on this rank].
        """
        labels = labels.transpose(0, 1).contiguous()
        losses = self.cross_entropy(
            logits,
            labels,
            self.pg_collection.tp,
            vocabulary=self.vocabulary,
        )
        return losses.transpose(0, 1).contiguous()


def build_model(spec: PhasePlan, *, draw: bool) -> list[GPTModel]:
    """Return the model chunks for this rank (`virtual_pipeline` chunks, or one).

    With `draw`, the chunks have initial weights.
    """
    shape = spec.model.shape
    config = transformer_config(spec)
    parts = kernel_parts(spec)
    if config.tp_comm_overlap:
        tokens = spec.batch.micro * shape.sequence_length // spec.parallel.context
        base = importlib.import_module("transformer_engine.pytorch.module.base")
        base.initialize_ub([tokens, shape.hidden], spec.parallel.tensor, bootstrap_backend="nccl")

    chunks = []
    for chunk in range(spec.parallel.virtual_pipeline):
        stage = chunk if spec.parallel.virtual_pipeline > 1 else None
        model = Gpt(
            config=config,
            transformer_layer_spec=layer_specs(config, stage, spec.engine),
            vocab_size=shape.padded_vocabulary,
            max_sequence_length=shape.positions,
            pre_process=parallel_state.is_pipeline_first_stage(
                ignore_virtual=False, vp_stage=stage
            ),
            post_process=parallel_state.is_pipeline_last_stage(
                ignore_virtual=False, vp_stage=stage
            ),
            share_embeddings_and_output_weights=shape.tied_embeddings,
            position_embedding_type="rope"
            if shape.position_embedding == "rope"
            else "learned_absolute",
            rotary_base=shape.rope_base,
            vp_stage=stage,
        )
        model.vocabulary = shape.vocabulary
        if on_gpu():
            model.cuda(torch.cuda.current_device())
        model.to(DTYPES[spec.precision.format])
        _mark_cut_weights(model)
        _use_own_kernels(model, parts, in_8_bits=has_own_8_bits(spec))
        if spec.precision.format != "fp32":
            cpu.widen_half_matmuls()
        if draw:
            fill_first_weights(sharded_weights(model), spec.model, spec.seed)
        else:
            # No initial values are needed, since a checkpoint will be loaded
            torch._foreach_zero_([weight.data for weight in model.parameters()])

        chunks.append(model)

    return chunks


def kernel_parts(spec: PhasePlan) -> frozenset[str]:
    """Return which parts of a step the trainer computes with its own GPU kernels."""
    return chosen_parts(spec, has_transformer_engine=uses_transformer_engine(spec.engine))


def has_own_8_bits(spec: PhasePlan) -> bool:
    """Return whether the trainer's own 8-bit matmuls are used.

    If Transformer Engine is installed, its matmuls are used instead.
    """
    return spec.precision.fp8 == "tensorwise" and not uses_transformer_engine(spec.engine)


def _use_own_kernels(model: Gpt, parts: frozenset[str], *, in_8_bits: bool) -> None:
    """Replace parts of the model with our own.

    On a CPU, our own matmuls are always used. On a GPU, `parts` lists the parts to replace.
    """
    if "linear" in parts or not on_gpu():
        linear.use_own_layers(model, in_8_bits=in_8_bits)
    # Triton is imported only if it is used, since CPU builds of torch do not include it.
    if "layers" in parts:
        from runbook.training.kernels import layer

        layer.use_fused_layers(model)

    if "cross_entropy" in parts:
        from runbook.training.kernels import loss

        model.cross_entropy = loss.cross_entropy


def _mark_cut_weights(model: GPTModel) -> None:
    """Mark the weights sharded over tensor-parallel ranks.

    Megatron-core marks weights only if it initializes them. A weight without this mark counts as
    replicated, and the gradient norm then omits the parts on other ranks.
    """
    for module in model.modules():
        weight = getattr(module, "weight", None)
        is_cut = isinstance(
            module,
            layers.ColumnParallelLinear | layers.RowParallelLinear | layers.VocabParallelEmbedding,
        )
        if is_cut and weight is not None and not hasattr(weight, "tensor_model_parallel"):
            if isinstance(module, layers.RowParallelLinear):
                dimension = 1
            else:
                dimension = 0

            layers.set_tensor_model_parallel_attributes(weight, True, dimension, 1)


def transformer_config(spec: PhasePlan) -> TransformerConfig:
    """Return the megatron-core configuration for the plan."""
    _refuse_without_parts(spec)
    model = spec.model
    shape = model.shape
    parallel = spec.parallel
    activation, fuses_bias = _activation(spec)
    tuning = spec.tuning
    interleaved = parallel.virtual_pipeline > 1
    overlaps_sends = interleaved and tuning.overlap_pipeline == "always"
    return TransformerConfig(
        **_eight_bit_options(spec),
        **_recompute_options(spec),
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        ffn_hidden_size=shape.ffn_hidden,
        kv_channels=shape.hidden // shape.heads,
        hidden_dropout=model.dropout,
        attention_dropout=model.dropout,
        layernorm_epsilon=shape.norm_epsilon,
        normalization="RMSNorm" if shape.normalization == "rmsnorm" else "LayerNorm",
        gated_linear_unit=shape.activation == "swiglu",
        add_bias_linear=shape.biases,
        add_qkv_bias=shape.qkv_biases,
        init_method_std=model.init_std,
        # `fill_first_weights` initializes the weights
        perform_initialization=False,
        use_cpu_initialization=not on_gpu(),
        params_dtype=DTYPES[spec.precision.format],
        pipeline_dtype=DTYPES[spec.precision.format],
        bf16=spec.precision.format == "bf16",
        fp16=spec.precision.format == "fp16",
        tensor_model_parallel_size=parallel.tensor,
        context_parallel_size=parallel.context,
        tp_comm_overlap=tuning.overlap_tensor,
        cuda_graph_impl="local" if tuning.cuda_graphs else "none",
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline if interleaved else None,
        num_layers_in_first_pipeline_stage=parallel.first_stage_layers or None,
        num_layers_in_last_pipeline_stage=parallel.last_stage_layers or None,
        sequence_parallel=parallel.sequence and parallel.tensor > 1,
        attention_softmax_in_fp32=True,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=tuning.fuse_gradients == "always",
        apply_rope_fusion=False,
        # Without waiting for sends, gloo might still be sending from a buffer when the buffer is
        # freed. NCCL keeps the buffer alive.
        deallocate_pipeline_outputs=on_gpu() or not overlaps_sends,
        # With two interleaved stages, the next stage is also the previous one, so batched messages
        # would get mixed up.
        batch_p2p_comm=not interleaved,
        overlap_p2p_comm=overlaps_sends,
        activation_func=activation,
        bias_activation_fusion=fuses_bias,
        bias_dropout_fusion=uses_fused_kernels(),
    )


def _eight_bit_options(spec: PhasePlan) -> dict[str, object]:
    """Return the megatron-core options for 8-bit matmuls.

    The result is empty if our own kernels compute these matmuls.
    """
    if spec.precision.fp8 == "none" or has_own_8_bits(spec):
        return {}
    return {"fp8": "hybrid", "fp8_recipe": spec.precision.fp8}


def _recompute_options(spec: PhasePlan) -> dict[str, object]:
    """Return the megatron-core options for activation recomputation."""
    if spec.recompute == "full":
        return {
            "recompute_granularity": "full",
            "recompute_method": spec.tuning.recompute_method,
            "recompute_num_layers": spec.tuning.recompute_num_layers,
        }

    if spec.recompute == "selective":
        return {
            "recompute_granularity": "selective",
            "recompute_modules": ["core_attn"],
        }

    return {}


def _refuse_without_parts(spec: PhasePlan) -> None:
    """Raise `RefusedError` if software required by the planned tuning is not installed."""
    tuning = spec.tuning
    fuses = spec.tuning.fuse_gradients == "always"
    wants = {
        "fuse_gradients": fuses,
        "overlap_tensor": tuning.overlap_tensor,
        "cuda_graphs": tuning.cuda_graphs,
    }
    wants["fp8"] = spec.precision.fp8 != "none" and not has_own_8_bits(spec)
    has_parts = {"a GPU": on_gpu(), "Transformer Engine": uses_transformer_engine(spec.engine)}
    if fuses:
        has_parts["Apex's CUDA code"] = layers._grad_accum_fusion_available
    keys = ", ".join(f"training.{key}" for key, is_wanted in wants.items() if is_wanted)
    missing = ", ".join(name for name, is_there in has_parts.items() if not is_there)
    if keys and missing:
        raise RefusedError(TrainingMessage.TUNING_MISSING, keys=keys, missing=missing)
    if has_own_8_bits(spec):
        fault = fault_of_8_bits(kernel_parts(spec))
        if fault:
            raise RefusedError(TrainingMessage.FP8_NOT_POSSIBLE, fault=fault)


def uses_fused_kernels() -> bool:
    """Return whether a bias is fused with the operations after it.

    One kernel fuses bias and activation, and a second fuses bias, dropout and residual sum.
    megatron-core uses torch.compile for both, which needs a C compiler on a GPU. Without a
    compiler, torch reports that it is missing and computes the operations one by one. On a CPU the
    kernels save too little to justify requiring a compiler.
    """
    return on_gpu()


def _activation(spec: PhasePlan) -> tuple[Callable[[torch.Tensor], torch.Tensor], bool]:
    """Return the activation function, and whether it is fused with the preceding bias."""
    shape = spec.model.shape
    fused = uses_fused_kernels()
    gated = shape.activation == "swiglu"
    if fused:
        from torch import _dynamo

        _dynamo.config.suppress_errors = True

    # GPT-2 uses the tanh form of GELU. The fused GELU in megatron-core is also the tanh form,
    # although the configuration names the exact form. It requires a bias.
    if fused and shape.biases:
        gelu = torch.nn.functional.gelu
    else:
        gelu = _TANH_GELU

    return (torch.nn.functional.silu if gated else gelu), fused and (gated or shape.biases)


_TANH_GELU = functools.partial(torch.nn.functional.gelu, approximate="tanh")


TRANSFORMER_ENGINE_VARIABLE = "RUNBOOK_TRANSFORMER_ENGINE"
"""Environment variable.

With the value 0, Transformer Engine is not used even if it is installed.
"""


def uses_transformer_engine(engine: str) -> bool:
    """Return whether Transformer Engine provides the layers."""
    # DeepSpeed gathers and releases weights in megatron-core layers module by module.
    is_wanted = (
        engine == "megatron-core" and os.environ.get(TRANSFORMER_ENGINE_VARIABLE, "1") != "0"
    )
    return is_wanted and on_gpu() and bool(gpt_layer_specs.HAVE_TE)


def layer_specs(config: TransformerConfig, chunk: int | None, engine: str) -> Any:
    """Return the layer specification for a `chunk` of GPTModel on this rank.

    Transformer Engine provides the layers if it can run.
    """
    if uses_transformer_engine(engine):
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec()
    # The layer from megatron-core, with our core attention and norms.
    layer = copy.deepcopy(
        gpt_layer_specs.get_gpt_layer_local_spec(normalization=config.normalization)
    )
    parts = layer.submodules
    parts.self_attention.submodules.core_attention = CausalAttention
    parts.input_layernorm = parts.pre_mlp_layernorm = Norm
    num_layers = get_num_layers_to_build(config, vp_stage=chunk)
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=Norm)


class CausalAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention for the heads on this tensor-parallel rank.

    This module replaces DotProductAttention.

    Queries and keys have the shape [sequence, batch, heads, head size], and the result has the
    shape [sequence, batch, heads x head size].
    """

    def __init__(self, config: TransformerConfig, **_: Any) -> None:
        super().__init__(config=config)
        self.scale = 1.0 / math.sqrt(config.kv_channels)
        self.grouped = config.num_query_groups != config.num_attention_heads

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor:
        """Compute causal attention, and ignore any mask passed in."""
        key = whole_sequence(key)
        value = whole_sequence(value)
        # From [s, b, h, d] to [b, h, s, d]. Views are enough, since the kernels accept any stride
        # over heads and sequence.
        query, key, value = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        dropout = self.config.attention_dropout if self.training else 0.0
        # With sequence parallelism, the whole block already runs with a forked random state. A
        # second fork would restart it, and the dropout masks for scores and hidden states would use
        # the same random numbers.
        forks = dropout and not self.config.sequence_parallel
        with get_cuda_rng_tracker().fork() if forks else contextlib.nullcontext():
            mixed = self._mixed(query, key, value, dropout)
        batch, heads, sequence, size = mixed.shape
        return mixed.permute(2, 0, 1, 3).reshape(sequence, batch, heads * size)

    def _mixed(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout: float,
    ) -> torch.Tensor:
        """Return the attention from queries on this rank to all earlier tokens.

        The queries come from both pieces of the sequence on this rank.
        """
        context = parallel_state.get_context_parallel_group()
        if context.size() == 1:
            return self._attend(query, key, value, dropout)
        places = (context.rank(), 2 * context.size() - 1 - context.rank())
        length = query.shape[2] // 2
        visible = [(position + 1) * length for position in places]
        # Keys and values are copied, to free the tensor with all queries, keys and values.
        pieces = [piece.contiguous() for piece in torch.split(query, length, 2)]
        mixed = []
        for piece, end in zip(pieces, visible, strict=True):
            mixed.append(self._attend(piece, key[:, :, :end], value[:, :, :end], dropout))
        return torch.cat(mixed, 2)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout: float,
    ) -> torch.Tensor:
        if blocked_is_faster(query, key, dropout):
            return blocked_attention(query, key, value, self.scale)
        number_format = query.dtype
        if query.device.type == "cpu" and not cpu.multiplies_half():
            query = query.float()
            key = key.float()
            value = value.float()

        rows = query.shape[2]
        num_keys = key.shape[2]
        options: dict[str, Any] = {"is_causal": True}
        # If there are fewer queries than keys, the mask must let the last query attend to the last
        # key
        if rows != num_keys:
            if query.device.type != "cpu" and query.dtype != torch.float32:
                # Flash attention aligns its causal mask in this way.
                repeats = query.shape[1] // key.shape[1]
                if repeats > 1:
                    key = key.repeat_interleave(repeats, 1)
                    value = value.repeat_interleave(repeats, 1)

                flash = torch.ops.aten._scaled_dot_product_flash_attention
                output: torch.Tensor
                output, *_ = flash(
                    query,
                    key,
                    value,
                    dropout,
                    True,
                    scale=self.scale,
                )
                return output

            mask = torch.ones(rows, num_keys, dtype=torch.bool, device=query.device)
            options = {"attn_mask": mask.tril(num_keys - rows)}

        mixed = torch.nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=dropout,
            scale=self.scale,
            enable_gqa=self.grouped,
            **options,
        )
        return mixed.to(number_format)


def whole_sequence(own_piece: torch.Tensor) -> torch.Tensor:
    """Return the full sequence [sequence, ...], joined from the pieces on all ranks that share it.

    Gradients are summed in the backward pass. Each rank has an early piece and a late piece, taken
    from opposite ends of the sequence, to give all ranks equal attention work.
    """
    group = parallel_state.get_context_parallel_group()
    if group.size() == 1:
        return own_piece
    pieces = gather_from_sequence_parallel_region(own_piece.contiguous(), group=group).unflatten(
        0, (2 * group.size(), -1)
    )
    early = pieces[0::2]
    late = pieces[1::2].flip(0)
    return torch.cat([early, late]).flatten(0, 1)


class Norm:
    """LayerNorm or RMSNorm from torch.

    The megatron-core wrapper around these norms does not support sequence parallelism.

    A norm works on one token at a time, so a part of the sequence is enough. All tensor-parallel
    ranks have the same weights, but each rank applies them to different tokens. The weights are
    marked so that their gradients are summed over these ranks.
    """

    def __new__(
        cls,
        config: TransformerConfig,
        hidden_size: int,
        eps: float = 1e-5,
        **_: Any,
    ) -> Any:
        """Return the norm module."""
        kind: type[torch.nn.RMSNorm | torch.nn.LayerNorm] = torch.nn.LayerNorm
        if config.normalization == "RMSNorm":
            kind = torch.nn.RMSNorm

        norm = kind(hidden_size, eps=eps)
        for weight in norm.parameters():
            weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return norm


Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
PhiloxKey: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

PANEL = 64
"""Number of columns in each panel of random numbers.

The numbers in a panel are generated row by row, so that both row slices and column slices consist
of long runs. If a slice ends within a panel, the rank generates the full width of the panel.
"""
ROWS = 512
"""Number of panel rows to generate at a time, chosen to stay in the processor cache."""
_NUMBERS_A_STEP = 8
"""Number of normal random numbers per counter step in the generator.

Each step yields four 64-bit values, and each value yields two numbers.
"""
_STEPS_A_ROW = PANEL // _NUMBERS_A_STEP
BLOCK_BYTES = 256 * 2**20
"""How many bytes of a weight are in host memory at a time before they are copied to a GPU."""
MOST_THREADS = 8
"""Largest number of threads used to generate initial weights.

With more threads, numbers would be generated faster than the bus to the GPU can copy them.
"""
SMALL_BLOCK = 2**18
"""A weight smaller than this is generated in a single thread, since it would take longer to start
threads.
"""


def fill_first_weights(shards: Shards, model: PlannedModel, seed: int) -> None:
    """Write initial weights according to the rule used for GPT-2.

    Weights are normally distributed. Matrices that add to the residual stream are scaled down with
    the model depth.
    """
    with torch.no_grad():
        for shard in each_shard(shards):
            if not isinstance(shard, ShardedTensor):
                continue
            if shard.key.endswith("bias"):
                shard.data.zero_()
            elif "norm" in shard.key:
                shard.data.fill_(1.0)
            else:
                deep = shard.key.endswith(("linear_proj.weight", "linear_fc2.weight"))
                if deep:
                    std = model.init_std / math.sqrt(2 * model.shape.layers)
                else:
                    std = model.init_std

                _fill_normal(shard, std, seed)


def _fill_normal(shard: ShardedTensor, std: float, seed: int) -> None:
    """Generate this rank's part of a matrix on the host, and copy it to a GPU in large blocks.

    Each copy from pageable memory makes the host wait for the GPU. With one copy per panel, the
    host would wait 40,000 times for a model with 1.3B weights.
    """
    weight = shard.data.detach()
    height, width = weight.shape
    digest = hashlib.sha256(f"{seed}/{shard.key}".encode()).digest()
    key = np.frombuffer(digest[:16], "<u8").astype(np.uint64)
    first_row, first_column = shard.global_offset
    if weight.device.type == "cpu":
        _draw_block(
            weight,
            first_row,
            first_column,
            key,
            std,
        )
        return

    rows = min(height, max(1, BLOCK_BYTES // (width * weight.itemsize)))
    block = torch.empty(rows, width, dtype=weight.dtype)
    for first in range(0, height, rows):
        filled = block[: min(rows, height - first)]
        _draw_block(
            filled,
            first_row + first,
            first_column,
            key,
            std,
        )
        weight[first : first + rows].copy_(filled)


def _draw_block(
    block: torch.Tensor,
    first_row: int,
    first_column: int,
    key: PhiloxKey,
    std: float,
) -> None:
    """Fill a block of a matrix panel by panel, in a few threads.

    The corner of the block is at `first_row` and `first_column`. The numbers in a panel depend only
    on its position, not on the rank or thread. numpy releases the GIL while it generates numbers.
    """
    right = first_column + block.shape[1]
    panels = range(first_column // PANEL, -(-right // PANEL))

    def draw(panel: int) -> None:
        start = max(first_column, panel * PANEL)
        stop = min(right, (panel + 1) * PANEL)
        columns = slice(start - panel * PANEL, stop - panel * PANEL)
        target = block[:, start - first_column : stop - first_column]
        _draw_panel(
            target,
            columns,
            (panel << 64) + first_row * _STEPS_A_ROW,
            key,
            std,
        )

    threads = min(len(panels), MOST_THREADS, cores_of_rank())
    if threads == 1 or block.numel() < SMALL_BLOCK:
        for panel in panels:
            draw(panel)
        return

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(draw, panels))


def _draw_panel(
    target: torch.Tensor,
    columns: slice,
    counter: int,
    key: PhiloxKey,
    std: float,
) -> None:
    """Fill rows of a panel.

    `counter` is the position of the first row in the random stream for the key.
    """
    philox = np.random.Philox(key=key).advance(counter)
    for part in torch.split(target, ROWS):
        count = len(part) * PANEL
        drawn = _normal_numbers(philox, count, std).reshape(-1, PANEL)
        part.copy_(torch.from_numpy(drawn[:, columns]))


def _normal_numbers(philox: np.random.Philox, count: int, std: float) -> Numbers:
    """Apply the Box-Muller transform.

    One half of a 64-bit value determines a radius and the other an angle, and together they give
    two normal numbers.
    """
    halves = philox.random_raw(count // 2).view(np.uint32)
    single = np.float32
    radius = np.multiply(halves[0::2], single(2.0**-32), dtype=single, casting="unsafe")
    radius += single(2.0**-33)  # The value is above 0 and at most 1
    np.log(radius, out=radius)
    radius *= single(-2 * std * std)
    np.sqrt(radius, out=radius)
    angle = np.multiply(halves[1::2], single(2.0**-31 * np.pi), dtype=single, casting="unsafe")
    drawn = np.empty(count, single)
    np.multiply(radius, np.cos(angle), out=drawn[0::2])
    np.multiply(radius, np.sin(angle, out=angle), out=drawn[1::2])
    return drawn

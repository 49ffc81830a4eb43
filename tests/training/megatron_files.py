"""Writes checkpoints in Megatron-LM's format, with weights derived from their names, in forked
ranks.
"""

import json
import multiprocessing
import os
import sys
import zlib
from argparse import Namespace
from pathlib import Path, PosixPath

import torch

OLD_NAMES = {
    "embedding.": "language_model.embedding.",
    "output_layer.": "language_model.output_layer.",
    "decoder.": "language_model.encoder.",
    "self_attention.linear_qkv": "self_attention.query_key_value",
    "self_attention.linear_proj": "self_attention.dense",
    "mlp.linear_fc1": "mlp.dense_h_to_4h",
    "mlp.linear_fc2": "mlp.dense_4h_to_h",
    "input_layernorm": "input_norm",
    "pre_mlp_layernorm": "post_attention_norm",
    "final_layernorm": "final_norm",
}
"""The names that Megatron-LM used before it was built on megatron-core, by the names that
megatron-core uses now. e958b2ca saved the old names.
"""


def random_weight(name, shape):
    """Return the complete weight with this name.

    No two weights are alike, and none has its initial value.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(tuple(shape), generator=generator) * 0.05 + (
        "norm" in name and name.endswith("weight")
    )


def arguments(model, **changes):
    """Return Megatron-LM's arguments for one of our models, with the enums, paths and functions
    that real arguments contain.
    """
    from megatron.core.enums import ModelType
    from megatron.core.transformer.enums import AttnBackend

    values = {
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn_hidden,
        "num_attention_heads": model.heads,
        "kv_channels": model.head_size,
        "group_query_attention": model.kv_heads != model.heads,
        "num_query_groups": model.kv_heads,
        "max_position_embeddings": model.positions,
        "normalization": "LayerNorm",
        "norm_epsilon": model.norm_epsilon,
        "position_embedding_type": "rope"
        if model.position_embedding == "rope"
        else "learned_absolute",
        "swiglu": model.gated,
        "bias_gelu_fusion": True,
        "add_bias_linear": model.biases,
        "num_experts": None,
        "add_qkv_bias": model.biases,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "rotary_base": 10_000,
        "rotary_percent": 1.0,
        "apply_layernorm_1p": False,
        "qk_layernorm": False,
        "make_vocab_size_divisible_by": 128,
        "padded_vocab_size": 256,
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "attention_backend": AttnBackend.flash,
        "params_dtype": torch.bfloat16,
        "model_type": ModelType.encoder_or_decoder,
        "save": PosixPath("/checkpoints"),
        "activation_func": torch.nn.functional.gelu,
        "data_path": ["1.0", "corpus"],
    }
    if model.normalization == "rmsnorm":
        values["normalization"] = "RMSNorm"
    return Namespace(**values | changes)


def old_content(weights):
    """Return a model's state by its older names, in nested mappings as it was saved."""
    content = {}
    for name, value in weights.items():
        for ours, theirs in OLD_NAMES.items():
            name = name.replace(ours, theirs)
        *parents, last = name.split(".", 3 if "embedding" in name else 2)
        place = content
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return content


def save():
    """Run in a forked rank: save a model with the plan's layout as `save.json` requests."""
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    from runbook.plan_file.schema import read_plan
    from runbook.training import cpu, process_groups
    from runbook.training.engines import gpt_model
    from runbook.training.engines.engine import each_shard, sharded_weights
    from runbook.training.ranks import ranks_from

    plan = Path(sys.argv[1])
    spec = read_plan(plan, "04-training")
    wish = json.loads((plan.parent / "save.json").read_text())
    cpu.answer_for_cpu()
    process_groups.join_process_group(ranks_from(os.environ), 60)
    process_groups.make_parallel_groups(spec)
    chunks = gpt_model.build_model(spec, draw=True)
    with torch.no_grad():
        for shard in (shard for chunk in chunks for shard in each_shard(sharded_weights(chunk))):
            if isinstance(shard, ShardedTensor):
                whole = random_weight(shard.key, shard.global_shape)
                parts = zip(shard.global_offset, shard.local_shape, strict=True)
                shard.data.copy_(whole[tuple(slice(start, start + size) for start, size in parts)])
    cut = spec.parallel
    sizes = {"tensor_model_parallel_size": cut.tensor, "pipeline_model_parallel_size": cut.pipeline}
    sizes |= {"padded_vocab_size": spec.model.shape.padded_vocabulary} | wish["arguments"]
    content = {
        "args": arguments(spec.model.shape, **sizes),
        "checkpoint_version": 3.0,
        "iteration": 7,
    }
    names = ["model"] if len(chunks) == 1 else [f"model{number}" for number in range(len(chunks))]
    root = plan.parent / "megatron"
    folder = root / "iter_0000007"
    dtype = getattr(torch, wish["dtype"])
    if wish["format"] == "torch_dist":
        for chunk in chunks:
            chunk.to(dtype)
        weights = [chunk.sharded_state_dict() for chunk in chunks]
        folder.mkdir(parents=True, exist_ok=True)
        dist_checkpointing.save(
            {**content, **dict(zip(names, weights, strict=True))}, str(folder), ("torch_dist", 1)
        )
    else:
        tensor = parallel_state.get_tensor_model_parallel_rank()
        stage = parallel_state.get_pipeline_model_parallel_rank()
        for name, chunk in zip(names, chunks, strict=True):
            state = {
                key: value.to(dtype) if isinstance(value, torch.Tensor) else value
                for key, value in chunk.state_dict_for_save_checkpoint().items()
            }
            if wish["format"] == "old":
                if spec.model.shape.tied_embeddings:
                    tied = state.pop("output_layer.weight", None)
                else:
                    tied = None
                state = old_content(state)
                if tied is not None:
                    state["word_embeddings_for_head"] = {"weight": tied}
            content[name] = state
        path = folder / (f"mp_rank_{tensor:02d}" + (f"_{stage:03d}" if cut.pipeline > 1 else ""))
        path.mkdir(parents=True)
        torch.save(
            {**content, "rng_state": [{"random": torch.get_rng_state()}]},
            path / "model_optim_rng.pt",
        )
    (root / "latest_checkpointed_iteration.txt").write_text("7")
    torch.distributed.barrier()
    for process in (
        multiprocessing.active_children()
    ):  # megatron-core's writer has a process that would outlive this rank
        process.terminate()
        process.join()
    return 0


def import_measured():
    """Run in a forked rank: import as `request.json` requests; write the peak anonymous memory."""
    from runbook.training.checkpoints import torch_dist
    from runbook.training.checkpoints.megatron_import import MegatronWeights

    from . import plain_gpt

    def measured(self, key):
        status = dict(
            line.split(":") for line in Path("/proc/self/status").read_text().splitlines()
        )
        resident.append(int(status["RssAnon"].split()[0]) * 1024)  # without pages of mapped files
        return read(self, key)

    resident = []
    read = MegatronWeights.read_weight
    MegatronWeights.read_weight = measured
    torch_dist.FILE_BYTES = 8 * 10**6
    code = plain_gpt.offline()
    (Path(sys.argv[2]).parent / "peak").write_text(str(max(resident)))
    return code

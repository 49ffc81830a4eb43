"""YAML files for GPT-NeoX. Several files can form one configuration."""

from runbook.tools.adopt.configs.config_format import (
    ConfigFormat,
    OtherProgram,
    Values,
    is_on,
    line_of,
    number,
    text,
    value_of,
    whole_number,
)
from runbook.tools.adopt.configs.gpt_neox_keys import DEFAULTS, ROWS
from runbook.tools.adopt.configs.shared_steps import take_tokenizer_file
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.program_arguments import ModelKind

_KIND: ModelKind = {
    "activation": "gelu",
    "tied_embeddings": True,
    "biases": True,
    "position_embedding": "learned",
    "normalization": "layernorm",
}
_DIFFERENCES = (
    OtherProgram(
        topic="engine",
        theirs="DeepSpeed, with ZeRO's stage and buffers",
        ours="megatron-core; with training.engine: deepspeed, the same model has equal losses",
    ),
    OtherProgram(
        topic="initial weights",
        theirs="init_method and output_layer_init_method, often small_init and wang_init",
        ours=(
            "a normal distribution with training.init_std; smaller for output matrices, depending "
            "on the number of layers"
        ),
    ),
    OtherProgram(
        topic="tokenizer",
        theirs="the vocabulary of tokenizer_type",
        ours=("data.tokenizer; the model's vocabulary comes from its entry in params/models.yaml"),
    ),
)
_LOSS_SCALES = (
    "training.static_loss_scale",
    "training.loss_scale_window",
    "training.loss_scale_hysteresis",
    "training.min_loss_scale",
    "training.initial_loss_scale",
)


def _finish(values: Values, findings: Findings, kind: ModelKind) -> None:
    """Compute the values that depend on several keys."""
    _take_precision(values, findings)
    _take_widths(values, findings, kind)
    _take_norm_epsilon(values, kind)
    _take_decay(values, findings)
    _take_tokenizer(values, findings)
    _lower_zero_stage(values, findings)
    _leave_other_positions(values, findings)
    _leave_sparse_attention(values, findings)
    _take_accumulation(values, findings)
    _drop_uneven_saves(values, findings)


def _take_precision(values: Values, findings: Findings) -> None:
    """Adopt the precision from the first of `precision`, `bf16` and `fp16` that is set."""
    name = ""
    precision = "fp32"
    if text(values, "precision"):
        name = "precision"
        spelling = text(values, name)
        precision = "bf16" if spelling == "bfloat16" else spelling
    elif is_on(values, "bf16.enabled"):
        name = "bf16.enabled"
        precision = "bf16"
    elif text(values, "fp16.type") == "bfloat16":
        name = "fp16.type"
        precision = "bf16"
    elif is_on(values, "fp16.enabled"):
        name = "fp16.enabled"
        precision = "fp16"

    source = name or "no precision is set"
    findings.take("training.precision", precision, line_of(values, name), source)
    if precision != "fp16":
        findings.drop(*_LOSS_SCALES)


def _take_widths(values: Values, findings: Findings, kind: ModelKind) -> None:
    """Compute the width of a gated feed-forward block.

    Drop position embeddings if rotary embeddings are used.
    """
    if kind["position_embedding"] == "rope":
        findings.drop("training.shape.positions")
    if kind["activation"] != "swiglu":
        return

    hidden = findings.number("training.shape.hidden")
    if text(values, "mlp_type") in ("llama", "doublegate_llama"):
        # Before 2024: megatron/model/transformer.py, LLaMAParallelMLP
        llama_width = -(-int(8 * hidden / 3) // 256) * 256
        source = "mlp_type llama: 8/3 of the width, rounded up to a multiple of 256"
        line = line_of(values, "mlp_type")
        findings.take("training.shape.ffn_hidden", llama_width, line, source)
        return

    # Since 2024, gate and input together have two thirds of the width
    width = findings.number("training.shape.ffn_hidden", 4 * hidden)
    multiple = max(1, whole_number(values, "mlp_multiple_of", 1))
    third = int(width * 2 / 3) // 2
    rounded_up = -(-third // multiple) * multiple
    findings.take(
        "training.shape.ffn_hidden",
        rounded_up,
        line_of(values, "intermediate_size", "activation"),
        f"a third of {width}, rounded up to a multiple of {multiple}",
    )


def _take_norm_epsilon(values: Values, kind: ModelKind) -> None:
    """Adopt the epsilon for the norm type used by the model."""
    if kind["normalization"] == "rmsnorm":
        kind["norm_epsilon"] = number(values, "rms_norm_epsilon", 1e-8)
    else:
        kind["norm_epsilon"] = number(values, "layernorm_epsilon", 1e-5)


def _take_decay(values: Values, findings: Findings) -> None:
    """Adopt a decay length given as a fraction of the steps.

    Replace an unknown decay with a cosine.
    """
    iterations = findings.number("training.iterations")
    share = number(values, "lr_decay_fraction")
    if share and iterations and "lr_decay_iters" not in values:
        line = line_of(values, "lr_decay_fraction")
        source = "lr_decay_fraction x train_iters"
        findings.take("training.decay_iterations", int(share * iterations), line, source)

    if text(values, "lr_decay_style") == "exponential":
        line = line_of(values, "lr_decay_style")
        source = "our schedules decay linearly or as a cosine"
        findings.take("training.schedule", "cosine", line, source)


def _take_tokenizer(values: Values, findings: Findings) -> None:
    """Adopt the GPT-2 tokenizer, which is the default; ask for the file of any other tokenizer."""
    kind = text(values, "tokenizer_type")
    if kind in ("", "GPT2BPETokenizer"):
        line = line_of(values, "tokenizer_type", "vocab_file")
        findings.take("data.tokenizer", "gpt2", line, "GPT-2's tokenizer")
    else:
        findings.drop("data.tokenizer")
        take_tokenizer_file(values, "vocab_file", findings=findings)


def _lower_zero_stage(values: Values, findings: Findings) -> None:
    """Replace ZeRO stages 2 and 3, which our trainer does not have, with stage 1."""
    if findings.number("parallel.zero_stage") > 1:
        line = line_of(values, "zero_optimization.stage")
        findings.take("parallel.zero_stage", 1, line, "stages 2 and 3 are DeepSpeed's")


def _leave_other_positions(values: Values, findings: Findings) -> None:
    """Record position embeddings, such as ALiBi, that no model here has."""
    positions = text(values, "pos_emb")
    if positions not in ("", "rotary", "learned"):
        part = "other position embeddings"
        findings.trains_another_model(line_of(values, "pos_emb"), f"pos_emb {positions}", part)


_SPARSE = ("local", "sparse_fixed", "sparse_variable", "bigbird", "bslongformer")
"""Names in `attention_config` for attention to only some of the earlier tokens."""


def _leave_sparse_attention(values: Values, findings: Findings) -> None:
    """Record layers with sparse attention.

    The `sparsity_config` of these layers does not apply to any other layer.
    """
    for name, value in values.items():
        is_kind = name == "attention_config" or name.startswith("attention_config.")
        if is_kind and any(f"'{kind}'" in repr(value.value) for kind in _SPARSE):
            findings.trains_another_model(value.line, f"{name} {value.shown}", "sparse attention")
            return


def _take_accumulation(values: Values, findings: Findings) -> None:
    """If no global batch is given, adopt the accumulation steps and ask for the number of nodes."""
    if "train_batch_size" in values:
        return
    if "global_num_gpus" not in values and "num_nodes" not in values:
        question = "number of nodes: deepy.py uses every node in the hostfile or the job"
        findings.ask("jobs.training.nodes", question)
    micro_batch = findings.number("training.micro_batch", 1)
    steps = findings.number("gas", 1)
    line = line_of(values, "gradient_accumulation_steps")
    findings.take("gas", steps, line, f"{micro_batch} micro")


def _drop_uneven_saves(values: Values, findings: Findings) -> None:
    """Drop a save interval that is fractional or logarithmic."""
    is_given = "checkpoint_factor" in values
    if is_given and not isinstance(value_of(values, "checkpoint_factor"), int):
        findings.drop("training.save_interval")


GPT_NEOX = ConfigFormat(
    program="GPT-NeoX",
    rows=ROWS,
    defaults=DEFAULTS,
    kind=_KIND,
    differences=_DIFFERENCES,
    finish=_finish,
    signs=frozenset(
        {
            "pipe_parallel_size",
            "pipe-parallel-size",
            "model_parallel_size",
            "model-parallel-size",
            "train_micro_batch_size_per_gpu",
            "no_weight_tying",
            "zero_optimization.",
            "checkpoint_factor",
            "checkpoint-factor",
            "data_path",
            "train_data_paths",
            "train-data-paths",
            "num_layers",
            "pos_emb",
            "merge_file",
            "merge-file",
            "tokenizer_type",
            "fp16.",
        }
    ),
)

"""TOML files for torchtitan, and the values that depend on several keys.

Newer versions are configured in Python; torchtitan_source.py gives those values the same keys.
"""

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
from runbook.tools.adopt.configs.shared_steps import (
    leave_schedule,
    take_nodes_of,
    take_tokenizer_file,
    turn_saves_off,
)
from runbook.tools.adopt.configs.torchtitan_keys import DEFAULTS, ROWS
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.program_arguments import ModelKind

_MODELS = {
    ("llama3", "8b"): "llama-3-8b",
    ("llama3", "70b"): "llama-3-70b",
    ("llama3", "405b"): "llama-3-405b",
    ("llama3_1", "8b"): "llama-3-8b",
    ("llama2", "7b"): "llama-2-7b",
    ("llama2", "13b"): "llama-2-13b",
    ("llama2", "70b"): "llama-2-70b",
}
"""Catalogue names for torchtitan flavors (torchtitan/models/llama3/__init__.py)."""
OTHER_MODELS = ("deepseek", "llama4", "moe", "gpt_oss", "kimi", "flux", "muse", "mixtral", "glm4")
"""Substrings in names of torchtitan models that are not dense GPTs."""
_DEBUG_SHAPE = {"layers": 6, "hidden": 256, "heads": 16, "ffn_hidden": 768}
"""Shape for the flavor debugmodel.

The feed-forward width is 2/3 of 4 x hidden, rounded up to a multiple of 256.
"""
_KIND: ModelKind = {
    "activation": "swiglu",
    "tied_embeddings": False,
    "biases": False,
    "position_embedding": "rope",
    "normalization": "rmsnorm",
    "rope_base": 500_000,
}
_DIFFERENCES = (
    OtherProgram(
        topic="sharding",
        theirs="FSDP: weights, gradients and optimizer states are sharded",
        ours=(
            "the distributed optimizer: states are sharded, weights are not (parallel.zero_stage: "
            "1). The numbers are the same, but the memory is not: 00-plan shows whether it fits"
        ),
    ),
    OtherProgram(
        topic="initial weights",
        theirs="standard deviation 0.02, smaller in deeper layers",
        ours=(
            "training.init_std: 0.02; smaller for output matrices, depending on the number of "
            "layers, as in GPT-3"
        ),
    ),
    OtherProgram(
        topic="text",
        theirs="a stream from Hugging Face's hub, tokenized while training",
        ours="token files that 02-data writes, in a different order",
    ),
    OtherProgram(
        topic="data-parallel size",
        theirs="the remaining devices that torchrun was given",
        ours="the remaining devices of jobs.training.nodes x devices",
    ),
)


def _finish(values: Values, findings: Findings, kind: ModelKind) -> None:
    """Compute the values that depend on several keys."""
    _take_model(values, findings, kind)
    _take_schedule(values, findings)
    take_tokenizer_file(values, "model.hf_assets_path", "model.tokenizer_path", findings=findings)
    _take_nodes(values, findings)
    _take_batches(values, findings)
    _take_saves(values, findings)
    _take_evaluation(values, findings)
    _take_eight_bits(values, findings)


_LLAMAS = ("llama2", "llama3")
"""Models whose debugmodel has the same sizes."""


def _take_model(values: Values, findings: Findings, kind: ModelKind) -> None:
    """Use the model from the catalogue for a name and flavor.

    Ask for the shape if there is no such model.
    """
    name = text(values, "model.name").lower()
    flavor = text(values, "model.flavor").lower()
    line = line_of(values, "model.flavor", "model.name")
    if name == "llama2":
        kind["rope_base"] = 10_000

    model = _MODELS.get((name, flavor), "")
    if any(part in name for part in OTHER_MODELS):
        findings.trains_another_model(line, f"model.name {name}", "experts or custom layers")
    elif model:
        findings.take("model", model, line, f"model.name {name}, model.flavor {flavor}")
    elif flavor.startswith("debugmodel") and name in _LLAMAS:
        for size_name, size in _DEBUG_SHAPE.items():
            findings.take(f"training.shape.{size_name}", size, line, "flavor debugmodel")
    else:
        findings.ask("model", f"the shape of {name} {flavor}, which is in torchtitan's code")


def _take_schedule(values: Values, findings: Findings) -> None:
    """Adopt the torchtitan schedule, in which decay follows the warm-up or a constant phase."""
    line = line_of(values, "lr_scheduler.decay_type", "lr_scheduler.decay_ratio", "optimizer.lr")
    shape = text(values, "lr_scheduler.decay_type", "lr_scheduler.lr_decay_type") or "linear"
    if shape == "sqrt":
        leave_schedule(findings, line, "lr_scheduler.decay_type sqrt")
        shape = "linear"

    if number(values, "lr_scheduler.decay_ratio"):
        findings.take("training.schedule", "wsd", line, "torchtitan's schedule")
        findings.take("training.wsd_decay_style", shape, line, "lr_scheduler.decay_type")
    else:
        findings.take("training.schedule", shape, line, "torchtitan's schedule")
        findings.drop("training.wsd_decay_fraction")

    newer_share = number(values, "lr_scheduler.min_lr_factor")
    share = newer_share or number(values, "lr_scheduler.lr_min")
    peak = number(values, "optimizer.lr", 8e-4)
    source = "lr_scheduler.lr_min x optimizer.lr"
    findings.take("training.min_learning_rate", share * peak, line, source)


def _take_nodes(values: Values, findings: Findings) -> None:
    """Compute the number of nodes from a fixed data-parallel size, or else ask for it."""
    replicas = max(1, _degree(values, "data_parallel_replicate_degree", 1))
    shards = _degree(values, "data_parallel_shard_degree", -1)
    if shards <= 0:
        question = "number of nodes: data_parallel_shard_degree uses all available devices"
        findings.ask("jobs.training.nodes", question)
        return

    context = findings.number("parallel.context", 1)
    world = replicas * shards * findings.model_parallel * context
    line = line_of(
        values,
        "parallelism.data_parallel_shard_degree",
        "training.data_parallel_shard_degree",
    )
    source = f"{world} devices: replicas x shards x tensor x pipeline x context"
    take_nodes_of(world, findings, line=line, source=source)


def _take_batches(values: Values, findings: Findings) -> None:
    """Divide the local batch for a stage into micro-batches.

    Drop a global batch of -1, which means automatic.
    """
    if findings.number("training.global_batch") <= 0:
        findings.drop("training.global_batch")
    if findings.number("parallel.pipeline", 1) <= 1:
        return

    local_batch = findings.number("training.micro_batch", 1)
    name = "parallelism.pipeline_parallel_microbatch_size"
    micro_batch = max(1, whole_number(values, name, 1))
    line = line_of(values, name)
    source = "pipeline_parallel_microbatch_size, 1 by default"
    findings.take("training.micro_batch", micro_batch, line, source)

    steps = max(1, local_batch // micro_batch)
    degree_line = line_of(
        values,
        "parallelism.data_parallel_shard_degree",
        "training.data_parallel_shard_degree",
    )
    findings.take("gas", steps, degree_line, "local batch / micro-batch")


def _degree(values: Values, name: str, default: int) -> int:
    """Return a degree of parallelism, which is in a different section in earlier versions."""
    for section in ("parallelism", "training", "experimental"):
        if f"{section}.{name}" in values:
            return whole_number(values, f"{section}.{name}", default)
    return default


def _take_saves(values: Values, findings: Findings) -> None:
    """Turn checkpoints off unless the file turns them on."""
    has_saves = is_on(values, "checkpoint.enable_checkpoint")
    if not has_saves and not is_on(values, "checkpoint.enable"):
        line = line_of(values, "checkpoint.enable_checkpoint", "checkpoint.enable")
        turn_saves_off(findings, line)


def _take_evaluation(values: Values, findings: Findings) -> None:
    """Turn evaluation off unless the file turns it on."""
    if not is_on(values, "validation.enable"):
        line = line_of(values, "validation.enable")
        source = "torchtitan validates only on request"
        findings.take("training.eval_interval", 0, line, source)


def _take_eight_bits(values: Values, findings: Findings) -> None:
    """Turn 8-bit matrix products on if a converter, or a switch in earlier versions, does."""
    converters = value_of(values, "model.converters") or []
    if isinstance(converters, list):
        names = " ".join(map(str, converters))
    else:
        names = str(converters)

    if "float8" in names or is_on(values, "float8.enable_float8_linear"):
        line = line_of(values, "model.converters", "float8.enable_float8_linear")
        findings.take("training.fp8", "tensorwise", line, "float8")
    elif "mx" in names:
        findings.take("training.fp8", "mxfp8", line_of(values, "model.converters"), "mx")


TORCHTITAN = ConfigFormat(
    program="torchtitan",
    rows=ROWS,
    defaults=DEFAULTS,
    kind=_KIND,
    differences=_DIFFERENCES,
    finish=_finish,
    signs=frozenset(
        {
            "job.",
            "metrics.",
            "model.flavor",
            "parallelism.",
            "activation_checkpoint.",
            "training.seq_len",
        }
    ),
)

"""torchtitan's TOML files: `[training] local_batch_size = 1`, in the spellings of 2024 and 2025.

Read from pytorch/torchtitan and its forks; the keys are those of its JobConfig. Newer versions are
configured in Python: torchtitan_source.py gives their values the same keys.
"""

from typing import Any

from runbook.tools.adopt.configs.rows import (
    FOLDERS,
    LOGGING,
    PERFORMANCE,
    PROFILE,
    TOKENIZER_FILE,
    ConfigFormat,
    KeyRow,
    OtherProgram,
    Values,
    chosen,
    decimal,
    integer,
    is_on,
    line_of,
    number,
    switch,
    take_path_of_tokenizer,
    text,
    whole_number,
    word,
    zero_if_off,
)
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.options import ModelKind

_MODELS = {
    ("llama3", "8b"): "llama-3-8b",
    ("llama3", "70b"): "llama-3-70b",
    ("llama3", "405b"): "llama-3-405b",
    ("llama3_1", "8b"): "llama-3-8b",
    ("llama2", "7b"): "llama-2-7b",
    ("llama2", "13b"): "llama-2-13b",
    ("llama2", "70b"): "llama-2-70b",
}
"""Catalogue's name of each of torchtitan's flavors (torchtitan/models/llama3/__init__.py)."""
_OTHER_MODELS = ("deepseek", "llama4", "moe", "gpt_oss", "kimi", "flux", "muse")
"""Parts of the names of torchtitan's models that are no dense GPT."""
_DEBUG_SHAPE = {"layers": 6, "hidden": 256, "heads": 16}
"""Flavor debugmodel. Its feed-forward block is 2/3 of 4 x hidden, rounded up to 256."""
_DEBUG_FFN = 768
_FSDP = "the weights are whole on each device here; the optimizer's states are shared out"
_LOCAL_BATCH = "a stage cuts it into micro-batches of pipeline_parallel_microbatch_size"
_SAVES = "true: every checkpoint.interval steps"
_ENGINE = "our engine decides it by itself"


def _off_or_mode(value: Any) -> str:
    return {"none": "none", "selective": "selective", "full": "full"}[str(value).lower()]


_ROWS = (
    KeyRow("model.name", "model"),
    KeyRow("model.flavor", "model"),
    KeyRow(
        "model.norm_type",
        "model.normalization",
        chosen({"rmsnorm": "rmsnorm", "fused_rmsnorm": "rmsnorm", "layernorm": "layernorm"}),
    ),
    KeyRow("model.tokenizer_path", "data.tokenizer", why=TOKENIZER_FILE),
    KeyRow("model.hf_assets_path", "data.tokenizer", why=TOKENIZER_FILE),
    KeyRow("model.converters", "", why="our layers are converted by training.fp8", off=([],)),
    KeyRow("optimizer.name", "", why="our optimizer is AdamW", off=("AdamW", "Adam")),
    KeyRow("optimizer.lr", "training.learning_rate", decimal),
    KeyRow("optimizer.beta1", "training.adam_beta1", decimal),
    KeyRow("optimizer.beta2", "training.adam_beta2", decimal),
    KeyRow("optimizer.eps", "training.adam_epsilon", decimal),
    KeyRow("optimizer.weight_decay", "training.weight_decay", decimal),
    KeyRow("optimizer.implementation", "", why=PERFORMANCE),
    KeyRow("optimizer.fused", "", why=PERFORMANCE),
    KeyRow("optimizer.*", "", why=PERFORMANCE, off=(False,)),
    KeyRow("lr_scheduler.warmup_steps", "training.warmup_iterations", integer),
    KeyRow("training.warmup_steps", "training.warmup_iterations", integer),
    KeyRow(
        "lr_scheduler.decay_type",
        "training.schedule",
        word,
        "with decay_ratio: training.wsd_decay_style",
    ),
    KeyRow("lr_scheduler.lr_decay_type", "training.schedule", word),
    KeyRow("lr_scheduler.decay_ratio", "training.wsd_decay_fraction", decimal),
    KeyRow("lr_scheduler.min_lr_factor", "", why="x optimizer.lr: training.min_learning_rate"),
    KeyRow("lr_scheduler.lr_min", "", why="x optimizer.lr: training.min_learning_rate"),
    KeyRow("training.local_batch_size", "training.micro_batch", integer, _LOCAL_BATCH),
    KeyRow("training.batch_size", "training.micro_batch", integer, _LOCAL_BATCH),
    KeyRow("training.global_batch_size", "training.global_batch", integer),
    KeyRow("training.seq_len", "training.sequence_length", integer),
    KeyRow("training.max_norm", "training.clip_gradient", decimal),
    KeyRow("training.steps", "training.iterations", integer),
    KeyRow("training.seed", "training.seed", integer),
    KeyRow("training.dataset", "", why="its text comes from Hugging Face's hub: set data.dataset"),
    KeyRow("training.dataset_path", "", why="set data.folder, or download the text in 02-data"),
    KeyRow(
        "training.dtype",
        "",
        why="weights of 32 bits and products of training.precision",
        off=("float32",),
    ),
    KeyRow(
        "training.mixed_precision_param",
        "training.precision",
        chosen({"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}),
    ),
    KeyRow(
        "training.mixed_precision_reduce",
        "",
        why="gradients are summed in 32 bits",
        off=("float32",),
    ),
    KeyRow("training.enable_cpu_offload", "training.offload", switch),
    KeyRow("training.gc_freq", "training.gc_interval", integer),
    KeyRow("training.compile", "", why=PERFORMANCE),
    KeyRow("compile.*", "", why=PERFORMANCE),
    KeyRow(
        "training.deterministic",
        "",
        why="set nothing: our trainer repeats itself bit for bit on one layout",
        off=(False,),
    ),
    KeyRow("training.gc_debug", "", why=LOGGING),
    KeyRow("*.data_parallel_replicate_degree", "", why="part of the data-parallel size", off=(1,)),
    KeyRow(
        "*.data_parallel_shard_degree",
        "parallel.zero_stage",
        lambda degree: 0 if integer(degree) == 1 else 1,
        _FSDP,
    ),
    KeyRow(
        "*.data_parallel_degree",
        "parallel.zero_stage",
        lambda degree: 0 if integer(degree) == 1 else 1,
        _FSDP,
    ),
    KeyRow("*.data_parallel_type", "", why=_FSDP),
    KeyRow("*.fsdp_reshard_after_forward", "", why=_FSDP),
    KeyRow("*.tensor_parallel_degree", "parallel.tensor", integer),
    KeyRow("*.pipeline_parallel_degree", "parallel.pipeline", integer),
    KeyRow("*.context_parallel_degree", "parallel.context", integer),
    KeyRow(
        "*.pipeline_parallel_schedule",
        "",
        why="stages run one forward, one backward pass (1F1B)",
        off=("1F1B",),
    ),
    KeyRow(
        "*.pipeline_parallel_*",
        "",
        why="layers are divided evenly, or by parallel.first_stage_layers",
        off=([], None, ""),
    ),
    KeyRow(
        "*.expert_parallel_degree",
        "",
        why="our models have no experts",
        off=(1,),
        other_model="experts",
    ),
    KeyRow("*.expert_tensor_parallel_degree", "", why="our models have no experts", off=(1,)),
    KeyRow(
        "*.enable_async_tensor_parallel",
        "training.overlap_tensor",
        switch,
        "with Transformer Engine only",
    ),
    KeyRow("*.disable_loss_parallel", "", why=_ENGINE),
    KeyRow("*.context_parallel_rotate_method", "", why=_ENGINE),
    KeyRow("*.enable_compiled_autograd", "", why=PERFORMANCE),
    KeyRow("activation_checkpoint.mode", "training.recompute", _off_or_mode),
    KeyRow(
        "activation_checkpoint.*", "", why="selective computes attention again, full each layer"
    ),
    KeyRow("checkpoint.enable_checkpoint", "training.save_interval", zero_if_off, _SAVES),
    KeyRow("checkpoint.enable", "training.save_interval", zero_if_off, _SAVES),
    KeyRow("checkpoint.interval", "training.save_interval", integer, "nothing is saved in between"),
    KeyRow(
        "checkpoint.async_mode",
        "training.async_save",
        chosen({"disabled": False, "async": True, "async_with_pinned_mem": True}),
    ),
    KeyRow("checkpoint.keep_latest_k", "training.keep_checkpoints", integer),
    KeyRow("checkpoint.folder", "", why=FOLDERS),
    KeyRow(
        "checkpoint.initial_load_path",
        "",
        why="`runbook import` begins with other weights",
        off=(None, ""),
    ),
    KeyRow(
        "checkpoint.*",
        "",
        why="a checkpoint has everything; `runbook export` writes the weights alone",
    ),
    KeyRow("metrics.log_freq", "training.log_interval", integer),
    KeyRow("metrics.*", "", why=LOGGING),
    KeyRow("profiling.*", "", why=PROFILE, off=(False,)),
    KeyRow("job.*", "", why=FOLDERS),
    KeyRow("comm.train_timeout_seconds", "training.process_group_timeout", integer),
    KeyRow("comm.*", "", why=LOGGING),
    KeyRow(
        "validation.enable",
        "training.eval_interval",
        zero_if_off,
        "true: every validation.freq steps",
    ),
    KeyRow("validation.freq", "training.eval_interval", integer),
    KeyRow(
        "validation.steps",
        "training.eval_iterations",
        integer,
        "counts with validation.enable only; all batches, -1, are no number of ours",
    ),
    KeyRow("validation.*", "", why="02-data holds text out by data.split"),
    KeyRow("eval.*", "", why="02-data holds text out by data.split"),
    KeyRow("float8.enable_float8_linear", "", why="true: training.fp8 tensorwise", off=(False,)),
    KeyRow("float8.*", "", why="goes with training.fp8", off=(False,)),
    KeyRow("quantize.*", "", why="goes with training.fp8"),
    KeyRow("mx.*", "", why="goes with training.fp8"),
    KeyRow("memory_estimation.*", "", why="00-plan estimates memory", off=(False,)),
    KeyRow("fault_tolerance.*", "", why="jobs.training.restarts and spares", off=(False,)),
    KeyRow(
        "experimental.*",
        "",
        why="code of your own, which adopt does not read",
        off=("", None, False),
    ),
    KeyRow("infra.*", "", why=PERFORMANCE),
    KeyRow(
        "training.num_tokens_per_microbatch_per_dp_rank",
        "",
        why="a step's tokens on a replica: training.micro_batch x training.sequence_length",
    ),
    KeyRow("model_spec.*", "", why="how the model is built: our trainer has its own kernels"),
    KeyRow("dataloader*", "", why="02-data prepares text of its own: data.dataset"),
    KeyRow("loss*", "", why="the loss is the cross entropy, in 32 bits"),
    KeyRow("dump_folder", "", why=FOLDERS),
    KeyRow("debug.seed", "training.seed", integer),
    KeyRow("*._target_", "", why="the program's own class"),
)
_DEFAULTS: dict[str, Any] = {
    "optimizer.lr": 8e-4,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.95,
    "optimizer.eps": 1e-8,
    "optimizer.weight_decay": 0.1,
    "training.seq_len": 2048,
    "training.max_norm": 1.0,
    "training.steps": 10_000,
    "training.mixed_precision_param": "bfloat16",
    "training.gc_freq": 50,
    "activation_checkpoint.mode": "selective",
    "metrics.log_freq": 10,
    "checkpoint.interval": 500,
    "parallelism.data_parallel_shard_degree": -1,
}
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
        "sharding",
        "FSDP: weights, gradients and optimizer states are shared out",
        "the distributed optimizer: states are shared out, weights are whole (parallel.zero_stage: 1). Numbers are "
        "the same, memory is not: 00-plan says whether it fits",
    ),
    OtherProgram(
        "initial weights",
        "standard deviation 0.02, smaller in deeper layers",
        "training.init_std: 0.02, output matrices by the number of layers, as GPT-3",
    ),
    OtherProgram(
        "text",
        "a stream from Hugging Face's hub, tokenized while training",
        "token files that 02-data writes, in another order",
    ),
    OtherProgram(
        "data-parallel size",
        "what is left of the devices that torchrun was given",
        "what is left of jobs.training.nodes x devices",
    ),
)


def _finish(values: Values, findings: Findings, kind: ModelKind) -> None:
    """Name the model, and compute the schedule, the batch, the saves and the nodes."""
    _model(values, findings, kind)
    _schedule(values, findings)
    _tokenizer(values, findings)
    _batch_and_nodes(values, findings)
    _saves(values, findings)
    _precision(values, findings)


def _model(values: Values, findings: Findings, kind: ModelKind) -> None:
    name = text(values, "model.name").lower()
    flavor = text(values, "model.flavor").lower()
    line = line_of(values, "model.flavor", "model.name")
    model = _MODELS.get((name, flavor), "")
    if name == "llama2":
        kind["rope_base"] = 10_000
    if model:
        findings.take("model", model, line, f"model.name {name}, model.flavor {flavor}")
    elif flavor.startswith("debugmodel"):
        for field, size in _DEBUG_SHAPE.items():
            findings.take(f"training.shape.{field}", size, line, "flavor debugmodel")
        findings.take("training.shape.ffn_hidden", _DEBUG_FFN, line, "flavor debugmodel")
    elif any(part in name for part in _OTHER_MODELS):
        findings.trains_another_model(line, f"model.name {name}", "experts or layers of its own")
    else:
        findings.ask("model", f"the shape of {name} {flavor}, which torchtitan's code has")


def _schedule(values: Values, findings: Findings) -> None:
    """Take torchtitan's schedule: linear after the warm-up, or stable until the last share of the steps."""
    shape = text(values, "lr_scheduler.decay_type") or text(values, "lr_scheduler.lr_decay_type")
    line = line_of(values, "lr_scheduler.decay_type", "lr_scheduler.decay_ratio", "optimizer.lr")
    schedule = {"sqrt": "linear"}.get(shape, shape) or "linear"
    if shape == "sqrt":
        findings.leave(
            line, "lr_scheduler.decay_type sqrt", "our schedules fall linearly or as a cosine"
        )
    if number(values, "lr_scheduler.decay_ratio"):
        findings.take("training.wsd_decay_style", schedule, line, "lr_scheduler.decay_type")
        schedule = "wsd"
    else:
        findings.drop("training.wsd_decay_fraction")
    findings.take("training.schedule", schedule, line, "torchtitan's schedule")
    share = number(values, "lr_scheduler.min_lr_factor") or number(values, "lr_scheduler.lr_min")
    peak = number(values, "optimizer.lr", 8e-4)
    source = "lr_scheduler.lr_min x optimizer.lr"
    findings.take("training.min_learning_rate", share * peak, line, source)


def _tokenizer(values: Values, findings: Findings) -> None:
    name = "model.hf_assets_path" if "model.hf_assets_path" in values else "model.tokenizer_path"
    take_path_of_tokenizer(findings, name, values.get(name))


def _batch_and_nodes(values: Values, findings: Findings) -> None:
    """Compute the nodes of a fixed data-parallel size, and the global batch of local ones."""
    replicas = max(1, _degree(values, "data_parallel_replicate_degree", 1))
    shards = _degree(values, "data_parallel_shard_degree", -1)
    devices = findings.devices_per_node
    context = findings.number("parallel.context", 1)
    line = line_of(
        values, "parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree"
    )
    if shards > 0:
        world = replicas * shards * findings.model_parallel * context
        _take_world(world, devices, line, findings)
    else:
        findings.ask(
            "jobs.training.nodes",
            "how many nodes: data_parallel_shard_degree takes all that there are",
        )
    if findings.number("training.global_batch") <= 0:
        findings.drop("training.global_batch")
    local_batch = findings.number("training.micro_batch", 1)
    if (
        findings.number("parallel.pipeline", 1) > 1
    ):  # a stage cuts its local batch into micro-batches
        name = "parallelism.pipeline_parallel_microbatch_size"
        micro_batch = max(1, whole_number(values, name, 1))
        source = "pipeline_parallel_microbatch_size, 1 by default"
        findings.take("training.micro_batch", micro_batch, line_of(values, name), source)
        findings.take("gas", max(1, local_batch // micro_batch), line, "local batch / micro-batch")


def _take_world(world: int, devices: int, line: int, findings: Findings) -> None:
    """Take a number of devices as nodes of the site's size."""
    nodes = max(1, -(-world // devices))
    source = f"{world} devices: replicas x shards x tensor x pipeline x context"
    findings.take("jobs.training.nodes", nodes, line, source)
    if world < devices:
        findings.take("jobs.training.devices_per_node", world, line, source)


def _degree(values: Values, name: str, default: int) -> int:
    """Return a degree, which stood in other sections in earlier versions."""
    for section in ("parallelism", "training", "experimental"):
        if f"{section}.{name}" in values:
            return whole_number(values, f"{section}.{name}", default)
    return default


def _saves(values: Values, findings: Findings) -> None:
    line = line_of(values, "checkpoint.enable_checkpoint", "checkpoint.enable")
    if not (is_on(values, "checkpoint.enable_checkpoint") or is_on(values, "checkpoint.enable")):
        findings.take("training.save_interval", 0, line, "checkpoints are off")
        findings.drop("training.async_save")
    if not is_on(values, "validation.enable"):
        source = "torchtitan validates only where it is told to"
        findings.take("training.eval_interval", 0, line_of(values, "validation.enable"), source)


def _precision(values: Values, findings: Findings) -> None:
    """Take 8 bits where a converter or an old switch asks for them."""
    converters = values["model.converters"].value if "model.converters" in values else []
    words = " ".join(map(str, converters)) if isinstance(converters, list) else str(converters)
    if "float8" in words or is_on(values, "float8.enable_float8_linear"):
        line = line_of(values, "model.converters", "float8.enable_float8_linear")
        findings.take("training.fp8", "tensorwise", line, "float8")
    elif "mx" in words:
        findings.take("training.fp8", "mxfp8", line_of(values, "model.converters"), "mx")


TORCHTITAN = ConfigFormat(
    program="torchtitan",
    rows=_ROWS,
    defaults=_DEFAULTS,
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

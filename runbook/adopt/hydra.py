"""NeMo's Hydra overrides as keys of a run file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runbook.adopt.findings import Findings, one_of, truth, whole
from runbook.adopt.marks import Word
from runbook.adopt.options import Reader
from runbook.units import parse_duration

_PRECISION = one_of({"bf16": "bf16", "16": "fp16", "32": "fp32", "bf16-mixed": "bf16", "16-mixed": "fp16"})
_SCHEDULES = one_of({"cosineannealing": "cosine", "polynomialdecayannealing": "linear", "warmupholdpolicy": "constant"})
_RECOMPUTE = one_of({"full": "full", "selective": "selective", "null": "none", "none": "none"})
_KEYS: dict[str, tuple[str, Reader]] = {
    "trainer.num_nodes": ("jobs.training.nodes", whole),
    "cluster.nodes": ("jobs.training.nodes", whole),
    "trainer.devices": ("jobs.training.devices_per_node", whole),
    "trainer.precision": ("training.precision", _PRECISION),
    "trainer.max_steps": ("training.iterations", whole),
    "trainer.log_every_n_steps": ("training.log_interval", whole),
    "trainer.val_check_interval": ("training.eval_interval", whole),
    "trainer.limit_val_batches": ("training.eval_iterations", whole),
    "trainer.gradient_clip_val": ("training.clip_gradient", float),
    "trainer.max_time": (
        "training.exit_duration",
        lambda text: parse_duration(re.sub(r"^(\d+):(\d+:\d+:\d+)$", r"\1-\2", text)),
    ),
    "model.micro_batch_size": ("training.micro_batch", whole),
    "model.global_batch_size": ("training.global_batch", whole),
    "model.tensor_model_parallel_size": ("parallel.tensor", whole),
    "model.pipeline_model_parallel_size": ("parallel.pipeline", whole),
    "model.virtual_pipeline_model_parallel_size": (
        "parallel.virtual_pipeline",
        lambda text: 1 if text.lower() in ("null", "none") else whole(text),
    ),
    "model.sequence_parallel": ("parallel.sequence", truth),
    "model.encoder_seq_length": ("training.sequence_length", whole),
    "model.data.seq_length": ("training.sequence_length", whole),
    "model.max_position_embeddings": ("training.shape.positions", whole),
    "model.num_layers": ("training.shape.layers", whole),
    "model.hidden_size": ("training.shape.hidden", whole),
    "model.ffn_hidden_size": ("training.shape.ffn_hidden", whole),
    "model.num_attention_heads": ("training.shape.heads", whole),
    "model.init_method_std": ("training.init_std", float),
    "model.hidden_dropout": ("training.dropout", float),
    "model.activations_checkpoint_granularity": ("training.recompute", _RECOMPUTE),
    "model.seed": ("training.seed", whole),
    "model.optim.lr": ("training.learning_rate", float),
    "model.optim.weight_decay": ("training.weight_decay", float),
    "model.optim.sched.name": ("training.schedule", _SCHEDULES),
    "model.optim.sched.warmup_steps": ("training.warmup_iterations", whole),
    "model.optim.sched.min_lr": ("training.min_learning_rate", float),
    "model.data.splits_string": ("data.split", str),
    "exp_manager.checkpoint_callback_params.save_top_k": ("training.keep_checkpoints", whole),
}
_OURS = re.compile(
    r"(run\.|exp_manager\.(explicit_log_dir|resume_if_exists|wandb)|trainer\.enable_checkpointing|"
    r"model\.tokenizer\.|model\.data\.(index_mapping_dir|data_prefix|data_impl)|container|base_results_dir|"
    r"bignlp_path|launcher_scripts_path|data_dir|cluster(_type|\.)|stages|env_vars\.)"
)
_IMAGE_SIZES = {"126m": "126m", "5b": "5b", "20b": "20b", "40b": "40b", "175b": "nemo-175b"}


def size_of(words: Sequence[Word]) -> Word | None:
    """The size of NeMo's own file: `--config-name=175b.yaml`, or `training=gpt3/5b` of the launcher."""
    for word in words:
        match = re.fullmatch(r"(?:--config-name=|(?:\+\+)?training=\w+/)([\w.-]+?)(?:\.yaml)?", word.text)
        if match:
            return Word(match[1].lower(), word.line)
    return None


def model_of(size: str) -> str:
    """The catalogue's name of NeMo's size; empty where it has none."""
    return _IMAGE_SIZES.get(size, "")


def take_overrides(words: Sequence[Word], findings: Findings) -> None:
    """Values given as `name=value`; `training.` before it and `++` are the launcher's spelling."""
    for word in words:
        name, equals, value = word.text.partition("=")
        name = name.lstrip("+~").removeprefix("training.")
        if not equals or name.startswith("--") or not name:
            if not name.startswith("--config") and not word.known:
                findings.leave(word.line, word.shown, "more overrides, known only while the script runs")
            continue
        inner = Word(value, word.line)
        if name == "exp_manager.create_checkpoint_callback":
            if inner.known and not truth(value):
                findings.take("training.save_interval", 0, word.line, f"{name}=False")
        elif name in _KEYS:
            key, read = _KEYS[name]
            findings.read(key, inner, name, read)
        elif name == "model.optim.betas" and (betas := re.fullmatch(r"\[([\d.]+),\s*([\d.]+)\]", value)):
            findings.take("training.adam_beta1", float(betas[1]), word.line, name)
            findings.take("training.adam_beta2", float(betas[2]), word.line, name)
        elif _OURS.match(name):
            findings.does(word.line, f"{name}={inner.shown[:60]}", "the site's file and the run's own folders give it")
        elif name != "training":
            where = "write it under frameworks.nemo.options of the site's file"
            findings.leave(word.line, f"{name}={inner.shown[:60]}", f"no key of the run file has it: {where}")

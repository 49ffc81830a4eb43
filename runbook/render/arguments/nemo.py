"""NeMo's own configuration keys (NeMo-Framework-Launcher 23.04, of the AWS document), as Hydra overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from runbook.params import Settings
from runbook.params.schema import Framework
from runbook.render.arguments.options import text, tokenizer_files

SCHEDULES = {"cosine": "CosineAnnealing", "linear": "PolynomialDecayAnnealing", "constant": "WarmupHoldPolicy"}
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")


def arguments(settings: Settings, spec: Mapping[str, Any]) -> list[str]:
    """Overrides after megatron_gpt_pretraining.py.

    The image's own file is the base and is not edited: every value that it takes from the launcher is given here, where
    the document's script had each of eight ranks rewrite the file.
    """
    checkout = settings.site.frameworks[Framework.NEMO]
    values = {**_trainer(settings, spec), **_manager(spec), **_model(settings, spec), **_data(settings, spec)}
    hydra = {"config-path", "config-name"}
    values |= {name: value for name, value in checkout.options.items() if name not in hydra}
    words = [f"--{name}={checkout.options[name]}" for name in sorted(hydra & checkout.options.keys())]
    return words + [f"{name}={_hydra(value)}" for name, value in values.items()]


def _trainer(settings: Settings, spec: Mapping[str, Any]) -> dict[str, Any]:
    steps, evaluation = spec["duration"]["iterations"], spec["evaluation"]
    job = settings.job(spec["phase"])
    values = {
        "trainer.num_nodes": job.nodes,
        "trainer.devices": job.devices_per_node,
        "trainer.precision": {"bf16": "bf16", "fp16": 16, "fp32": 32}[spec["precision"]["format"]],
        "trainer.max_steps": steps,
        "trainer.log_every_n_steps": spec["log"]["interval"],
        "trainer.val_check_interval": evaluation["interval"] or steps,
        "trainer.limit_val_batches": evaluation["iterations"] if evaluation["interval"] else 0,
        "trainer.gradient_clip_val": spec["optimizer"]["clip_gradient"],
        "trainer.enable_checkpointing": False,  # the experiment manager's callback saves, not Lightning's
    }
    seconds = spec["limits"]["exit_duration_seconds"]
    if seconds:
        values["trainer.max_time"] = (
            f"{seconds // 86400:02d}:{seconds % 86400 // 3600:02d}:{seconds % 3600 // 60:02d}:00"
        )
    return values


def _manager(spec: Mapping[str, Any]) -> dict[str, Any]:
    saves = spec["checkpoint"]["interval"] > 0
    parallel = spec["parallel"]
    return {
        "exp_manager.explicit_log_dir": spec["checkpoint"]["folder"],
        "exp_manager.wandb_logger_kwargs.name": spec["phase"],
        "exp_manager.resume_if_exists": saves,
        "exp_manager.create_checkpoint_callback": saves,
        "exp_manager.checkpoint_callback_params.save_top_k": spec["checkpoint"]["keep"],
        "exp_manager.checkpoint_callback_params.model_parallel_size": parallel["tensor"] * parallel["pipeline"],
    }


def _model(settings: Settings, spec: Mapping[str, Any]) -> dict[str, Any]:
    model, parallel, rate, optimizer = spec["model"], spec["parallel"], spec["learning_rate"], spec["optimizer"]
    size = spec["batch"]["global"]
    vocabulary, merges = tokenizer_files(settings)
    recompute = spec["recompute"]
    return {
        "model.micro_batch_size": spec["batch"]["micro"],
        "model.global_batch_size": size,
        "model.tensor_model_parallel_size": parallel["tensor"],
        "model.pipeline_model_parallel_size": parallel["pipeline"],
        "model.virtual_pipeline_model_parallel_size": _virtual(parallel),
        "model.encoder_seq_length": model["sequence_length"],
        "model.max_position_embeddings": model["positions"],
        "model.num_layers": model["layers"],
        "model.hidden_size": model["hidden"],
        "model.ffn_hidden_size": model["ffn_hidden"],
        "model.num_attention_heads": model["heads"],
        "model.init_method_std": model["init_std"],
        "model.hidden_dropout": model["dropout"],
        "model.sequence_parallel": parallel["sequence"],
        "model.activations_checkpoint_granularity": None if recompute == "none" else recompute,
        "model.activations_checkpoint_method": "uniform" if recompute == "full" else "block",
        "model.activations_checkpoint_num_layers": 1 if recompute == "full" else 0,
        "model.tokenizer.vocab_file": vocabulary,
        "model.tokenizer.merge_file": merges,
        "model.native_amp_init_scale": spec["precision"]["initial_loss_scale"],
        "model.native_amp_growth_interval": spec["precision"]["loss_scale_window"],
        "model.hysteresis": settings.run.training.loss_scale_hysteresis,
        "model.megatron_amp_O2": spec["precision"]["format"] != "fp32",
        "model.seed": spec["seed"],
        "model.optim.name": "distributed_fused_adam" if parallel["zero_stage"] else "fused_adam",
        "model.optim.lr": rate["peak"],
        "model.optim.weight_decay": optimizer["weight_decay"],
        "model.optim.betas": [optimizer["beta1"], optimizer["beta2"]],
        "model.optim.sched.name": SCHEDULES[rate["schedule"]],
        "model.optim.sched.warmup_steps": rate["warmup_samples"] // size,
        "model.optim.sched.constant_steps": 0,
        "model.optim.sched.min_lr": rate["minimum"],
        **_ramp(spec),
    }


def _ramp(spec: Mapping[str, Any]) -> dict[str, Any]:
    ramp = spec["batch"].get("ramp")
    return {"model.rampup_batch_size": [ramp["start"], ramp["increment"], ramp["samples"]]} if ramp else {}


def _virtual(parallel: Mapping[str, Any]) -> int | None:
    return parallel["virtual_pipeline"] if parallel["virtual_pipeline"] > 1 else None


def _data(settings: Settings, spec: Mapping[str, Any]) -> dict[str, Any]:
    files = spec["data"]
    prefixes = [word for entry in files["train"] for word in (entry["weight"], entry["prefix"])]
    return {
        "model.data.data_impl": "mmap" if files["train"] else "mock",
        "model.data.splits_string": files["split"],
        "model.data.seq_length": spec["model"]["sequence_length"],
        "model.data.index_mapping_dir": files["cache"],
        "model.data.data_prefix": prefixes,
    }


def _hydra(value: object) -> str:
    r"""A value in Hydra's grammar: quoted wherever it is more than a plain word.

    >>> _hydra("a/b.json"), _hydra("949,50,1"), _hydra(None), _hydra(True), _hydra([1.0, "x y"]), _hydra("it's")
    ('a/b.json', "'949,50,1'", 'null', 'True', "[1.0,'x y']", "'it\\'s'")
    """
    if value is None:
        return "null"
    if isinstance(value, list):
        return "[" + ",".join(_hydra(item) for item in value) + "]"
    if isinstance(value, bool | int | float):
        return text(value)
    word = str(value)
    if _PLAIN.fullmatch(word) and word.lower() not in ("null", "true", "false", "nan", "inf"):
        return word
    return "'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'"

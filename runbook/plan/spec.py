"""The trainer's orders for one phase: every key of what `python -m runbook.training` reads."""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePosixPath
from typing import Any

from runbook.plan.checks import Check, judge
from runbook.plan.choices import Choice, Chosen
from runbook.plan.data import GPT2_END_OF_DOCUMENT, DataPlan
from runbook.plan.deepspeed_config import own_config
from runbook.plan.layout import Layout
from runbook.plan.schedule import Duration, LearningRate
from runbook.plan.sizes import whole
from runbook.plan.spec_options import add_options

OWN_FOLDERS = (("checkpoint", "folder"), ("log", "tensorboard"), ("data", "cache"))
OWN_FILES = (("log", "metrics"), ("log", "validation"), ("log", "samples"))
"""What smoke test and training must not share; events.jsonl is common, each line names its phase."""


def phase_spec(
    chosen: Chosen, choice: Choice, layout: Layout, length: Duration, rate: LearningRate, data: DataPlan
) -> dict[str, Any]:
    """The orders as plain values; paths are relative to the folder of plan.json unless absolute."""
    training = choice.training
    spec: dict[str, Any] = {
        "phase": choice.phase,
        "engine": str(training.engine),
        "seed": training.seed,
        "device": choice.site.hardware.device,
        "model": model_spec(choice),
        "parallel": {
            "tensor": layout.tensor,
            "pipeline": layout.pipeline,
            "virtual_pipeline": layout.virtual_pipeline,
            "context": layout.context,
            "sequence": layout.sequence,
            "data": layout.data,
            "world_size": layout.world_size,
            "zero_stage": layout.zero_stage,
        },
        "batch": {
            "micro": layout.micro_batch,
            "global": layout.global_batch,
            "num_microbatches": layout.num_microbatches,
        },
        "duration": {"iterations": length.iterations, "samples": length.samples, "tokens": length.tokens},
        "learning_rate": {
            "peak": rate.peak,
            "minimum": rate.minimum,
            "schedule": rate.schedule,
            "warmup_samples": rate.warmup_samples,
            "decay_samples": rate.decay_samples,
        },
        "optimizer": {
            "beta1": training.adam_beta1,
            "beta2": training.adam_beta2,
            "epsilon": training.adam_epsilon,
            "weight_decay": training.weight_decay,
            "clip_gradient": training.clip_gradient,
        },
        "precision": {
            "format": str(training.precision),
            "initial_loss_scale": training.initial_loss_scale,
            "loss_scale_window": training.loss_scale_window,
        },
        "recompute": str(training.recompute),
        "data": _data(chosen, choice, data),
        **_outputs(chosen, choice, length),
        "limits": {
            "exit_duration_seconds": 0 if choice.smoke else training.exit_duration,
            "process_group_timeout_seconds": training.process_group_timeout,
        },
        "sampling": _sampling(chosen, choice),
    }
    add_options(spec, choice, layout)
    if choice.own_trainer and choice.deepspeed:
        spec["deepspeed"] = own_config(spec, hysteresis=training.loss_scale_hysteresis)
    spec["fingerprint"] = fingerprint(spec)
    return spec


def model_spec(choice: Choice) -> dict[str, Any]:
    """The model with every default filled in, and its exact parameter count."""
    shape = choice.shape
    return {
        "name": choice.model_name,
        "label": choice.model.label,
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "ffn_hidden": shape.ffn_hidden,
        "sequence_length": shape.sequence_length,
        "positions": shape.positions,
        "vocabulary": shape.vocabulary,
        "padded_vocabulary": shape.padded_vocabulary,
        "tied_embeddings": shape.tied_embeddings,
        "position_embedding": shape.position_embedding,
        "normalization": shape.normalization,
        "activation": shape.activation,
        "biases": shape.biases,
        "init_std": choice.training.init_std,
        "dropout": choice.training.dropout,
        "parameters": whole(shape).total,
    }


def fingerprint(spec: dict[str, Any]) -> str:
    """Sha256 of what decides the losses but for rounding: weights, data order, steps, rates, number format.

    Left out: engine, parallel cut and micro-batch, which only change the rounding and may change on a resume, and
    names, folders, logging, evaluation, sampling. Data counts by the files' names, not by where they lie.
    """
    data = spec["data"]
    model = {key: value for key, value in spec["model"].items() if key not in ("name", "label", "parameters")}
    kept = {
        "seed": spec["seed"],
        "model": model,
        "global_batch": spec["batch"]["global"],
        "samples": spec["duration"]["samples"],
        "learning_rate": spec["learning_rate"],
        "optimizer": spec["optimizer"],
        "precision": spec["precision"],
        "data": {
            "mock": data["mock"],
            "split": "" if data["validation"] or data["test"] else data["split"],
            **{
                part: [[entry["weight"], PurePosixPath(entry["prefix"]).name] for entry in data[part]]
                for part in ("train", "validation", "test")
            },
        },
    }
    if "ramp" in spec["batch"]:
        kept["ramp"] = spec["batch"]["ramp"]
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def check_folders(smoke: dict[str, Any], full: dict[str, Any]) -> list[Check]:
    """Smoke test and training share no folder and no file, nor does a folder of one lie inside one of the other."""
    remedy = "Give the site's paths their own place for each; a full run must never load the smoke test's checkpoint."
    checks = []
    for section, key in OWN_FOLDERS + OWN_FILES:
        small, large = str(smoke[section][key]), str(full[section][key])
        checks.append(
            judge(
                f"smoke is not full: {section} {key}",
                not overlapping(small, large),
                f"smoke test: {small}, training: {large}",
                "smoke test and training never share a place",
                remedy,
            )
        )
    return checks


def overlapping(first: str, second: str) -> bool:
    """Whether one path is the other or lies inside it.

    >>> overlapping("checkpoints", "checkpoints/smoke"), overlapping("smoke/checkpoints", "checkpoints")
    (True, False)
    """
    one, other = PurePosixPath(first), PurePosixPath(second)
    return one.is_relative_to(other) or other.is_relative_to(one)


def _data(chosen: Chosen, choice: Choice, data: DataPlan) -> dict[str, Any]:
    def weighted(use: str) -> list[dict[str, Any]]:
        return [{"weight": weight, "prefix": prefix} for weight, prefix in data.weighted(use)]

    return {
        "mock": data.mock,
        "train": weighted("train"),
        "validation": weighted("validation"),
        "test": weighted("test"),
        "split": data.split,
        "cache": _place(chosen, choice, "data", "cache", in_run="data/cache"),
    }


def _outputs(chosen: Chosen, choice: Choice, length: Duration) -> dict[str, Any]:
    training, files = choice.training, "smoke/" if choice.smoke else ""
    evaluates = training.eval_interval > 0 and training.eval_iterations > 0
    if choice.smoke:
        evaluation = {"interval": length.iterations if evaluates else 0, "iterations": 1 if evaluates else 0}
    else:
        evaluation = {"interval": training.eval_interval, "iterations": training.eval_iterations}
    return {
        "evaluation": evaluation,
        "checkpoint": {
            "folder": _place(chosen, choice, "checkpoints", "checkpoints", in_run="checkpoints"),
            "interval": 0 if choice.smoke else training.save_interval,
            "keep": 1 if choice.smoke else training.keep_checkpoints,
        },
        "log": {
            "interval": 1 if choice.smoke else training.log_interval,
            "metrics": f"{files}metrics.jsonl",
            "validation": f"{files}validation.jsonl",
            "samples": f"{files}samples.jsonl",
            "events": "events.jsonl",
            "tensorboard": _place(chosen, choice, "tensorboard", "tensorboard", in_run="tensorboard"),
        },
    }


def _place(chosen: Chosen, choice: Choice, site_key: str, name: str, *, in_run: str) -> str:
    base = chosen.site.paths.get(site_key, "")
    if not base:
        return f"smoke/{in_run}" if choice.smoke else in_run
    return f"{base.rstrip('/')}/{chosen.name}/{'smoke-' if choice.smoke else ''}{name}"


def _sampling(chosen: Chosen, choice: Choice) -> dict[str, Any]:
    training = choice.training
    return {
        "prompt": "" if choice.smoke else training.sample_prompt,
        "prompt_ids": [],
        "tokens": training.sample_tokens,
        "end_of_document": GPT2_END_OF_DOCUMENT if chosen.run.data.tokenizer == "gpt2" else -1,
    }

"""YAML files and Python recipes for Megatron Bridge (`cfg.train.train_iters = 100`)."""

from runbook.tools.adopt.configs.config_format import (
    ConfigFormat,
    OtherProgram,
    Values,
    line_of,
    text,
    value_of,
)
from runbook.tools.adopt.configs.megatron_bridge_keys import DEFAULTS, ROWS
from runbook.tools.adopt.configs.nemo_recipe import take_recipe_model
from runbook.tools.adopt.configs.shared_steps import drop_single_chunk, take_tokenizer_file
from runbook.tools.adopt.findings import Findings
from runbook.tools.adopt.program_arguments import ModelKind

_EVAL_INTERVAL = 500
_EVAL_ITERATIONS = 32
"""How many evaluation steps the recipes use (recipes/common.py, _pretrain_common)."""
_DIFFERENCES = (
    OtherProgram(
        topic="trainer",
        theirs="Megatron Bridge around megatron-core, with Transformer Engine's layers",
        ours="our own trainer around megatron-core; Transformer Engine where it is installed",
    ),
    OtherProgram(
        topic="values that the file omits",
        theirs="the recipe's own",
        ours=(
            "the values that Bridge's recipes have in common (2026-08), and one tensor, pipeline "
            "and context rank. Adopt the configuration that Bridge prints or saves "
            "(run_config.yaml) instead, which is complete"
        ),
    ),
)


def _finish(values: Values, findings: Findings, kind: ModelKind) -> None:
    """Set the model, and compute the values that depend on several keys."""
    take_recipe_model(values, findings)
    _take_mock_text(values, findings)
    _take_evaluation(values, findings)
    findings.take("training.precision", "bf16", 0, "bf16_mixed is the recipes' default", over=False)
    _take_tokenizer(values, findings)
    if "jobs.training.nodes" not in findings.carried:
        findings.ask(
            "jobs.training.nodes", "number of nodes: the command that starts the training sets it"
        )
    drop_single_chunk(findings)


def _take_mock_text(values: Values, findings: Findings) -> None:
    """Use synthetic text if no dataset is named."""
    has_blend = value_of(values, "dataset.blend") is not None
    is_blend_null = "dataset.blend" in values and not has_blend
    has_path = "dataset.data_path" in values
    if is_blend_null or not (has_blend or has_path):
        line = line_of(values, "dataset.blend")
        findings.take("data.dataset", "mock", line, "no blend: synthetic text")


def _take_evaluation(values: Values, findings: Findings) -> None:
    """Use the recipes' evaluation settings if the file sets no interval."""
    if "validation.eval_interval" in values or "train.eval_interval" in values:
        return
    source = "the recipes' common part"
    findings.take("training.eval_interval", _EVAL_INTERVAL, 0, source)
    findings.take("training.eval_iterations", _EVAL_ITERATIONS, 0, source, over=False)


def _take_tokenizer(values: Values, findings: Findings) -> None:
    """Ask for the tokenizer file, unless it is for GPT-2."""
    if text(values, "tokenizer.tokenizer_type") != "GPT2BPETokenizer":
        take_tokenizer_file(values, "tokenizer.tokenizer_model", findings=findings)


MEGATRON_BRIDGE = ConfigFormat(
    program="Megatron Bridge",
    rows=ROWS,
    defaults=DEFAULTS,
    kind={},
    differences=_DIFFERENCES,
    finish=_finish,
    signs=frozenset(
        {
            "train.train_iters",
            "train.global_batch_size",
            "scheduler.",
            "dataset.seq_length",
            "model.seq_length",
            "checkpoint.save_interval",
            "logger.",
            "rng.seed",
            "train.micro_batch_size",
        }
    ),
)

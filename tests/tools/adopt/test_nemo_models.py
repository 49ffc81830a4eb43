"""NeMo training jobs for models other than GPT-3, and NeMo files that are not available here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from suite.messages import refuses

from runbook.core.errors import ParamsError
from runbook.frameworks import training_arguments
from runbook.frameworks.messages import FrameworkMessage
from runbook.params import load
from runbook.planning import FULL, make_plan
from runbook.tools.adopt.adopt_scripts import AdoptReport, adopt
from runbook.tools.adopt.proof import OptionVerdict

LLAMA = (
    "model.num_layers=32 model.hidden_size=4096 model.num_attention_heads=32 model.num_query_groups=8 "
    "model.ffn_hidden_size=14336 model.activation=fast-swiglu model.normalization=rmsnorm model.bias=False "
    "model.share_embeddings_and_output_weights=False model.position_embedding_type=rope "
    "model.rotary_base=500000 model.encoder_seq_length=8192"
)
LAYOUT = (
    "trainer.devices=8 trainer.num_nodes=4 trainer.max_steps=100 model.tensor_model_parallel_size=4"
)


def report_of(folder: Path, words: str, files: dict[str, str] | None = None) -> AdoptReport:
    """Adopt a NeMo training job with these words, and with files next to its script."""
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\nsrun python megatron_gpt_pretraining.py {words}\n")
    return adopt([script], folder / "mine.yaml", replace=True)


def test_a_kind_of_model_that_nemos_options_lack_is_trained_by_our_own_trainer(tmp_path):
    report = report_of(tmp_path, f"{LAYOUT} {LLAMA} ++model.optim.eps=1e-6")
    findings = report.adopted.findings
    assert findings.value("model") == "llama-3-8b"
    assert findings.value("training.framework") == "runbook"
    assert findings.value("training.adam_epsilon") == 1e-6
    proof = {row.option: row.verdict for row in report.proof}
    names = [word.lstrip("+").partition("=")[0] for word in LLAMA.split()]
    assert {proof[name] for name in (*names, "model.optim.eps")} == {OptionVerdict.SAME}


def test_a_kind_that_a_model_of_nemos_own_lacks_is_named(tmp_path):
    report = report_of(tmp_path, f"--config-name=5b.yaml {LAYOUT} model.normalization=rmsnorm")
    row = next(row for row in report.proof if row.option == "model.normalization")
    assert (row.verdict, row.script) == (OptionVerdict.CHANGED, "rmsnorm")
    assert report.adopted.findings.model_kind["normalization"] == "rmsnorm"


def test_a_run_file_never_passes_while_nemos_file_is_not_at_hand(tmp_path):
    words = f"--config-name=mine {LAYOUT} {LLAMA}"
    report = report_of(tmp_path, words)
    assert report.adopted.findings.absent_file == "mine"
    assert report.check != "passes"
    assert (
        report.adopted.findings.value("parallel.pipeline") is None
    )  # not the value in the 175B base

    text = "model:\n  optim: {lr: 3e-4, eps: 1e-5}\n  rampup_batch_size: null\n"
    complete = report_of(tmp_path, words, {"mine.yaml": text})
    assert complete.adopted.findings.absent_file == ""
    assert complete.adopted.findings.value("training.learning_rate") == 3e-4


def test_nemo_is_given_adams_epsilon_and_no_other_model_than_gpt3():
    settings = load("aws-pile-175b", set_words=["training.adam_epsilon=1e-5"])
    phase = make_plan(settings).phases[FULL]
    assert "++model.optim.eps=1e-05" in training_arguments(settings, phase)
    for field, value in {"activation": "swiglu", "kv_heads": 8, "tied_embeddings": False}.items():
        shape = replace(phase.model.shape, **{field: value})
        other = replace(phase, model=replace(phase.model, shape=shape))
        with refuses(ParamsError, FrameworkMessage.KIND_UNKNOWN_TO_NEMO):
            training_arguments(settings, other)


@pytest.mark.parametrize("key", ["static_loss_scale=1024", "min_loss_scale=2", "exit_interval=5"])
def test_a_key_that_nemo_has_no_option_for_is_refused(key):
    settings = load("aws-pile-175b", set_words=[f"training.{key}"])
    with refuses(ParamsError, FrameworkMessage.OPTION_UNKNOWN_TO_FRAMEWORK):
        training_arguments(settings, make_plan(settings).phases[FULL])

"""YAML files that list training options: Megatron-LM's test cases and flat files."""

from __future__ import annotations

from pathlib import Path

import pytest
from suite.messages import refuses

from runbook.core.errors import ParamsError
from runbook.tools.adopt.adopt_scripts import AdoptReport, adopt
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.proof import OptionVerdict

TEST_CASE = """ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 14
  --hidden-size: 640
  --num-attention-heads: 10
  --seq-length: 1024
  --max-position-embeddings: 1024
  --micro-batch-size: 4
  --global-batch-size: 32
  --rampup-batch-size: "[16 16 640]"
  --train-iters: 100
  --lr: 0.00015
  --split: 949,50,1
  --data-path: ${DATA_PATH}/my-text_document
  --tensor-model-parallel-size: 2
  --sequence-parallel: true
  --use-distributed-optimizer: false
  --bf16: true # a comment
TEST_TYPE: regular
"""


def report_of(folder: Path, text: str, model: str = "gpt") -> AdoptReport:
    """Adopt a test case in the folder for this kind of model."""
    path = folder / model / "case" / "model_config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return adopt([path], folder / "out.yaml", replace=True)


def values(report: AdoptReport) -> dict[str, object]:
    return {carried.key: carried.value for carried in report.adopted.findings.carried.values()}


def test_the_options_of_a_test_case_become_a_run_file(tmp_path):
    report = report_of(tmp_path, TEST_CASE)
    wanted = {
        "training.shape.layers": 14,
        "training.shape.hidden": 640,
        "training.shape.heads": 10,
        "training.micro_batch": 4,
        "training.global_batch": 32,
        "training.rampup_start": 16,
        "training.rampup_samples": 640,
        "training.iterations": 100,
        "training.learning_rate": 0.00015,
        "training.precision": "bf16",
        "parallel.tensor": 2,
        "parallel.sequence": True,
        "parallel.zero_stage": 0,
        "data.split": "949,50,1",
    }
    carried = values(report)
    assert {key: carried.get(key) for key in wanted} == wanted
    assert "data.folder" not in carried  # Its variable is set in the environment of the test
    assert OptionVerdict.UNACCOUNTED not in {row.verdict for row in report.proof}
    lines = report.adopted.findings.carried
    assert lines["training.iterations"].line == 12
    assert report.adopted.script.notes == (
        AdoptMessage.PROGRAM_OF_FOLDER.fill(name="model_config.yaml", program="pretrain_gpt.py"),
        AdoptMessage.OPTION_IS_FALSE.fill(option="--use-distributed-optimizer", line=18),
    )


def test_options_of_a_further_training_are_named(tmp_path):
    report = report_of(tmp_path, f"{TEST_CASE}MODEL_ARGS_2:\n  --train-iters: 200\n")
    assert values(report)["training.iterations"] == 100
    assert report.adopted.script.notes[-1] == AdoptMessage.FURTHER_TRAININGS.fill(
        name="model_config.yaml", sections="MODEL_ARGS_2"
    )


@pytest.mark.parametrize(("model", "whose"), [("bert", "BERT"), ("t5", "T5"), ("mimo", "a vision")])
def test_a_test_case_of_another_model_is_refused(tmp_path, model, whose):
    with pytest.raises(ParamsError) as refused:
        report_of(tmp_path, TEST_CASE, model)
    assert f"trains with {whose}" in str(refused.value)


@pytest.mark.parametrize("mode", ["rl", "inference"])
def test_a_test_case_that_does_not_pretrain_is_refused(tmp_path, mode):
    with refuses(ParamsError, AdoptMessage.OTHER_MODE, name="model_config.yaml", mode=mode, line=1):
        report_of(tmp_path, f"MODE: {mode}\n{TEST_CASE}")


FLAT = """defaults:
  - _self_
  - base_model
num_layers: 12
hidden_size: 768
num_attention_heads: 12
global_batch_size: 512
train_iters: 2000
lr: 0.001
lr_decay_style: cosine
lr_warmup_iters: ${oc.divi:${.train_iters},10}
data_path:
  - ${oc.env:DATA_DIR}/text
"""


def test_a_flat_file_of_megatrons_arguments_is_not_gpt_neoxs(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(FLAT)
    report = adopt([path], tmp_path / "out.yaml")
    carried = values(report)
    assert report.adopted.framework == "megatron-lm"
    assert (carried["training.iterations"], carried["training.global_batch"]) == (2000, 512)
    assert "training.warmup_iterations" not in carried
    assert report.adopted.findings.absent_file == "base_model"
    assert "base_model" in report.check


def test_the_base_of_a_flat_file_sets_what_the_file_does_not(tmp_path):
    (tmp_path / "mine.yaml").write_text(FLAT)
    (tmp_path / "base_model.yaml").write_text("hidden_size: 64\nseq_length: 1024\nbf16: true\n")
    paths = [tmp_path / "mine.yaml", tmp_path / "base_model.yaml"]
    report = adopt(paths, tmp_path / "out.yaml")
    carried = values(report)
    assert carried["training.precision"] == "bf16"
    assert report.adopted.findings.absent_file == ""
    assert report.adopted.launch is not None
    arguments = [word.text for word in report.adopted.launch.arguments]
    assert "768" in arguments and "64" not in arguments
    line = report.adopted.findings.carried["training.precision"].line
    assert report.adopted.script.places[line] == "base_model.yaml:3"


NEOX = """num_layers: 12
hidden_size: 768
num_attention_heads: 12
pipe_parallel_size: 1
model_parallel_size: 1
train_micro_batch_size_per_gpu: 4
train_iters: 100
lr: 1
optimizer: {type: Adam, params: {lr: 0.0006}}
"""


def test_a_file_of_gpt_neox_is_still_gpt_neoxs(tmp_path):
    path = tmp_path / "neox.yaml"
    path.write_text(NEOX)
    assert adopt([path], tmp_path / "out.yaml").adopted.framework == "GPT-NeoX"

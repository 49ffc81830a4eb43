"""torchtitan's configurations in Python are read as text, one configuration per function."""

from __future__ import annotations

import pytest
from suite.messages import refuses

from runbook.core.errors import ParamsError
from runbook.tools.adopt.adopt_scripts import AdoptReport, adopt
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.proof import unaccounted

REGISTRY = """
from torchtitan.trainer import Trainer

def llama3_8b() -> Trainer.Config:
    spec = model_registry("8B")
    return Trainer.Config(
        loss=Loss.Config(vocabulary=size_of(spec)),
        hf_assets_path="/models/llama-3",
        model_spec=spec,
        optimizer=adamw(lr=2e-4),
        lr_scheduler=Schedule.Config(warmup_steps=20, decay_ratio=0.5, decay_type="linear"),
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 4096, max_context_length=4096, steps=700),
        parallelism=ParallelismConfig(tensor_parallel_degree=4),
        activation_checkpoint=FullAC.Config(),
    )

def llama3_8b_eight_bits() -> Trainer.Config:
    config = llama3_8b()
    is_compiled = config.compile.enable and "model" in config.compile.components
    config.training.steps = 900
    config.model_spec = model_registry("8B", converters=[Float8Linear.Config(compiled=is_compiled)])
    return config

def llama3_8b_longer() -> Trainer.Config:
    config = llama3_8b_eight_bits()
    config.optimizer.lr = 1e-4
    polish(config)
    return config

def deepseek_v3_small() -> Trainer.Config:
    return Trainer.Config(model_spec=model_registry("small"), training=TrainingConfig(steps=10, seq_len=128))

def _gpt_oss(steps: int = 5) -> Trainer.Config:
    return Trainer.Config(model_spec=model_registry("20b"), training=TrainingConfig(steps=steps))

def gpt_oss_20b() -> Trainer.Config:
    return _gpt_oss(steps=7)

def llama3_sft() -> Trainer.Config:
    return Trainer.Config(model_spec=model_registry("8B"), training=TrainingConfig(steps=10, seq_len=128))
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    path = tmp_path_factory.mktemp("titan") / "config_registry.py"
    path.write_text(REGISTRY)
    return path


def read(registry, number: int) -> AdoptReport:
    return adopt([registry], registry.parent / f"run-{number}.yaml", launch=number)


def test_a_function_s_configuration_has_the_keys_of_a_toml_file(registry):
    report = read(registry, 1)
    value = report.adopted.findings.value
    assert report.check == "passes"
    assert (value("model"), value("training.learning_rate")) == ("llama-3-8b", 2e-4)
    assert (value("training.micro_batch"), value("training.sequence_length")) == (2, 4096)
    assert (value("training.iterations"), value("parallel.tensor")) == (700, 4)
    assert (value("training.recompute"), value("training.schedule")) == ("full", "wsd")
    assert "2 llama3_8b_eight_bits" in report.adopted.script.notes[0]


def test_a_function_that_changes_another_one_s_configuration_has_its_own(registry):
    value = read(registry, 2).adopted.findings.value
    assert (value("training.iterations"), value("training.learning_rate")) == (900, 2e-4)
    assert value("training.fp8") == "tensorwise"
    assert read(registry, 1).adopted.findings.value("training.fp8") is None


def test_what_another_function_does_with_a_configuration_is_named(registry):
    report = read(registry, 3)
    assert report.adopted.findings.value("training.learning_rate") == 1e-4
    assert report.adopted.findings.value("training.iterations") == 900
    assert [row.script for row in unaccounted(report.proof)] == ["polish(config)"]


def test_a_mixture_of_experts_and_fine_tuning_do_not_pass(registry):
    assert read(registry, 4).check.startswith("another model is trained")
    assert read(registry, 6).check.startswith("another model is trained")
    assert "6 gpt_oss_20b" in read(registry, 6).adopted.script.notes[0]
    with refuses(ParamsError, AdoptMessage.FINE_TUNING, function="llama3_sft"):
        read(registry, 7)


def test_a_file_whose_configurations_come_from_other_files_says_so(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def mine() -> Trainer.Config:\n    return llama3_8b()\n")
    with refuses(ParamsError, AdoptMessage.RECIPES_OF_OTHER_FILES, name="mine.py"):
        adopt([path], tmp_path / "mine.yaml")

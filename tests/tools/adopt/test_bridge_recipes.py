"""Megatron Bridge's own recipe files, with functions that start from `_pretrain_common`, become run
files.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from suite.messages import refuses

from runbook.core.errors import ParamsError
from runbook.tools.adopt.adopt_scripts import AdoptReport, adopt
from runbook.tools.adopt.configs.recipe_source import recipe_calls
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.proof import OptionVerdict

SMALL = """\
from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _peft_common, _pretrain_common


def llama32_1b_pretrain_1gpu_h100_bf16_config():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.2-1B").get_model_config()
    cfg.dataset.seq_length = 8192
    cfg.model.seq_length = 8192
    cfg.model.tensor_model_parallel_size = 2
    cfg.train.train_iters = 1000
    cfg.train.global_batch_size = 64
    cfg.train.micro_batch_size = 1
    return cfg
"""
DETERMINISTIC = """

def llama32_1b_pretrain_1gpu_h100_bf16_deterministic_config():
    cfg = llama32_1b_pretrain_1gpu_h100_bf16_config()
    cfg.train.train_iters = 50
    return cfg
"""
FINE_TUNING = """

def llama32_1b_peft_1gpu_h100_bf16_config():
    cfg = _peft_common()
    cfg.model = AutoBridge.from_hf_pretrained("meta-llama/Llama-3.2-1B").get_model_config()
    return cfg
"""
HUB_NAME = '"meta-llama/Llama-3.2-1B"'


def report_of(folder: Path, text: str, launch_number: int = 0) -> AdoptReport:
    path = folder / "recipes.py"
    path.write_text(text)
    return adopt([path], folder / "mine.yaml", launch=launch_number)


def test_a_recipe_of_bridges_own_files_is_adopted(tmp_path):
    report = report_of(tmp_path, SMALL)
    assert report.check == "passes"
    findings = report.adopted.findings
    assert findings.value("training.shape.layers") == 16
    assert findings.value("training.iterations") == 1000
    assert findings.value("training.global_batch") == 64
    assert findings.value("parallel.tensor") == 2
    assert findings.value("training.learning_rate") == 3e-4
    assert findings.model_kind["tied_embeddings"] is True
    assert not [row for row in report.proof if row.verdict is OptionVerdict.UNACCOUNTED]


def test_recipes_that_start_from_each_other_are_counted_and_fine_tuning_is_not():
    calls = recipe_calls(f"{SMALL}{DETERMINISTIC}{FINE_TUNING}", "recipes.py")
    assert [call.recipe for call in calls] == ["llama32_1b", "llama32_1b"]
    assert [call.is_bridge for call in calls] == [True, True]


def test_a_recipe_that_starts_from_another_has_its_values_and_its_own(tmp_path):
    report = report_of(tmp_path, f"{SMALL}{DETERMINISTIC}{FINE_TUNING}")
    assert report.adopted.findings.value("training.iterations") == 50
    assert report.adopted.findings.value("training.global_batch") == 64
    again = tmp_path / "again"
    again.mkdir()
    first = report_of(again, f"{SMALL}{DETERMINISTIC}", 1)
    assert first.adopted.findings.value("training.iterations") == 1000


@pytest.mark.parametrize("weights", ["hf_path", '"someone/Unknown-3B"'])
def test_a_model_that_the_recipe_does_not_say_is_asked_for(tmp_path, weights):
    report = report_of(tmp_path, SMALL.replace(HUB_NAME, weights))
    assert "model" in report.adopted.required


def test_a_model_of_experts_never_passes(tmp_path):
    report = report_of(tmp_path, SMALL.replace(HUB_NAME, '"deepseek-ai/DeepSeek-V3"'))
    assert report.adopted.findings.other_model
    assert report.check != "passes"


def test_a_file_of_fine_tuning_alone_is_refused(tmp_path):
    with refuses(ParamsError, AdoptMessage.RECIPES_OF_OTHER_FILES):
        report_of(tmp_path, f"{SMALL.partition('def')[0]}{FINE_TUNING}")

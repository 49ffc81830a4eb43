"""nanotron's configurations in Python become run files, and nothing that a file changes is lost."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from suite.messages import refuses

from runbook.core.errors import ParamsError
from runbook.tools.adopt.adopt_scripts import AdoptReport, adopt
from runbook.tools.adopt.configs.nanotron_source import nanotron_values
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.proof import OptionVerdict

IMPORTS = (
    "from nanotron.config import Config, GeneralArgs, LlamaConfig, LRSchedulerArgs, ModelArgs\n"
    "from nanotron.config import OptimizerArgs, ParallelismArgs, RandomInit, TokensArgs\n"
    "from nanotron.config import CheckpointsArgs, DataArgs, DatasetStageArgs, TokenizerArgs\n"
    "from nanotron.parallel.tensor_parallel.enum import TensorParallelLinearMode\n"
)
BODY = """\
import os
WIDTH = 2048
shape = LlamaConfig(
    hidden_size=WIDTH, intermediate_size=WIDTH + 3584, num_attention_heads=16, num_key_value_heads=16,
    num_hidden_layers=24, hidden_act="silu", rms_norm_eps=1e-5, tie_word_embeddings=False,
    max_position_embeddings=2048, vocab_size=32000,
)
rate = LRSchedulerArgs(learning_rate=3e-4, lr_warmup_steps=20, lr_decay_style="cosine", min_decay_lr=3e-5)
layout = ParallelismArgs(dp=4, tp=2, pp=1, pp_engine="1f1b", tp_mode=TensorParallelLinearMode.REDUCE_SCATTER)
"""
BUILT = """\
config = Config(
    general=GeneralArgs(project="mine", run="first", seed=7),
    checkpoints=CheckpointsArgs(checkpoints_path=os.environ["CKPT"], checkpoint_interval=50),
    parallelism=layout,
    model=ModelArgs(init_method=RandomInit(std=0.02), model_config=shape, dtype="bfloat16"),
    tokenizer=TokenizerArgs("/models/llama/tokenizer.model"),
    optimizer=OptimizerArgs(zero_stage=1, weight_decay=0.1, clip_grad=1.0, learning_rate_scheduler=rate),
    tokens=TokensArgs(
        sequence_length=shape.max_position_embeddings, train_steps=200, micro_batch_size=2,
        batch_accumulation_per_replica=8,
    ),
    data_stages=[DatasetStageArgs(name="all", start_training_step=1, data=DataArgs(seed=7))],
)
"""
SAVED = 'if __name__ == "__main__":\n    config.save_as_yaml("mine.yaml")\n'
SOURCE = f"{IMPORTS}{BODY}{BUILT}{SAVED}"


def report_of(folder: Path, text: str) -> AdoptReport:
    path = folder / "mine.py"
    path.write_text(text)
    return adopt([path], folder / "mine.yaml")


def values_of(text: str) -> dict[str, object]:
    """Return the known values of a file, by key."""
    values = nanotron_values(ast.parse(text), "mine.py")
    return {value.name: value.value for value in values if value.known}


def unknown_names(text: str) -> list[str]:
    """Return the keys in a file whose values only the running program knows."""
    return [value.name for value in nanotron_values(ast.parse(text), "mine.py") if not value.known]


def test_a_configuration_in_python_is_adopted(tmp_path):
    report = report_of(tmp_path, SOURCE)
    assert report.check == "passes"
    findings = report.adopted.findings
    assert findings.value("training.global_batch") == 2 * 4 * 8
    assert findings.value("training.shape.ffn_hidden") == 5632
    assert findings.value("training.sequence_length") == 2048
    assert findings.value("parallel.sequence") is True
    assert findings.value("training.iterations") == 200
    assert findings.value("training.seed") == 7
    assert findings.value("data.tokenizer") == "/models/llama/tokenizer.model"
    assert not [row for row in report.proof if row.verdict is OptionVerdict.UNACCOUNTED]


def test_a_value_that_only_the_running_program_knows_keeps_its_source():
    assert unknown_names(SOURCE) == ["checkpoints.checkpoints_path"]


def test_a_change_after_the_configuration_is_built_counts():
    text = f"{SOURCE}shape.num_hidden_layers = 12\nconfig.tokens.train_steps = 5\n"
    values = values_of(text)
    assert values["model.model_config.num_hidden_layers"] == 12
    assert values["tokens.train_steps"] == 5


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("if os.environ.get('SHORT'):\n    config.tokens.train_steps = 5\n", "tokens.train_steps"),
        ("for size in (1, 2):\n    rate.learning_rate = size\n", ""),
        ("tune(config)\n", "statement"),
        ("setattr(shape, 'num_hidden_layers', 5)\n", "statement"),
    ],
)
def test_a_change_that_may_not_happen_is_named(statement, name):
    names = unknown_names(f"{SOURCE}{statement}")
    assert (name or "optimizer.learning_rate_scheduler.learning_rate") in names


@pytest.mark.parametrize(
    "statement",
    [
        "cfg = config\ncfg.tokens.train_steps = 99999\n",
        "p = config.parallelism\np.dp = 8\n",
        "kept = [None, config.parallelism]\nkept[1].dp = 8\n",
        "config.data_stages[0].start_training_step = 5\n",
        "config.tokens.train_steps, rest = 5, 6\n",
        "del config.tokens.train_steps\n",
        "config.tokens.train_steps += 1\n",
        "config.data_stages.append(DatasetStageArgs(name='more', start_training_step=9))\n",
        "config.data_stages[0].update(9)\n",
        "for stage in config.data_stages:\n    stage.start_training_step = 5\n",
        "for number, stage in enumerate(config.data_stages):\n    stage.start_training_step = 5\n",
        "for stage in config.data_stages:\n    stage.data.update(9)\n",
        "for stage in config.data_stages:\n    print(stage.name)\n    tune(stage)\n",
        "[setattr(stage, 'name', 'x') for stage in config.data_stages]\n",
        "kept = [stage for stage in config.data_stages]\n",
        "for stage in tune(config.data_stages):\n    print(stage.name)\n",
        "if (other := config.tokens):\n    other.train_steps = 5\n",
        "config = tune(config)\n",
        "if os.environ.get('SHORT'):\n    config = Config(tokens=TokensArgs(train_steps=5))\n",
        "threads.append((config, 1))\n",
    ],
)
def test_a_change_that_is_not_followed_is_named_with_its_line(statement):
    values = nanotron_values(ast.parse(f"{SOURCE}{statement}"), "mine.py")
    lines = [value.line for value in values if value.name == "statement"]
    first = len(SOURCE.splitlines()) + 1
    last = len(statement.splitlines()) - 1
    inner = first + (last if statement.startswith(("if os", "for")) else 0)
    # A loop over a function's result is reported where the function gets the part
    assert lines == [first if "in tune" in statement else inner]


@pytest.mark.parametrize(
    "statement",
    [
        "steps = config.tokens.train_steps\n",
        "size = WIDTH\n",
        "name = os.environ['CKPT'].strip()\n",
        "print(len(config.data_stages), shape.vocab_size)\n",
        "total = human_format(shape.vocab_size * WIDTH)\n",
        "trainer = DistributedTrainer(config)\n",
        "config.print_config_details()\n",
        "for stage in config.data_stages:\n    print(stage.name)\n",
        "for number, stage in enumerate(config.data_stages):\n    steps = stage.start_training_step\n",
        "names = [stage.name for stage in config.data_stages]\n",
        "for size in (config.parallelism.dp, shape.vocab_size):\n    print(size)\n",
    ],
)
def test_a_statement_that_only_reads_the_configuration_is_not_named(statement):
    imported = "from nanotron.trainer import DistributedTrainer\n"
    assert unknown_names(f"{imported}{SOURCE}{statement}") == ["checkpoints.checkpoints_path"]


def test_a_change_of_a_part_before_the_configuration_gets_it_is_named():
    text = f"{SOURCE}late = ParallelismArgs(dp=1)\nlate.dp = 8\nconfig.parallelism = late\n"
    values = nanotron_values(ast.parse(text), "mine.py")
    (line,) = [value.line for value in values if value.name == "statement"]
    assert line == len(SOURCE.splitlines()) + 2


def test_a_configuration_that_a_function_returns_names_no_statement():
    indented = "".join(f"    {line}\n" for line in BUILT.splitlines())
    returned = indented.replace("config = Config", "return Config")
    text = f"{IMPORTS}{BODY}def make():\n{returned}"
    assert unknown_names(text) == ["checkpoints.checkpoints_path"]


@pytest.mark.parametrize(
    ("assigned", "statement"),
    [("layout = ", "kept.dp = 8\n"), ("config = ", "kept.parallelism.dp = 8\n")],
)
def test_a_part_with_two_names_is_named(assigned, statement):
    text = SOURCE.replace(f"\n{assigned}", f"\n{assigned}kept = ")
    assert "statement" in unknown_names(f"{text}{statement}")


def test_a_list_of_stages_that_grows_is_named():
    stages = "[DatasetStageArgs(name='all', start_training_step=1, data=DataArgs(seed=7))]"
    built = BUILT.replace(stages.replace("'", '"'), "stages")
    text = f"{IMPORTS}{BODY}stages = {stages}\n{built}"
    assert "statement" not in unknown_names(text)
    assert "statement" in unknown_names(f"{text}stages.append(DatasetStageArgs(name='more'))\n")


def test_a_list_of_numbers_that_grows_is_named():
    built = BUILT.replace("seed=7)", "seed=7, sizes=sizes)", 1)
    text = f"{IMPORTS}{BODY}sizes = [1]\n{built}"
    assert values_of(text)["general.sizes"] == [1]
    assert "statement" not in unknown_names(text)
    assert "statement" in unknown_names(f"{text}sizes.append(2)\n")


def test_a_configuration_in_an_attribute_keeps_its_changes():
    indented = "".join(f"        {line}\n" for line in BUILT.splitlines())
    indented = indented.replace("config = Config", "self.config = Config")
    method = f"class Job:\n    def __init__(self):\n{indented}"
    changed = f"{IMPORTS}{BODY}{method}        self.config.parallelism.dp = 8\n"
    assert values_of(changed)["parallelism.dp"] == 8
    handed_on = f"{IMPORTS}{BODY}{method}        self.config.data_stages.clear()\n"
    assert "statement" in unknown_names(handed_on)
    elsewhere = (
        f"{IMPORTS}{BODY}{method}    def tune(self):\n        self.config.parallelism.dp = 8\n"
    )
    assert "parallelism.dp" in unknown_names(elsewhere)


def test_an_unknown_statement_about_the_configuration_does_not_pass(tmp_path):
    report = report_of(tmp_path, f"{SOURCE}tune(config)\n")
    assert [row.option for row in report.proof if row.verdict is OptionVerdict.UNACCOUNTED] == [
        "statement"
    ]
    assert report.check != "passes"


def test_a_name_with_two_values_is_unknown():
    text = SOURCE.replace("WIDTH = 2048\n", "WIDTH = 2048\nWIDTH = 1024\n")
    assert "model.model_config.hidden_size" in unknown_names(text)


def test_a_configuration_that_a_function_builds_is_read():
    indented = "".join(f"    {line}\n" for line in BUILT.splitlines())
    text = f"{IMPORTS}{BODY}def make(steps):\n{indented}    return config\n"
    assert values_of(text)["tokens.train_steps"] == 200


@pytest.mark.parametrize(
    "head", ["def make(WIDTH):\n", "def make():\n    from sizes import WIDTH\n"]
)
def test_a_parameter_is_not_the_constant_of_its_name(head):
    indented = "".join(f"    {line}\n" for line in BUILT.splitlines())
    text = f"{IMPORTS}{BODY}{head}{indented}    return config\n"
    assert "model.model_config.hidden_size" in unknown_names(text)


def test_a_mamba_is_refused(tmp_path):
    text = SOURCE.replace("LlamaConfig", "MambaModelConfig")
    with refuses(ParamsError, AdoptMessage.LAYERS_WITHOUT_ATTENTION):
        report_of(tmp_path, text)


def test_lists_that_repeat_each_other_end_soon():
    doubled = ["a0 = [GeneralArgs(seed=1), GeneralArgs(seed=1)]"]
    doubled += [f"a{n} = [GeneralArgs(x=a{n - 1}), GeneralArgs(x=a{n - 1})]" for n in range(1, 40)]
    text = IMPORTS + "\n".join(doubled) + "\nconfig = Config(general=a39)\n"
    with refuses(ParamsError, AdoptMessage.TOO_MANY_VALUES):
        nanotron_values(ast.parse(text), "mine.py")


def test_a_name_that_stands_for_itself_ends_soon(tmp_path):
    text = f"{IMPORTS}a = b\nb = a\nconfig = Config(general=a)\n"
    report = report_of(tmp_path, text)
    assert [row.option for row in report.proof if row.verdict is OptionVerdict.UNACCOUNTED] == [
        "statement"
    ]
    assert report.check != "passes"


@pytest.mark.parametrize(
    ("names", "configuration"),
    [
        ("x = y\ny = x\n", "general=GeneralArgs(project=x)"),
        ("m = LlamaConfig(vocab_size=m.vocab_size)\n", "model=ModelArgs(model_config=m)"),
        ("x = GeneralArgs(seed=x)\n", "general=x"),
    ],
)
def test_names_that_stand_for_each_other_are_named(names, configuration):
    text = f"{IMPORTS}{names}config = Config({configuration})\n"
    assert unknown_names(text) == ["statement"]


@pytest.mark.parametrize("name", ["HF_TOKEN", "api_keys"])
def test_a_secret_is_not_shown_under_another_key(tmp_path, name):
    text = SOURCE.replace('project="mine"', f"project={name}")
    text = text.replace("import os\n", f'import os\n{name} = "hunter2secret"\n')
    assert "general.project" in unknown_names(text)
    assert "hunter2secret" not in report_of(tmp_path, text).as_text()


def test_a_secret_is_not_shown_as_the_attribute_of_a_class():
    text = SOURCE.replace('project="mine"', "project=hub.hf_token")
    text = text.replace("import os\n", 'import os\nhub = Hub(hf_token="hunter2secret")\n')
    values = nanotron_values(ast.parse(text), "mine.py")
    assert not any("hunter2secret" in str(value.value) for value in values)


def test_a_secret_is_masked():
    text = SOURCE.replace("seed=7)", "seed=7, hf_token='hf_AbCdEfGhIjKlMnOpQrStUvWx')", 1)
    values = nanotron_values(ast.parse(text), "mine.py")
    assert not any("AbCdEf" in str(value.value) for value in values)

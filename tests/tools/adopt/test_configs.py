"""Configurations of torchtitan, nanotron, GPT-NeoX, NeMo 2 and Megatron Bridge become run files with an account of each key.

The configurations are our own; the keys are those of the public repositories, read in 2026-11.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from runbook.cli import cli
from runbook.core.errors import ParamsError
from runbook.tools.adopt.adopt_scripts import AdoptReport, adopt
from runbook.tools.adopt.proof import OptionVerdict, unaccounted

TORCHTITAN = """[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
tokenizer_path = "/models/llama-3/tokenizer.model"
[optimizer]
name = "AdamW"
lr = 3e-4
[lr_scheduler]
warmup_steps = 200
decay_ratio = 0.25
min_lr_factor = 0.1
[training]
local_batch_size = 2
seq_len = 4096
steps = 1000
compile = true
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
[checkpoint]
enable_checkpoint = true
interval = 250
[metrics]
log_freq = 5
"""
NANOTRON = """general: {project: mine, seed: 7}
model:
  dtype: bfloat16
  init_method: {std: 0.025}
  model_config:
    hidden_act: silu
    hidden_size: 1024
    intermediate_size: 4096
    is_llama_config: true
    num_attention_heads: 16
    num_hidden_layers: 12
    num_key_value_heads: 4
    rms_norm_eps: 1.0e-05
    rope_scaling: null
    tie_word_embeddings: true
    vocab_size: 49152
optimizer:
  clip_grad: 1.0
  learning_rate_scheduler: {learning_rate: 0.003, lr_decay_starting_step: 800, lr_decay_steps: 200,
    lr_decay_style: linear, lr_warmup_steps: 100, lr_warmup_style: linear, min_decay_lr: 0}
  optimizer_factory: {adam_beta1: 0.9, adam_beta2: 0.95, adam_eps: 1.0e-08, name: adamW, torch_adam_is_fused: true}
  weight_decay: 0.01
  zero_stage: 1
parallelism: {dp: 4, pp: 1, tp: 2, tp_mode: REDUCE_SCATTER}
tokenizer: {tokenizer_name_or_path: mine/tokenizer}
tokens: {batch_accumulation_per_replica: 8, limit_val_batches: 0, micro_batch_size: 2, sequence_length: 2048,
  train_steps: 1000, val_check_interval: -1}
checkpoints: {checkpoint_interval: 500, checkpoints_path: out}
data_stages:
- name: first
  start_training_step: 1
  data: {dataset: {dataset_folder: [/data/a]}, seed: 7, num_loading_workers: 1}
- name: second
  start_training_step: 500
  data: {dataset: {dataset_folder: [/data/b]}, seed: 7, num_loading_workers: 1}
"""
NEOX = """{
  "pipe-parallel-size": 2, "model_parallel_size": 1,
  "num_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "seq_length": 2048,
  "max_position_embeddings": 2048, "pos_emb": "rotary", "rotary_pct": 0.25, "no_weight_tying": true,
  "gpt_j_residual": true,
  "optimizer": {"type": "Adam", "params": {"lr": 0.0006, "betas": [0.9, 0.95], "eps": 1.0e-8,}},
  "min_lr": 0.00006, "zero_optimization": {"stage": 1, "reduce_bucket_size": 500000000},
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
  "fp16": {"enabled": True, "loss_scale": 0, "hysteresis": 2}, "checkpoint_activations": true,
  "train_iters": 1000, "lr_decay_iters": 1000, "lr_decay_style": "cosine", "warmup": 0.01,
  "hidden_dropout": 0.0, "attention_dropout": 0.0, "checkpoint_factor": 100, "log_interval": 10,
}
"""
NEOX_PATHS = (
    '{"data_path": "/data/mine_text_document", "vocab_file": "v.json", "split": "949, 50, 1"}'
)
NEMO = """import nemo_run as run
from nemo.collections import llm
raise SystemExit("never executed")

def configure(nodes: int = 4, gpus: int = 8):
    recipe = llm.llama3_8b.pretrain_recipe(name="mine", dir="/out", num_nodes=nodes, num_gpus_per_node=gpus)
    recipe.trainer.max_steps = 50 * 100
    recipe.trainer.strategy.tensor_model_parallel_size = 2
    recipe.trainer.strategy.sequence_parallel = True
    recipe.trainer.limit_val_batches = 0.0
    recipe.data = run.Config(llm.PreTrainingDataModule, paths=["/data/x"], seq_length=4096, global_batch_size=256,
                             micro_batch_size=2)
    recipe.optim.config.lr = LEARNING_RATES["large"]
    recipe.log.ckpt.every_n_train_steps = 400
    return recipe
"""
NEMO_YAML = """_target_: nemo.collections.llm.api.pretrain
_partial_: true
data: {_target_: nemo.collections.llm.gpt.data.pre_training.PreTrainingDataModule, paths: &id001 [/data/x],
  seq_length: 2048, global_batch_size: 64, micro_batch_size: 1, other: *id001}
model:
  _target_: nemo.collections.llm.gpt.model.llama.LlamaModel
  config: {_target_: Llama3Config8B, num_layers: 16, hidden_size: 2048, num_attention_heads: 32, num_query_groups: 8,
    ffn_hidden_size: 8192, rotary_base: 500000, share_embeddings_and_output_weights: true}
optim:
  config: {_target_: OptimizerConfig, lr: 0.0001, weight_decay: 0.1, adam_beta2: 0.95, bf16: true}
  lr_scheduler: {_target_: nemo.lightning.CosineAnnealingScheduler, warmup_steps: 10, min_lr: 1.0e-05, constant_steps: 0}
trainer:
  devices: 8
  num_nodes: 2
  max_steps: 100
  strategy: {_target_: nemo.lightning.MegatronStrategy, tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2}
"""
BRIDGE = """train: {train_iters: 100, global_batch_size: 32, micro_batch_size: 1, eval_interval: 50, eval_iters: 4}
model: {seq_length: 4096, tensor_model_parallel_size: 2, num_layers: 16, hidden_size: 2048, num_attention_heads: 32}
optimizer: {lr: 0.0003, min_lr: 0.00003}
scheduler: {lr_warmup_iters: 20, lr_decay_style: cosine}
dataset: {seq_length: 4096}
checkpoint: {save: /out, save_interval: 50}
logger: {log_interval: 10, wandb_project: mine}
rng: {seed: 99}
"""
FILES = {
    "titan.toml": TORCHTITAN,
    "nano.yaml": NANOTRON,
    "neox.yml": NEOX,
    "paths.yml": NEOX_PATHS,
    "recipe.py": NEMO,
    "export.yaml": NEMO_YAML,
    "bridge.yaml": BRIDGE,
}
EXPECTED = {
    "titan.toml": {
        "model": "llama-3-8b",
        "data.tokenizer": "/models/llama-3/tokenizer.model",
        "training.schedule": "wsd",
        "training.wsd_decay_fraction": 0.25,
        "training.min_learning_rate": 3e-5,
        "training.micro_batch": 2,
        "training.sequence_length": 4096,
        "training.adam_beta2": 0.95,
        "training.global_batch": 32,
        "training.recompute": "full",
        "training.save_interval": 250,
        "jobs.training.nodes": 4,
        "parallel.tensor": 2,
    },
    "nano.yaml": {
        "training.shape.layers": 12,
        "training.shape.kv_heads": 4,
        "training.schedule": "wsd",
        "training.decay_iterations": 1000,
        "training.wsd_decay_fraction": 0.2,
        "training.global_batch": 64,
        "training.init_std": 0.025,
        "training.eval_interval": 0,
        "parallel.sequence": True,
        "jobs.training.nodes": 1,
        "training.seed": 7,
    },
    "neox.yml": {
        "data.folder": "/data/mine_text_document",
        "data.split": "949,50,1",
        "training.precision": "fp16",
        "training.adam_beta2": 0.95,
        "training.warmup_fraction": 0.01,
        "parallel.pipeline": 2,
        "training.recompute": "full",
        "training.save_interval": 100,
        "training.global_batch": 32,
    },
    "recipe.py": {
        "model": "llama-3-8b",
        "training.iterations": 5000,
        "training.learning_rate": 3e-4,
        "training.global_batch": 256,
        "training.sequence_length": 4096,
        "training.eval_interval": 0,
        "training.save_interval": 400,
        "parallel.tensor": 2,
        "parallel.context": 2,
        "jobs.training.nodes": 4,
        "training.adam_epsilon": 1e-5,
    },
    "export.yaml": {
        "training.shape.layers": 16,
        "training.learning_rate": 1e-4,
        "parallel.pipeline": 2,
        "training.iterations": 100,
        "training.precision": "bf16",
        "jobs.training.nodes": 2,
    },
    "bridge.yaml": {
        "training.iterations": 100,
        "training.eval_iterations": 4,
        "training.seed": 99,
        "parallel.tensor": 2,
        "training.weight_decay": 0.1,
    },
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> dict[str, AdoptReport]:
    folder = tmp_path_factory.mktemp("configs")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    both = {"neox.yml": ["neox.yml", "paths.yml"]}
    return {
        name: adopt(
            [folder / file for file in both.get(name, [name])],
            folder / f"run-{name.partition('.')[0]}.yaml",
        )
        for name in EXPECTED
    }


@pytest.mark.parametrize("name", EXPECTED)
def test_a_configuration_becomes_a_run_file(name, reports):
    carried = {item.key: item.value for item in reports[name].adopted.findings.carried.values()}
    for key, value in EXPECTED[name].items():
        shape = (
            key.startswith("training.shape.") and key not in carried
        )  # the catalogue has this model
        assert shape or carried[key] == pytest.approx(value), key


@pytest.mark.parametrize("name", set(EXPECTED) - {"export.yaml"})
def test_every_key_has_a_verdict_with_its_reason(name, reports):
    report = reports[name]
    assert report.check == "passes"
    assert not unaccounted(report.proof)
    for row in report.proof:
        assert row.why or row.verdict is OptionVerdict.SAME, row
    assert (
        "What changes because our trainer is another program" in report.as_text().split("\n\n")[1]
    )


def test_a_key_that_nobody_here_knows_is_named_and_keeps_the_run_file_from_passing(reports):
    assert [row.option for row in unaccounted(reports["export.yaml"].proof)] == ["data.other"]
    assert "not accounted for: data.other" in reports["export.yaml"].check


def test_losses_of_another_model_are_said(reports):
    rows = {row.option: row for row in reports["neox.yml"].proof}
    for lost in ("gpt_j_residual", "rotary_pct"):
        assert rows[lost].verdict is OptionVerdict.DROPPED
    rows = {row.option: row for row in reports["nano.yaml"].proof}
    assert rows["data_stages.1.data.dataset.dataset_folder"].verdict is OptionVerdict.DROPPED
    assert rows["optimizer.optimizer_factory.torch_adam_is_fused"].verdict is OptionVerdict.DROPPED
    assert rows["model.model_config.vocab_size"].verdict is OptionVerdict.CHANGED


def test_what_only_the_running_program_knows_is_said(reports):
    rows = {row.option: row for row in reports["recipe.py"].proof}
    unknown = rows["optim.config.lr"]
    assert (unknown.script, unknown.verdict) == ("LEARNING_RATES['large']", OptionVerdict.DROPPED)
    assert "training.learning_rate" in unknown.why
    assert "LEARNING_RATES" in reports["recipe.py"].adopted.required["training.learning_rate"]


def test_of_several_recipes_one_is_chosen(tmp_path):
    text = NEMO.replace("llama3_8b", "llama3_70b").replace("def configure", "def larger")
    (tmp_path / "two.py").write_text(f"{NEMO}\n{text}")
    assert (
        adopt([tmp_path / "two.py"], tmp_path / "a.yaml").adopted.findings.value("model")
        == "llama-3-70b"
    )
    first = adopt([tmp_path / "two.py"], tmp_path / "b.yaml", launch=1)
    assert first.adopted.findings.value("model") == "llama-3-8b"
    assert "2 recipes" in first.adopted.script.notes[0]


REFUSED = {
    "bomb.yaml": (
        "a: &a [1,1]\n"
        + "".join(f"b{n}: &b{n} {{x: *b{n - 1}, y: *b{n - 1}}}\n" for n in range(1, 30))
    ).replace("*b0", "*a"),
    "deep.yaml": "a: " * 1 + "{a: " * 3000 + "1" + "}" * 3000,
    "other.yaml": "services: {web: {image: nginx}}\n",
    "other.toml": "[tool.ruff]\nline-length = 100\n",
    "broken.toml": "[training\nsteps = 1",
    "broken.py": "def f(:\n",
    "none.py": "import os\nos.system('touch /tmp/never')\n",
    "moe.py": "r = llm.mixtral_8x7b.pretrain_recipe(num_nodes=1)\n",
    "mamba.yml": '{"pipe_parallel_size": 1, "num_layers": 24, "attention_config": [[["mamba"], 24]]}',
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_configuration_of_a_gpt_is_refused(name, tmp_path):
    (tmp_path / name).write_text(REFUSED[name])
    with pytest.raises(ParamsError):
        adopt([tmp_path / name], tmp_path / "mine.yaml")
    assert not (tmp_path / "mine.yaml").exists()


def test_secrets_of_a_configuration_stay_out(tmp_path):
    token = "hf_" + "abcdefghij" * 4
    text = TORCHTITAN + f'[wandb]\napi_key = "0123456789"\nnote = "{token}"\n'
    (tmp_path / "titan.toml").write_text(text)
    report = adopt([tmp_path / "titan.toml"], tmp_path / "mine.yaml")
    everything = report.as_text() + json.dumps(report.as_dict()) + report.path.read_text()
    assert token not in everything
    assert "0123456789" not in everything


def test_the_command_reads_two_files_of_one_configuration(tmp_path):
    for name in ("neox.yml", "paths.yml"):
        (tmp_path / name).write_text(FILES[name])
    words = [
        "adopt",
        str(tmp_path / "neox.yml"),
        str(tmp_path / "paths.yml"),
        "--json",
        "--out",
        str(tmp_path / "mine.yaml"),
    ]
    answer = json.loads(CliRunner().invoke(cli, words, catch_exceptions=False).stdout)
    assert answer["framework"] == "GPT-NeoX"
    assert answer["another_program"][0]["what"] == "engine"
    places = {row["option"]: row["place"] for row in answer["proof"]}
    assert places["data_path"] == "paths.yml:1"
    assert Path(answer["run_file"]).exists()

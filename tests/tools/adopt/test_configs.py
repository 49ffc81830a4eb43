"""Configurations of torchtitan, nanotron, GPT-NeoX, NeMo 2 and Megatron Bridge become run files,
and every key is accounted for.

The configurations are our own. The keys come from the public repositories, read in 2026-11.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from suite.messages import containing, refuses, says

from runbook.cli.program import cli
from runbook.core.errors import ParamsError
from runbook.tools.adopt.adopt_scripts import AdoptReport, adopt
from runbook.tools.adopt.configs.recipe_source import recipe_calls
from runbook.tools.adopt.messages import AdoptMessage
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
  "max_position_embeddings": 2048, "pos_emb": "rotary", "rotary_pct": 1.0, "no_weight_tying": true,
  "gpt_j_residual": false,
  "optimizer": {"type": "Adam", "params": {"lr": 0.0006, "betas": [0.9, 0.95], "eps": 1.0e-8,}},
  "min_lr": 0.00006, "zero_optimization": {"stage": 1, "reduce_bucket_size": 500000000},
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
  "fp16": {"enabled": True, "loss_scale": 0, "hysteresis": 2}, "checkpoint_activations": true,
  "train_iters": 1000, "lr_decay_iters": 1000, "lr_decay_style": "cosine", "warmup": 0.01,
  "hidden_dropout": 0.0, "attention_dropout": 0.0, "checkpoint_factor": 100, "log_interval": 10,
  "use_shared_fs": false,
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


@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - {"export.yaml"}))
def test_every_key_has_a_verdict_with_its_reason(name, reports):
    report = reports[name]
    assert report.check == "passes"
    assert not unaccounted(report.proof)
    for row in report.proof:
        assert row.why or row.verdict is OptionVerdict.SAME, row
    title = AdoptMessage.OTHER_PROGRAM.fill(framework=report.adopted.framework)
    assert title in report.as_text().split("\n\n")[1]


def test_a_key_that_nobody_here_knows_is_named_and_keeps_the_run_file_from_passing(reports):
    assert [row.option for row in unaccounted(reports["export.yaml"].proof)] == ["data.other"]
    lost = AdoptMessage.OPTIONS_LOST.fill(number=1, options="data.other")
    assert reports["export.yaml"].check == lost


def test_losses_of_another_model_are_said(reports):
    rows = {row.option: row for row in reports["neox.yml"].proof}
    assert rows["use_shared_fs"].verdict is OptionVerdict.DROPPED
    rows = {row.option: row for row in reports["nano.yaml"].proof}
    assert rows["data_stages.1.data.dataset.dataset_folder"].verdict is OptionVerdict.DROPPED
    assert rows["optimizer.optimizer_factory.torch_adam_is_fused"].verdict is OptionVerdict.DROPPED
    assert rows["model.model_config.vocab_size"].verdict is OptionVerdict.CHANGED


@pytest.mark.parametrize(
    ("dense", "other"),
    [
        ('"rotary_pct": 1.0', '"rotary_pct": 0.25'),
        ('"gpt_j_residual": false', '"gpt_j_residual": true'),
        ('"pos_emb": "rotary"', '"pos_emb": "alibi"'),
        ('"use_shared_fs": false', '"use_shared_fs": false, "use_qk_layernorm": true'),
        ('"use_shared_fs": false', '"use_shared_fs": false, "sliding_window_width": 1024'),
    ],
)
def test_a_part_that_no_model_here_has_keeps_a_configuration_from_passing(tmp_path, dense, other):
    """The run file for this Pythia configuration would train a model other than Pythia."""
    assert dense in NEOX
    (tmp_path / "neox.yml").write_text(NEOX.replace(dense, other))
    (tmp_path / "paths.yml").write_text(NEOX_PATHS)
    report = adopt([tmp_path / "neox.yml", tmp_path / "paths.yml"], tmp_path / "mine.yaml")
    option = other.rpartition(", ")[2].split('"')[1]
    assert report.adopted.findings.other_model.startswith(option)
    assert says(report.check, AdoptMessage.ANOTHER_MODEL, model=containing(option))
    assert "model" in report.adopted.required


@pytest.mark.parametrize(
    ("keys", "is_other"),
    [
        ('"sparsity_config": {}', False),
        ('"sparsity_config": {"block": 16}, "attention_config": [[["flash"], 12]]', False),
        ('"moe_num_experts": 0', False),
        ('"attention_config": [[["sparse_fixed", "global"], 6]]', True),
        ('"attention_config": [[["local", "global"], "all"]]', True),
    ],
)
def test_only_sparse_layers_make_a_sparse_model(tmp_path, keys, is_other):
    with_keys = NEOX.replace('"use_shared_fs": false', f'"use_shared_fs": false, {keys}')
    (tmp_path / "neox.yml").write_text(with_keys)
    (tmp_path / "paths.yml").write_text(NEOX_PATHS)
    report = adopt([tmp_path / "neox.yml", tmp_path / "paths.yml"], tmp_path / "mine.yaml")
    assert bool(report.adopted.findings.other_model) is is_other


def test_scaled_rotary_embeddings_of_nanotron_are_another_model(tmp_path):
    scaled = NANOTRON.replace("rope_scaling: null", "rope_scaling: {factor: 8.0}")
    (tmp_path / "nano.yaml").write_text(scaled)
    report = adopt([tmp_path / "nano.yaml"], tmp_path / "mine.yaml")
    assert says(report.check, AdoptMessage.ANOTHER_MODEL, model=containing("rope_scaling"))


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
    "brackets.yaml": "a: " + "[" * 120_000,
    "aliases.yaml": "a: &a [1,1,1,1,1,1,1,1]\n"
    + "".join(f"b{n}: &b{n} [{','.join([f'*b{n - 1}'] * 8)}]\n" for n in range(1, 20)).replace(
        "*b0", "*a"
    ),
    "self.yaml": "a: &a [*a, *a, *a]\n",
    "keys.yaml": "? [1, 2]\n: 3\n",
    "long.yaml": f"{'a' * 201}: 1\n",
    "wide.yaml": "".join(f"k{n}: 1\n" for n in range(5000)),
    "list.yaml": f"a: [{'1,' * 60_000}1]\n",
    "hexadecimal.yaml": f"a: 0x{'f' * 6000}\n",
    "digits.toml": f"a = {'9' * 6000}\n",
    "nested.toml": f"a = {'[' * 3000}{']' * 3000}\n",
    "deep.toml": f"{'a.' * 3000}b = 1\n",
    "many.py": "r = llm.llama3_8b.pretrain_recipe()\n" * 5000,
    "sum.py": f"r = llm.llama3_8b.pretrain_recipe(num_nodes={'+'.join('1' * 900)})\n",
    "digits.py": f"r = llm.llama3_8b.pretrain_recipe(num_nodes=0x{'f' * 400})\n",
    "name.py": f"r = llm.llama3_8b.pretrain_recipe()\nr.{'a' * 201} = 1\n",
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


def rows_of(tmp_path, name: str, text: str) -> tuple[AdoptReport, dict]:
    """Adopt one configuration and return the report with its rows by option."""
    (tmp_path / name).write_text(text)
    report = adopt([tmp_path / name], tmp_path / "mine.yaml", replace=True)
    return report, {row.option: row for row in report.proof}


def test_the_last_spelling_of_a_value_counts_over_a_default(tmp_path):
    text = NEMO.replace("    return recipe", "    recipe.trainer.num_nodes = 2\n    return recipe")
    report, rows = rows_of(tmp_path, "recipe.py", text)
    assert report.adopted.findings.value("jobs.training.nodes") == 2
    assert rows["trainer.num_nodes"].verdict is OptionVerdict.SAME
    assert rows["pretrain_recipe.num_nodes"].verdict is OptionVerdict.CHANGED


def test_lengths_that_contradict_each_other_are_a_question(tmp_path):
    text = BRIDGE.replace("dataset: {seq_length: 4096}", "dataset: {seq_length: 2048}")
    report, rows = rows_of(tmp_path, "bridge.yaml", text)
    assert rows["model.seq_length"].verdict is OptionVerdict.CHANGED
    assert "4096" in report.adopted.findings.questions["training.sequence_length"]


def test_null_is_the_same_only_where_it_has_a_meaning_here(tmp_path):
    text = NANOTRON.replace("clip_grad: 1.0", "clip_grad: null")
    _, rows = rows_of(tmp_path, "nano.yaml", text)
    assert rows["optimizer.clip_grad"].verdict is OptionVerdict.CHANGED
    assert "training.clip_gradient: " in rows["optimizer.clip_grad"].why


def test_a_file_or_a_number_that_would_count_for_nothing_is_refused(tmp_path):
    for name in ("titan.toml", "recipe.py", "bridge.yaml"):
        (tmp_path / name).write_text(FILES[name])
    titan, recipe, bridge = (tmp_path / n for n in ("titan.toml", "recipe.py", "bridge.yaml"))
    out = tmp_path / "mine.yaml"
    for files in ([titan, titan], [recipe, recipe], [titan, bridge]):
        names = {path.name for path in files}
        with refuses(ParamsError, AdoptMessage.TWO_CONFIGURATIONS) as caught:
            adopt(files, out)
        assert caught.value.values["name"] in names and caught.value.values["others"] in names
    for file in (titan, bridge):
        with refuses(ParamsError, AdoptMessage.ONE_TRAINING, launch_number=2):
            adopt([file], out, launch=2)


def test_a_group_of_a_billion_devices_is_not_counted_up(tmp_path):
    with refuses(ParamsError, AdoptMessage.NUMBER_TOO_LARGE, carried=1000000007):
        rows_of(tmp_path, "nano.yaml", NANOTRON.replace("tp: 2,", "tp: 1000000007,"))


SECRETS = {
    "titan.toml": TORCHTITAN
    + """[wandb]
api_key = "qq77"
api_token = 4771100
note = "{token}"
args = ["--hf-token", "qq77"]
[extra]
password = 12345678
list = [{{hf_token = "qq77"}}, 3]
[[hosts]]
wandb_api_key = 'qq77'
""",
    "nano.yaml": NANOTRON
    + """api_token: 4771100
hf_tokens: [qq77, qq77]
secret: {{v: qq77, w: [{{x: qq77}}]}}
password: 12345678
note: "{token}"
""",
}


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_of_a_configuration_stay_out(name, tmp_path):
    token = "hf_" + "abcdefghij" * 4
    report, _ = rows_of(tmp_path, name, with_token(SECRETS[name], token))
    everything = report.as_text() + json.dumps(report.as_dict()) + report.path.read_text()
    for secret in (token, "qq77", "4771100", "12345678"):
        assert secret not in everything


def with_token(text: str, token: str) -> str:
    """Return a configuration with a token that no file of the project has."""
    return text.replace("{token}", token).replace("{{", "{").replace("}}", "}")


def test_tables_in_arrays_keep_their_lines_and_empty_sections_a_row(tmp_path):
    text = TORCHTITAN + "[[hosts]]\nrank = 1\n[[hosts]]\nrank = 2\n[none]\nitems = [{}, {}]\n"
    _, rows = rows_of(tmp_path, "titan.toml", text)
    last = len(TORCHTITAN.splitlines())
    assert [rows[f"hosts.{n}.rank"].line for n in (0, 1)] == [last + 2, last + 4]
    assert rows["none.items.1"].verdict is OptionVerdict.UNACCOUNTED
    text = TORCHTITAN.replace("[optimizer]\n", "").replace(
        'name = "AdamW"\nlr = 3e-4', 'optimizer = {name = "AdamW", lr = 5e-4}'
    )
    moved = text.replace('optimizer = {name = "AdamW", lr = 5e-4}\n', "")
    report, rows = rows_of(tmp_path, "t2.toml", 'optimizer = {name = "AdamW", lr = 5e-4}\n' + moved)
    assert rows["optimizer.lr"].line == 1
    assert report.adopted.findings.carried["training.learning_rate"].line == 1


NODES = (
    "    r = llm.llama3_8b.pretrain_recipe(num_nodes=nodes, num_gpus_per_node=8)\n    return r\n"
)
STALE = {
    "again": "nodes = 1\nnodes = args.nodes\ndef f():\n" + NODES,
    "computed": "nodes = 8\nnodes *= 2\ndef f():\n" + NODES,
    "parameter": "nodes = 1\ndef f(nodes):\n" + NODES,
    "called": "def f(nodes=1):\n" + NODES + "f(nodes=args.n)\n",
    "called twice": "def f(nodes=1):\n" + NODES + "f(nodes=4)\nf(nodes=8)\n",
    "partial": "def f(nodes=1):\n" + NODES + "run.Partial(f, nodes=4)\n",
    "branches": "if args.big:\n    nodes = 8\nelse:\n    nodes = 1\ndef f():\n" + NODES,
    "loop": "nodes = 1\nfor nodes in args.all:\n    pass\ndef f():\n" + NODES,
    "with": "nodes = 1\nwith open('x') as nodes:\n    pass\ndef f():\n" + NODES,
    "global": "nodes = 1\ndef g():\n    global nodes\n    nodes = 4\ndef f():\n" + NODES,
    "outer": "nodes = 1\ndef g():\n  nodes = args.n\n  def f():\n  "
    + NODES.replace("\n    ", "\n      "),
    "import": "nodes = 1\nfrom mine import nodes\ndef f():\n" + NODES,
}


@pytest.mark.parametrize("name", STALE)
def test_a_name_that_is_set_otherwise_is_not_known(name):
    (call,) = recipe_calls(STALE[name], "recipe.py")
    nodes = {value.name: value for value in call.values}["pretrain_recipe.num_nodes"]
    assert (nodes.value, nodes.known) == ("nodes", False)


CHANGES = {
    "recipe.data.global_batch_size *= 2": "data.global_batch_size",
    "tune(recipe)": "line 3",
    "recipe.trainer.max_steps, x = 5, 6": "line 3",
    "while True:\n        recipe.trainer.max_steps = 5": "trainer.max_steps",
    "try:\n        f()\n    except E:\n        recipe.trainer.max_steps = 5": "trainer.max_steps",
    "match x:\n        case 1:\n            recipe.trainer.max_steps = 5": "trainer.max_steps",
    "if x:\n        recipe.trainer.max_steps = 5": "trainer.max_steps",
    "for c in recipe.trainer.callbacks:\n        c.x = 5": "line 3",
    "setattr(recipe.trainer, 'max_steps', 5)": "line 3",
    "t = recipe.trainer": "line 3",
    "recipe.trainer.callbacks[0].x = 5": "line 3",
    "recipe = tune(recipe)": "line 3",
    "def g():\n        recipe.trainer.max_steps = 5": "trainer.max_steps",
    "x = tune(recipe) if y else 5": "line 3",
    "run.run(recipe, plugins=[P()])": "run.plugins.P",
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_change_that_is_not_understood_is_not_lost(change, kind):
    text = f"{kind} f():\n    recipe = llm.llama3_8b.pretrain_recipe(num_nodes=1)\n    {change}\n"
    (call,) = recipe_calls(text, "recipe.py")
    values = {value.name: value for value in call.values}
    assert not values[CHANGES[change]].known
    assert len(values) == 2


def test_what_is_certain_stays_certain():
    text = """def configure():
    recipe = llm.llama3_8b.pretrain_recipe(num_nodes=1)
    try:
        print(recipe)
    finally:
        recipe.trainer.max_steps = 5
    assert recipe.trainer.max_steps
    return recipe
def main():
    recipe = configure()
    recipe.trainer.devices = 4
    executor = local_executor(nodes=recipe.trainer.num_nodes, devices=recipe.trainer.devices)
    with run.Experiment("x") as experiment:
        experiment.add(recipe, executor=run.LocalExecutor(), name="x")
    run.run(recipe, executor=run.LocalExecutor(), name="x")
if __name__ == "__main__":
    main()
"""
    (call,) = recipe_calls(text, "recipe.py")
    values = {value.name: (value.value, value.known) for value in call.values}
    assert values == {
        "pretrain_recipe.num_nodes": (1, True),
        "trainer.max_steps": (5, True),
        "trainer.devices": (4, True),
    }


def test_positional_arguments_of_a_recipe_keep_it_from_passing(tmp_path):
    text = NEMO.replace('name="mine", dir', '"mine", dir')
    report, rows = rows_of(tmp_path, "recipe.py", text)
    assert rows["line 6"].verdict is OptionVerdict.UNACCOUNTED
    assert report.check != "passes"


def test_secrets_of_a_recipe_stay_out(tmp_path):
    text = NEMO.replace(
        "    return recipe",
        """    recipe.log.wandb.api_key = "hunter2"
    secret = "hunter2"
    recipe.log.name = secret
    login(recipe, api_key="hunter2")
    recipe.log.extra = {"hf_token": "hunter2"}
    recipe.log.more = run.Config(W, password="hunter2", args=["--api-key", "hunter2"])
    return recipe""",
    )
    report, _ = rows_of(tmp_path, "recipe.py", text)
    everything = report.as_text() + json.dumps(report.as_dict()) + report.path.read_text()
    assert "hunter2" not in everything


@pytest.mark.parametrize("text", ['"False"', "${foo:bar}"])
def test_a_text_is_no_switch(text, tmp_path):
    config = NEMO_YAML.replace(
        "tensor_model_parallel_size: 2,",
        f"tensor_model_parallel_size: 2, sequence_parallel: '{text}',",
    )
    report, rows = rows_of(tmp_path, "export.yaml", config)
    assert rows["trainer.strategy.sequence_parallel"].verdict is not OptionVerdict.SAME
    assert "parallel.sequence" not in report.adopted.findings.carried


def test_gradients_that_bridge_sums_in_16_bits_are_named(tmp_path):
    for section in ("ddp", "mixed_precision"):
        text = BRIDGE + f"{section}: {{grad_reduce_in_fp32: false}}\n"
        _, rows = rows_of(tmp_path, "bridge.yaml", text)
        verdict = rows[f"{section}.grad_reduce_in_fp32"].verdict
        assert verdict is not OptionVerdict.SAME, section


def test_a_list_is_no_text(tmp_path):
    config = BRIDGE.replace(
        "dataset: {seq_length", "dataset: {data_path: [a, b], split: [9, 1], seq_length"
    )
    report, rows = rows_of(tmp_path, "bridge.yaml", config)
    assert "data.folder" not in report.adopted.findings.carried
    assert rows["dataset.data_path"].verdict is not OptionVerdict.SAME
    assert rows["dataset.split"].verdict is not OptionVerdict.SAME


NO_NUMBERS = {
    "nano.yaml": [
        ("lr_warmup_steps: 100", "lr_warmup_steps: .inf"),
        ("lr_warmup_steps: 100", "lr_warmup_steps: .nan"),
        ("lr_decay_steps: 200", "lr_decay_steps: -800"),
        ("micro_batch_size: 2", "micro_batch_size: 1.0e+300"),
        ("learning_rate: 0.003", "learning_rate: .inf"),
    ],
    "neox.yml": [('"warmup": 0.01', '"warmup": 0.01, "lr_decay_fraction": .nan')],
}


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [(name, *change) for name, changes in NO_NUMBERS.items() for change in changes],
)
def test_a_number_without_end_is_no_traceback(name, before, after, tmp_path):
    text = FILES[name].replace('"lr_decay_iters": 1000, ', "")
    assert before in text
    report, _ = rows_of(tmp_path, name, text.replace(before, after))
    assert report.path.exists()


def test_arguments_of_a_bridge_recipe_are_carried(tmp_path):
    arguments = {
        "train_iters": ("training.iterations", 70),
        "global_batch_size": ("training.global_batch", 64),
        "micro_batch_size": ("training.micro_batch", 2),
        "seq_length": ("training.sequence_length", 2048),
        "lr": ("training.learning_rate", 1e-4),
        "min_lr": ("training.min_learning_rate", 1e-5),
        "lr_warmup_iters": ("training.warmup_iterations", 7),
        "tensor_model_parallel_size": ("parallel.tensor", 2),
    }
    words = ", ".join(f"{name}={value}" for name, (_, value) in arguments.items())
    text = f"cfg = llama32_1b_pretrain_config({words}, mine=1)\npretrain(config=cfg, forward_step_func=f)\n"
    report, rows = rows_of(tmp_path, "recipe.py", text)
    for name, (key, value) in arguments.items():
        assert report.adopted.findings.value(key) == value
        assert rows[f"pretrain_recipe.{name}"].verdict is OptionVerdict.SAME
    assert [row.option for row in unaccounted(report.proof)] == ["pretrain_recipe.mine"]


def test_the_small_flavor_of_another_model_does_not_pass(tmp_path):
    text = TORCHTITAN.replace("llama3", "deepseek_v3").replace('"8B"', '"debugmodel"')
    report, _ = rows_of(tmp_path, "titan.toml", text)
    assert report.check.startswith("another model is trained")


def test_eight_bits_of_a_precision_are_not_lost(tmp_path):
    change = "recipe.trainer.plugins = bf16_with_fp8_current_scaling_mixed()"
    text = NEMO.replace("    return recipe", f"    {change}\n    return recipe")
    report, _ = rows_of(tmp_path, "recipe.py", text)
    assert report.adopted.findings.value("training.precision") == "bf16"
    assert report.adopted.findings.value("training.fp8") == "tensorwise"


CLASSES = {
    "recipe.model.config = run.Config(llm.Llama3Config70B)": ("llama-3-70b", ""),
    "recipe.model.config = run.Config(llm.MineConfig)": (None, "MineConfig"),
    "recipe.model.config.num_layers = 8": ("llama-3-8b", ""),
}


@pytest.mark.parametrize("change", CLASSES)
def test_the_class_of_a_model_counts_over_the_recipe_s_name(change, tmp_path):
    model, question = CLASSES[change]
    text = NEMO.replace("    return recipe", f"    {change}\n    return recipe")
    report, _ = rows_of(tmp_path, "recipe.py", text)
    findings = report.adopted.findings
    assert not model or findings.value("model") == model
    assert question in findings.questions.get("model", "")
    assert ("model" in findings.questions) == bool(question)


def test_an_empty_section_of_yaml_has_a_row(tmp_path):
    _, rows = rows_of(tmp_path, "nano.yaml", NANOTRON + "mine: [{}, {}]\nmixed: [{a: 1}, 2]\n")
    assert rows["mine.0"].verdict is OptionVerdict.UNACCOUNTED
    assert json.loads(rows["mixed"].script) == [{"a": 1}, 2]


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

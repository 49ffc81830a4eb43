"""Files that Megatron-LM and NeMo accept instead of options, and Python that may change any recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
from suite.messages import refuses, says

from runbook.core.errors import ParamsError
from runbook.tools.adopt.adopt_scripts import adopt
from runbook.tools.adopt.adoption import adopt as adopt_text
from runbook.tools.adopt.adoption import adopt_script
from runbook.tools.adopt.configs.program_config import read_config
from runbook.tools.adopt.configs.recipe_source import recipe_calls
from runbook.tools.adopt.launches import framework_of, launches_of
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.nemo_files import script_of_nemo_file
from runbook.tools.adopt.option_files import script_of_megatron_file

PROJECT = Path(__file__).parents[3]
NEMO = """\
trainer: {devices: 8, num_nodes: 2, max_steps: 100, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 32
  encoder_seq_length: 2048
  num_layers: 24
  hidden_size: 2048
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 16
  tensor_model_parallel_size: 2
  optim: {lr: 3e-4, eps: 1e-6}
  data:
    seq_length: ${training.model.encoder_seq_length}
"""
MEGATRON = """\
language_model: {num_layers: 24, hidden_size: 1024, num_attention_heads: 16, add_bias_linear: False}
model_parallel: {tensor_model_parallel_size: 2, bf16: True, fp16: False}
micro_batch_size: 2
seq_length: 1024
train_iters: 100
lr_warmup_iters: 3
untie_embeddings_and_output_weights: True
"""


def test_a_file_of_nemo_is_read_with_its_references():
    script = script_of_nemo_file("mine.yaml", NEMO)
    assert script is not None
    (launch,) = launches_of(script.commands)
    words = {word.text: word.line for word in launch.arguments}
    assert framework_of([launch]) == "nemo"
    assert words["model.ffn_hidden_size=8192"] == 8
    assert words["model.data.seq_length=2048"] == 13
    findings = adopt_script(script, "mine.yaml", "mine", PROJECT).findings
    assert (findings.value("jobs.training.nodes"), findings.value("parallel.tensor")) == (2, 2)
    assert findings.value("training.adam_epsilon") == 1e-6


@pytest.mark.parametrize(
    "more", ["  peft: {lora_tuning: 1}\n", "  bert_binary_head: true\n", "  data: {train_ds: a}\n"]
)
def test_files_of_nemos_other_trainings_are_no_gpts(more):
    head, _, _ = NEMO.partition("  data:")
    assert script_of_nemo_file("mine.yaml", head + more) is None


def test_experts_of_nemo_are_another_model():
    text = NEMO.replace("  num_layers", "  num_moe_experts: 8\n  num_layers")
    script = script_of_nemo_file("mine.yaml", text)
    assert script is not None
    assert adopt_script(script, "mine.yaml", "mine", PROJECT).findings.other_model


def test_a_file_of_megatron_is_read_as_its_options():
    script = script_of_megatron_file("mine.yaml", MEGATRON)
    assert script is not None
    (launch,) = launches_of(script.commands)
    texts = " ".join(word.text for word in launch.arguments)
    assert framework_of([launch]) == "megatron-lm"
    for option in (
        "--num-layers 24",
        "--disable-bias-linear",
        "--bf16",
        "--micro-batch-size 2",
        "--untie-embeddings-and-output-weights",
        "--train-iters 100",
    ):
        assert option in texts
    assert "--fp16" not in texts
    assert script_of_megatron_file("mine.yaml", NEMO) is None


def test_a_file_of_lightnings_command_line_is_none_of_ours():
    text = (
        "trainer:\n  strategy: {class_path: Own}\n  max_steps: 5\n  devices: 8\n"
        "model: {class_path: Llama}\n"
    )
    with refuses(ParamsError, AdoptMessage.NOT_A_CONFIGURATION):
        read_config([("mine.yaml", text)])


def test_a_registry_of_other_layers_is_refused():
    text = (
        "from torchtitan.trainer import Trainer\n"
        "def rwkv7_debug() -> Trainer.Config:\n"
        "    return Trainer.Config(training=TrainingConfig(steps=10))\n"
    )
    with refuses(ParamsError, AdoptMessage.LAYERS_WITHOUT_ATTENTION):
        read_config([("config_registry.py", text)])


def test_the_width_of_gpt_neoxs_llama_blocks_is_a_multiple_of_256(tmp_path):
    path = tmp_path / "llama.yml"
    path.write_text(
        "num_layers: 32\nhidden_size: 4096\nnum_attention_heads: 32\nseq_length: 2048\n"
        "max_position_embeddings: 2048\nactivation: silu\nmlp_type: llama\ntrain_iters: 10\n"
        "pipe_parallel_size: 1\ntrain_micro_batch_size_per_gpu: 2\nnorm: rmsnorm\n"
    )
    findings = adopt(scripts=[path], out=tmp_path / "mine.yaml").adopted.findings
    assert findings.value("training.shape.ffn_hidden", 11008) == 11008
    assert findings.value("model") != "375m"


def test_a_program_that_generates_text_trains_nothing():
    text = "deepspeed megatron/ds_text_generation.py --num-layers 2 --hidden-size 8 --seq-length 4 --bf16"
    with refuses(ParamsError, AdoptMessage.NO_TRAINING_STARTED):
        adopt_text([("job.sh", text)], "mine", PROJECT)


RECIPE = "recipe = llm.llama3_8b.pretrain_recipe(name='a', num_nodes=NODES)\n"
REWRITING = {
    "exec": f"NODES = 2\n{RECIPE}exec('recipe.trainer.max_steps = 7')\n",
    "eval in a function": f"NODES = 2\n{RECIPE}def f():\n    eval('g()')\n",
    "globals": f"NODES = 2\nglobals()['NODES'] = 5\n{RECIPE}",
    "a star import": f"NODES = 2\nfrom settings import *\n{RECIPE}",
    "a star import that may fail": (
        f"NODES = 2\ntry:\n    from settings import *\nexcept ImportError:\n    pass\n{RECIPE}"
    ),
}


@pytest.mark.parametrize("text", REWRITING.values(), ids=REWRITING)
def test_what_may_set_any_name_leaves_no_recipe_known(text):
    (call,) = recipe_calls(text, "mine.py")
    assert not all(value.known for value in call.values)


def test_a_name_after_a_star_import_is_known():
    (call,) = recipe_calls(f"from settings import *\nNODES = 2\n{RECIPE}", "mine.py")
    assert all(value.known for value in call.values)


def texts_of(text: str, *, is_nemo: bool) -> str:
    """Return the words in a file's training command."""
    script = (script_of_nemo_file if is_nemo else script_of_megatron_file)("mine.yaml", text)
    assert script is not None
    return " ".join(word.text for word in script.commands[0].words)


@pytest.mark.parametrize(
    ("ours", "wanted"),
    [
        ("max_steps: '${multiply:100,${trainer.k}}'", "max_steps=${multiply:100,${trainer.k}}"),
        ("max_steps: '${trainer.k}'", "max_steps=${trainer.k}"),
        ("max_steps: '${multiply:${.n},${.m}}', n: 3, m: '${multiply:2,${.n}}'", "max_steps=18"),
        ("max_steps: '${multiply:2,${multiply:3,4}}'", "max_steps=24"),
        ("max_steps: '${.n}', n: '${.max_steps}'", "max_steps=${.n}"),
    ],
)
def test_products_and_references_are_filled_in_or_stay_visible(ours, wanted):
    assert f"trainer.{wanted} " in texts_of(NEMO.replace("max_steps: 100", ours), is_nemo=True)


def test_what_nothing_fills_in_is_reported():
    text = NEMO.replace("lr: 3e-4", "lr: '${model.nolr}'")
    script = script_of_nemo_file("mine.yaml", text)
    assert script is not None
    findings = adopt_script(script, "mine.yaml", "mine", PROJECT).findings
    assert any("${model.nolr}" in remark.text for remark in findings.leftovers)


def test_what_a_file_of_megatron_gives_is_not_taken_for_computed():
    model = "kv_channels: 128, num_layers_per_virtual_pipeline_stage: 1"
    text = MEGATRON.replace("num_layers: 24", f"num_layers: 24, {model}").replace(
        "bf16: True", "bf16: True, pipeline_model_parallel_size: 4"
    )
    more = "decoder_first_pipeline_num_layers: 6\nstart_weight_decay: 0.1\nhidden_size: 2048\n"
    script = script_of_megatron_file("mine.yaml", text + more)
    assert script is not None
    words = " ".join(word.text for word in script.commands[0].words)
    assert "--decoder-first-pipeline-num-layers 6" in words
    lines = (text + more).splitlines()
    assert any(
        says(
            note,
            AdoptMessage.GIVEN_TWICE,
            name="mine.yaml",
            argument="hidden_size",
            earlier=1024,
            earlier_line=1,
            last=2048,
            line=len(lines),
        )
        for note in script.notes
    ), script.notes
    findings = adopt_script(script, "mine.yaml", "mine", PROJECT).findings
    remarks = [remark.text for remark in findings.leftovers]
    assert "--kv-channels 128" in remarks and "--start-weight-decay 0.1" in remarks
    assert findings.value("parallel.virtual_pipeline") == 6


def test_the_length_of_an_encoder_is_the_sequence_of_a_file_of_megatron():
    text = MEGATRON.replace("seq_length", "encoder_seq_length")
    assert "--encoder-seq-length 1024" in texts_of(text, is_nemo=False)

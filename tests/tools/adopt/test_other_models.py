"""Sources with a different model or purpose: the run file says so, or there is no run file."""

from __future__ import annotations

from pathlib import Path

import pytest
from suite.messages import containing, refuses, says

from runbook.core.errors import ParamsError
from runbook.tools.adopt.adopt_scripts import adopt as adopt_files
from runbook.tools.adopt.adoption import Adoption, adopt
from runbook.tools.adopt.configs.rows import OTHER_WEIGHTS, PERFORMANCE
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.other_programs import foreign_framework
from runbook.tools.adopt.proof import OptionVerdict
from runbook.tools.adopt.script import Word

PROJECT = Path(__file__).parents[3]
CORE = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --micro-batch-size 2 --lr 1e-4"
TRAIN = f"pretrain_gpt.py {CORE} --train-iters 10"


def adopted(script: str) -> Adoption:
    return adopt([("job.sh", script)], "mine", PROJECT, None)


def remark(adoption: Adoption, text: str) -> str:
    findings = adoption.findings
    return next(one.why for one in (*findings.leftovers, *findings.automatic) if one.text == text)


def test_experts_make_another_model_which_never_passes(tmp_path):
    experts = "8 experts"
    script = tmp_path / "job.sh"
    script.write_text(f"torchrun --nproc_per_node 8 {TRAIN} --num-experts 8 --moe-router-topk 2\n")
    report = adopt_files([script], tmp_path / "mine.yaml")
    another_model = AdoptMessage.ANOTHER_MODEL.fill(model=f"--num-experts: {experts}")
    assert report.check == another_model
    assert "passes" not in report.as_text().splitlines()[-1]
    assert "model" in report.adopted.required
    why = {row.option: row.why for row in report.proof}
    assert AdoptMessage.NO_SUCH_PART.fill(part=experts) in why["--num-experts"]
    assert why["--moe-router-topk"] == AdoptMessage.GOES_WITH_EXPERTS.fill()


def test_one_expert_is_the_dense_model():
    adoption = adopted(f"torchrun --nproc_per_node 8 {TRAIN} --num-experts 1\n")
    assert adoption.findings.other_model == ""
    assert remark(adoption, "--num-experts 1") == AdoptMessage.ONE_EXPERT_IS_DENSE.fill()


@pytest.mark.parametrize(
    "option",
    [
        "--rotary-percent 0.25",
        "--qk-layernorm",
        "--window-size 1024 0",
        "--use-rope-scaling",
        "--no-rope-freq 4",
        "--kv-channels 128",
        "--softmax-type learnable",
        "--spec own.layers stack",
        "--squared-relu",
    ],
)
def test_a_part_that_no_model_here_has_makes_another_model(tmp_path, option):
    script = tmp_path / "job.sh"
    script.write_text(f"torchrun --nproc_per_node 8 {TRAIN} {option}\n")
    report = adopt_files([script], tmp_path / "mine.yaml")
    name = option.partition(" ")[0]
    assert report.adopted.findings.other_model.startswith(name)
    assert says(report.check, AdoptMessage.ANOTHER_MODEL, model=containing(name))
    verdicts = {row.option: row.verdict for row in report.proof}
    assert verdicts[name] is OptionVerdict.DROPPED


@pytest.mark.parametrize("positions", ["none", "yarn", "mrope", "relative"])
def test_positions_that_no_model_here_can_have_make_another_model(positions):
    option = f"--position-embedding-type {positions}"
    adoption = adopted(f"torchrun --nproc_per_node 8 {TRAIN} {option}\n")
    part = AdoptMessage.OTHER_POSITIONS.fill(positions=positions)
    assert adoption.findings.other_model == f"--position-embedding-type: {part}"


@pytest.mark.parametrize(
    "option",
    [
        "--kv-channels 64",
        "--softmax-type vanilla",
        "--spec megatron.core.models.gpt.gpt_layer_specs get_gpt_layer_local_spec",
        "--position-embedding-type rope",
        "--rotary-percent 1.0",
        "--rotary-percent 1.00",
        "--no-rope-freq 0",
        "--hybrid-attention-ratio 0.0",
        '--window-size "(-1, 0)"',
    ],
)
def test_a_part_that_is_switched_off_leaves_a_dense_model(option):
    adoption = adopted(f"torchrun --nproc_per_node 8 {TRAIN} {option}\n")
    assert adoption.findings.other_model == ""


def test_a_length_that_nothing_sets_is_a_question_with_a_placeholder():
    adoption = adopted(f"torchrun --nproc_per_node 8 pretrain_gpt.py {CORE}\n")
    assert adoption.findings.carried["training.iterations"].line == 0
    assert adoption.required["training.iterations"] == AdoptMessage.NO_LENGTH.fill()
    assert "training.iterations" not in adopted(f"torchrun {TRAIN}\n").required


EXPERTS_IN_YAML = """general: {project: mine, seed: 7}
model:
  dtype: bfloat16
  model_config:
    hidden_size: 512
    intermediate_size: 1024
    num_attention_heads: 8
    num_hidden_layers: 4
    num_key_value_heads: 8
    vocab_size: 50257
    moe_config: {num_experts: EXPERTS, top_k: 2}
optimizer:
  learning_rate_scheduler: {learning_rate: 0.0003, lr_warmup_steps: 10}
parallelism: {dp: 8, tp: 1, pp: 1}
tokenizer: {tokenizer_name_or_path: gpt2}
tokens: {sequence_length: 1024, train_steps: 100, micro_batch_size: 2, batch_accumulation_per_replica: 1}
"""


@pytest.mark.parametrize(("experts", "is_other"), [(16, True), (1, False)])
def test_experts_of_a_configuration_make_another_model(tmp_path, experts, is_other):
    config = tmp_path / "moe.yaml"
    config.write_text(EXPERTS_IN_YAML.replace("EXPERTS", str(experts)))
    report = adopt_files([config], tmp_path / "mine.yaml")
    model = f"model.model_config.moe_config.num_experts {experts}: experts"
    assert says(report.check, AdoptMessage.ANOTHER_MODEL, model=model) is is_other
    # No other part of the message applies to a single expert, either.
    assert says(report.check, AdoptMessage.ANOTHER_MODEL) is is_other
    assert ("model" in report.adopted.findings.questions) is is_other


@pytest.mark.parametrize("default", ["no_rope_layer: 0", "sliding_window_size: null"])
def test_a_default_of_nanotron_leaves_a_dense_model(tmp_path, default):
    config = tmp_path / "dense.yaml"
    config.write_text(
        EXPERTS_IN_YAML.replace("moe_config: {num_experts: EXPERTS, top_k: 2}", default)
    )
    assert adopt_files([config], tmp_path / "mine.yaml").adopted.findings.other_model == ""


OTHER_PARTS = {
    "a vision encoder": "vision_config: {hidden_size: 64, patch_size: 14}",
    "layers of another model": "is_starcoder2_config: true",
}


@pytest.mark.parametrize("part", OTHER_PARTS.values(), ids=OTHER_PARTS)
def test_a_model_of_nanotron_that_is_no_llama_never_passes(tmp_path, part):
    config = tmp_path / "other.yaml"
    config.write_text(EXPERTS_IN_YAML.replace("moe_config: {num_experts: EXPERTS, top_k: 2}", part))
    report = adopt_files([config], tmp_path / "mine.yaml")
    assert says(report.check, AdoptMessage.ANOTHER_MODEL)


BRIDGE_YAML = """recipe: {_target_: megatron.bridge.recipes.llama.llama3.NAME}
model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, seq_length: 1024}
checkpoint: {save_interval: 10}
logger: {log_interval: 1}
rng: {seed: 7}
train: null
"""


def test_a_section_that_a_configuration_leaves_out_is_no_lost_option(tmp_path):
    config = tmp_path / "run_config.yaml"
    config.write_text(BRIDGE_YAML.partition("\n")[2])
    report = adopt_files([config], tmp_path / "mine.yaml")
    (verdict,) = [row.verdict for row in report.proof if row.option == "train"]
    assert verdict is OptionVerdict.CHANGED
    config.write_text(BRIDGE_YAML.partition("\n")[2].replace("train: null", "trian: null"))
    misspelled = adopt_files([config], tmp_path / "mine.yaml", replace=True)
    (verdict,) = [row.verdict for row in misspelled.proof if row.option == "trian"]
    assert verdict is OptionVerdict.UNACCOUNTED


@pytest.mark.parametrize(
    ("keys", "is_other"),
    [
        ("window_size: [-1, 0]", False),
        ("window_size: [1024, 0]", True),
        ("position_embedding_type: learned_absolute, rotary_percent: 0.5", False),
        ("position_embedding_type: rope, rotary_percent: 0.5", True),
    ],
)
def test_a_key_without_effect_leaves_a_dense_model(tmp_path, keys, is_other):
    config = tmp_path / "run_config.yaml"
    with_keys = BRIDGE_YAML.replace("seq_length: 1024}", f"seq_length: 1024, {keys}}}")
    config.write_text(with_keys.partition("\n")[2])
    findings = adopt_files([config], tmp_path / "mine.yaml").adopted.findings
    assert bool(findings.other_model) is is_other


FINE_TUNINGS = (
    "llama3_8b_finetune_config",
    "llama3_8b_peft_config",
    "nemo.collections.llm.recipes.llama3_8b.finetune_recipe",
    "megatron.bridge.recipes.qwen.finetune_config",
)


@pytest.mark.parametrize("name", FINE_TUNINGS)
def test_a_configuration_that_starts_from_fine_tuning_is_refused(tmp_path, name):
    config = tmp_path / "tune.yaml"
    config.write_text(BRIDGE_YAML.replace("NAME", name))
    with refuses(ParamsError, AdoptMessage.FILE_OF_FINE_TUNING, name="tune.yaml", line=1):
        adopt_files([config], tmp_path / "mine.yaml")


def test_context_ranks_of_nemo_are_kept_by_our_own_trainer(tmp_path):
    config = tmp_path / "nemo.yaml"
    config.write_text(
        "run: {name: mine}\ntrainer: {num_nodes: 2, devices: 8, max_steps: 10}\n"
        "model: {num_layers: 4, hidden_size: 512, num_attention_heads: 8, ffn_hidden_size: 2048,\n"
        "  encoder_seq_length: 1024, max_position_embeddings: 1024, micro_batch_size: 1,\n"
        "  global_batch_size: 24, tensor_model_parallel_size: 2, context_parallel_size: 2}\n"
    )
    findings = adopt_files([config], tmp_path / "mine.yaml").adopted.findings
    assert findings.value("parallel.context") == 2
    assert findings.value("training.framework") == "runbook"
    assert findings.value("training.global_batch") == 24


TITAN = """[job]
[model]
name = "NAME"
flavor = "FLAVOR"
[training]
steps = 10
seq_len = 1024
local_batch_size = 1
[optimizer]
lr = 1e-4
"""


@pytest.mark.parametrize(
    ("name", "flavor", "is_known"),
    [
        ("llama3", "debugmodel", True),
        ("llama3", "40M", False),
        ("other_backend", "debugmodel", False),
    ],
)
def test_a_model_that_only_torchtitans_code_has_is_unknown(tmp_path, name, flavor, is_known):
    config = tmp_path / "titan.toml"
    config.write_text(TITAN.replace("NAME", name).replace("FLAVOR", flavor))
    report = adopt_files([config], tmp_path / "mine.yaml")
    assert (report.check == "passes") is is_known
    assert bool(report.adopted.findings.unknown_model) is not is_known


BRIDGE = """model: {num_layers: 12, hidden_size: 768, num_attention_heads: 12, VALUE}
train: {train_iters: 10, global_batch_size: 16, micro_batch_size: 2}
optimizer: {lr: 0.0001, lr_warmup_iters: 100, sgd_momentum: 0.5}
scheduler: {lr_warmup_iters: 50}
"""


@pytest.mark.parametrize(
    ("value", "is_other"),
    [
        ("softmax_type: learnable", True),
        ("softmax_type: vanilla", False),
        ("mtp_num_layers: 1", True),
        ("multi_latent_attention: true", True),
        ("kv_channels: null", False),
    ],
)
def test_a_part_of_megatron_bridges_model_makes_another_model(tmp_path, value, is_other):
    config = tmp_path / "bridge.yaml"
    config.write_text(BRIDGE.replace("VALUE", value))
    report = adopt_files([config], tmp_path / "mine.yaml")
    assert bool(report.adopted.findings.other_model) is is_other
    assert report.adopted.findings.value("training.warmup_iterations") == 50
    rows = {row.option: row for row in report.proof}
    for key in ("optimizer.lr_warmup_iters", "optimizer.sgd_momentum"):
        assert rows[key].verdict is OptionVerdict.DROPPED
        assert rows[key].why != PERFORMANCE


def test_a_file_of_mostly_unknown_keys_is_no_configuration_of_a_gpt(tmp_path):
    speech = "".join(f"  ear_{number}: {number}\n" for number in range(30))
    config = tmp_path / "speech.yaml"
    config.write_text(f"trainer: {{devices: 8, max_steps: 10}}\nhearing:\n{speech}")
    with refuses(
        ParamsError,
        AdoptMessage.MOSTLY_UNKNOWN_KEYS,
        number_of_unknown=30,
        num_keys=32,
        unknown=containing("hearing.ear_0"),
    ):
        adopt_files([config], tmp_path / "mine.yaml")


@pytest.mark.parametrize(
    "option",
    [
        "--train-iters 0",
        "--train-iters 10 --skip-train",
        "--train-iters 10 --ckpt-convert-format torch --ckpt-convert-save /out",
    ],
)
def test_a_start_that_trains_nothing_is_refused(option):
    script = f"torchrun --nproc_per_node 8 pretrain_gpt.py {CORE} {option}\n"
    with refuses(
        ParamsError, AdoptMessage.EVALUATION_STARTED, script=containing("pretrain_gpt.py")
    ):
        adopted(script)


NO_STEPS = f"torchrun --nproc_per_node 8 pretrain_gpt.py {CORE} --train-iters"
READS_STEPS = 'STEPS=0\nwhile getopts "K:" opt; do STEPS=$OPTARG; done\n'


@pytest.mark.parametrize(
    "script",
    [
        f"{READS_STEPS}{NO_STEPS} $STEPS\n",
        f"STEPS=${{1:-0}}\n{NO_STEPS} $STEPS\n",
        f"{READS_STEPS}cat > job.sbatch <<EOF\n{NO_STEPS} $STEPS\nEOF\nsbatch job.sbatch\n",
    ],
    ids=["started", "by number", "submitted"],
)
def test_steps_that_come_from_an_absent_argument_are_not_zero(script):
    carried = adopted(script).findings.carried
    assert carried["training.iterations"].value > 0
    assert carried["training.iterations"].line == 0


def test_steps_that_a_missing_file_would_set_are_not_zero():
    """A script may read the number of tokens from a file that the checkout does not have."""
    script = f"source tokens.sh\nSTEPS=$((TOKENS / 1024 / 256))\n{NO_STEPS} $STEPS\n"
    adoption = adopted(script)
    assert adoption.findings.carried["training.iterations"].line == 0
    assert "training.iterations" in adoption.required


NO_ARGUMENT_OF_THE_SCRIPT = {
    "says 0": f"{READS_STEPS}{NO_STEPS} 0\n",
    "has a column of awk": f"N=$(echo 1 2 | awk '{{print $1}}')\nSTEPS=0\n{NO_STEPS} $STEPS\n",
    "has an awk program of two lines": f"awk '{{\n print $1 }}' f\nSTEPS=$((0))\n{NO_STEPS} $STEPS\n",
    "has a function of one line": f'log() {{ echo "$1"; }}\nSTEPS=$((0))\n{NO_STEPS} $STEPS\n',
    "has a function": f'log() {{\n echo "$1"\n}}\nSTEPS=$((0))\n{NO_STEPS} $STEPS\n',
    "reads its nodes alone": f'NODES=${{1:-2}}\nSTEPS=0\n{NO_STEPS} "${{STEPS}}"\n',
    "takes 0 from its environment": f"NODES=${{1:-2}}\nSTEPS=${{STEPS:-0}}\n{NO_STEPS} $STEPS\n",
}


@pytest.mark.parametrize("case", NO_ARGUMENT_OF_THE_SCRIPT)
def test_steps_that_no_argument_of_the_script_sets_are_zero(case):
    with refuses(ParamsError, AdoptMessage.EVALUATION_STARTED):
        adopted(NO_ARGUMENT_OF_THE_SCRIPT[case])


def test_a_clipped_gradient_is_no_sign_of_a_vision_model():
    words = [Word("--clip-grad", 1), Word("1.0", 1)]
    assert foreign_framework(Word("pretrain_mine.py", 1), words) == ""
    assert foreign_framework(Word("pretrain_mine.py", 1), [Word("--disable-vision-class-token", 1)])


def test_gpt_neox_is_refused_by_its_name_with_the_files_to_give():
    with refuses(
        ParamsError,
        AdoptMessage.NOT_A_GPT,
        whose="GPT-NeoX",
        config=containing("runbook adopt configs/b.yml configs/a.yml"),
    ):
        adopted("python ./deepy.py train.py -d configs b.yml a.yml\n")


def test_a_script_that_gives_up_with_exit_code_0_is_followed_to_its_training():
    adoption = adopted(
        f'case "$SIZE" in small) L=2 ;; *) echo unknown; exit ;; esac\ntorchrun --nproc_per_node 8 {TRAIN}\n'
    )
    assert adoption.launch is not None
    gave_up = AdoptMessage.GAVE_UP.fill(job="job.sh", exit_code=0)
    assert gave_up in adoption.script.notes


def test_options_of_a_launcher_that_nothing_sets_hide_no_training():
    adoption = adopted(f'srun $SRUN_ARGS -u bash -c "torchrun --nproc_per_node 8 {TRAIN}"\n')
    assert adoption.launch is not None


def test_an_output_file_without_a_folder_hides_no_training():
    adoption = adopted(f"torchrun --nproc_per_node 8 {TRAIN} \\\n  --bf16 > $WORK/logs/train.out\n")
    assert adoption.launch is not None
    assert adoption.launch.arguments[-1].text == "--bf16"


def test_a_script_in_a_folder_beside_is_found_from_another_folder():
    script = "cd /scratch/elsewhere\nsh examples/train.sh\n"
    files = {"examples/train.sh": f"torchrun --nproc_per_node 8 {TRAIN}\n"}
    assert adopt([("job.sh", script)], "mine", PROJECT, files).launch is not None


LLAMA = "--swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope"


def test_what_asks_for_nothing_in_this_layout_refuses_nothing(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(
        f"torchrun --nproc_per_node 8 {TRAIN} {LLAMA} --max-position-embeddings 4096 --bf16 "
        "--sequence-parallel --tp-comm-overlap --rampup-batch-size 32 32 1000\n"
    )
    report = adopt_files([script], tmp_path / "mine.yaml")
    rows = {row.option: row for row in report.proof}
    assert report.check == "passes"
    assert rows["--max-position-embeddings"].why == AdoptMessage.ROTARY_WITHOUT_TABLE.fill()
    assert rows["--tp-comm-overlap"].verdict is OptionVerdict.DROPPED
    assert report.adopted.findings.value("training.global_batch") == 32
    assert "training.global_batch" in report.adopted.required


OTHER_PROGRAMS = {
    "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nspec: {replicas: 2}\n": "Kubernetes",
    "modules:\n  pre_trainer: {framework: megatron, model: mine.yaml}\n": "Primus",
    "extends: [base.yaml]\ntokenizer_type: Own\nnum_layers: 2\nhidden_size: 8\n": "Primus",
    "max_seq_len: 8\nmax_duration: 1ba\ntrain_loader: {name: text}\n": "LLM Foundry",
    "checkpoint_dir: a\nout_dir: b\nprecision: bf16-true\n": "LitGPT",
    "settings: {a: 1}\ncollate_fn: {component_key: gpt}\n": "Modalities",
    "stage: sft\nmodel_name_or_path: lab/mine\n": "LLaMA-Factory",
    "model_name_or_path: lab/mine\nper_device_train_batch_size: 4\n": "Hugging Face's Trainer",
}


@pytest.mark.parametrize(("text", "program"), OTHER_PROGRAMS.items())
def test_yaml_of_another_program_is_refused_by_its_name(tmp_path, text, program):
    config = tmp_path / "other.yaml"
    config.write_text(text)
    with refuses(
        ParamsError, AdoptMessage.NOT_ITS_CONFIGURATION, files="other.yaml", program=program
    ):
        adopt_files([config], tmp_path / "mine.yaml")


def test_options_without_a_start_need_the_script_that_starts_them():
    options = "PARAMS=(\n  --num-layers 12\n  --hidden-size 768\n)\n"
    with refuses(ParamsError, AdoptMessage.OPTIONS_ALONE, file_name="job.sh", line=2):
        adopted(options)


def test_a_training_that_starts_from_other_weights_says_so():
    adoption = adopted(f"torchrun --nproc_per_node 8 {TRAIN} --finetune --load /weights\n")
    assert remark(adoption, "--finetune") == OTHER_WEIGHTS

"""How people start training: launchers with their own options, several training runs, programs that
are not ours.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from suite.messages import refuses

from runbook.core.errors import ParamsError
from runbook.params.catalogues import read_models
from runbook.tools.adopt.adopt_scripts import adopt as adopt_files
from runbook.tools.adopt.adoption import Adoption, adopt
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.other_programs import foreign_framework
from runbook.tools.adopt.script import Word

PROJECT = Path(__file__).parents[3]
CORE = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --micro-batch-size 2 --train-iters 10 --lr 1e-4"
TRAIN = f"pretrain_gpt.py {CORE} --bf16"


def adopted(script: str, **options: int) -> Adoption:
    return adopt([("job.sh", script)], "mine", PROJECT, None, **options)


def values(adoption: Adoption) -> dict[str, object]:
    return {carried.key: carried.value for carried in adoption.findings.carried.values()}


def leftovers(adoption: Adoption) -> dict[str, str]:
    return {remark.text: remark.why for remark in adoption.findings.leftovers}


def test_a_word_with_an_equals_sign_drops_no_option_of_megatron():
    adoption = adopted(
        f"torchrun --nproc_per_node=8 {TRAIN} NAME=value --tensor-model-parallel-size 2\n"
    )
    assert values(adoption)["parallel.tensor"] == 2
    assert values(adoption)["training.iterations"] == 10
    assert "NAME=value" in leftovers(adoption)


LAUNCHERS = (
    "mpirun --npernode 8 --rank-by slot python",
    "mpirun -np 16 -wdir /w -genvlist A,B python",
    "srun --comment megatron --mail-type END --signal USR1@90 python",
    "deepspeed --num_nodes 1 --num_gpus 8 --no_python python",
    "uv run --extra train --with flash-attn python",
    "conda run -n megatron --no-capture-output python",
    "flux run -N 2 -n 16 --cores-per-task 8 python",
    "torchrun --no-python --nnodes 2 --rdzv-backend c10d python",
    "./run_in_container.sh python",
)


def test_options_of_a_launcher_are_not_taken_for_its_command():
    script = "".join(
        f"{launcher} {TRAIN} --seed {seed}\n" for seed, launcher in enumerate(LAUNCHERS, 1)
    )
    adoption = adopted(script)
    assert [launch.arguments[-1].text for launch in adoption.launches] == [*map(str, range(1, 10))]
    assert {launch.script.text for launch in adoption.launches} == {"pretrain_gpt.py"}
    assert [launch.programs[0] for launch in adoption.launches][:4] == [
        "mpirun",
        "mpirun",
        "srun",
        "deepspeed",
    ]


def test_of_several_trainings_all_are_known_and_one_is_chosen():
    script = "".join(f"torchrun {TRAIN} --seed {seed}\n" for seed in (11, 12, 13))
    assert values(adopted(script))["training.seed"] == 13
    assert len(adopted(script).launches) == 3
    assert values(adopted(script, launch_number=1))["training.seed"] == 11
    with refuses(
        ParamsError,
        AdoptMessage.LAUNCH_OUT_OF_RANGE,
        number=4,
        file_name="job.sh",
        number_of_launches=3,
    ):
        adopted(script, launch_number=4)


FOREIGN = {
    "train.py --model_name_or_path x --per_device_train_batch_size 4 --bf16": "Hugging Face's Trainer",
    "train.py config/train_gpt2.py --bf16": "nanoGPT",
    "run_train.py --config-file config.yaml": "nanotron",
    "train.py --config experiment/config.json": "picotron",
    "torchtitan.train --job.config_file a.toml": "torchtitan",
    "train.py --fsdp full_shard --lr 1e-4": "PyTorch FSDP",
    "train_esm2.py --num-layers 2 --hidden-size 8 --micro-batch-size 1 --lr 1": "ESM-2 of BioNeMo",
    f"pretrain_t5.py {CORE} --decoder-seq-length 128": "T5",
    f"pretrain_bert.py {CORE}": "BERT",
    f"pretrain_vision_classify.py {CORE} --img-h 224": "a vision model",
    f"finetune_llama.py {CORE}": "fine-tuning",
    f"posttrain_gpt.py {CORE}": "fine-tuning",
    "verl.trainer.main_ppo data.train_batch_size=8": "reinforcement learning",
    "maxtext.trainers.pre_train.train base.yml": "MaxText",
    "scripts/llm-foundry/train.py a.yaml": "LLM Foundry",
    "litgpt.pretrain --config a.yaml": "LitGPT",
    "modalities.__main__ run": "Modalities",
    "scripts/train/OLMo2-1B.py launch": "OLMo",
    f"train_mine.py {CORE} --stage sft": "fine-tuning",
    f"train_mine.py {CORE} --stage pt": "",
    "setup_experiment.py --model_recipe_name llama3_8b --num_gpus 8": "Megatron Bridge",
    "main.py --d_model 8 --learning_rate 1e-3 --run_name a": "",
    "train.py --deepspeed ds.json --lr 1e-4 --bf16 --seed 1": "",
}


@pytest.mark.parametrize(("command", "framework"), FOREIGN.items())
def test_a_program_of_another_framework_is_named(command, framework):
    script, *arguments = (Word(text, 1) for text in command.split())
    assert foreign_framework(script, arguments) == framework


@pytest.mark.parametrize(
    ("command", "whose"),
    [
        (f"torchrun pretrain_bert.py {CORE}", "trains with BERT"),
        (
            "deepspeed train.py --deepspeed ds.json --lr 1e-4 --bf16",
            "starts a program that adopt does not know",
        ),
    ],
)
def test_what_is_not_ours_is_refused_by_its_name(command, whose):
    with pytest.raises(ParamsError) as refused:
        adopted(f"#SBATCH --nodes 2\nNUM_LAYERS=12 HIDDEN_SIZE=64\n{command}\n")
    assert f"job.sh {whose} (line 3:" in str(refused.value)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("run_train.py", AdoptMessage.NOT_A_GPT),
        ("convert_weights.py", AdoptMessage.NO_TRAINING_STARTED),
    ],
)
def test_a_training_of_another_framework_below_an_absent_wrapper_is_named(program, message):
    with refuses(ParamsError, message, file_name="job.sh"):
        adopted(f"debug-run -m torch.distributed.run -- {program} --config-file nanotron.yaml\n")


@pytest.mark.parametrize(
    ("module", "folder"),
    [
        ("llama3", "torchtitan/models/llama3"),
        ("experiments.tpu.qwen3", "torchtitan/experiments/tpu/qwen3"),
    ],
)
def test_torchtitans_file_of_configurations_is_named_with_its_function(module, folder):
    started = f"torchrun -m torchtitan.train --module {module} --config llama3_8b\n"
    with pytest.raises(ParamsError) as refused:
        adopted(started)
    assert f"{folder}/config_registry.py" in str(refused.value)
    assert "llama3_8b" in str(refused.value)


def test_an_option_whose_last_value_is_unknown_keeps_no_earlier_one():
    rope = "--position-embedding-type rope --rotary-base 9 --rotary-base $B"
    adoption = adopted(f"torchrun {TRAIN} --seed 5 {rope} --seed $S\n")
    assert values(adoption)["training.seed"] == 1234  # Megatron's default, as if it were given once
    assert "rope_base" not in adoption.findings.model_kind
    assert [text for text in leftovers(adoption) if text.startswith("--seed")]
    assert [text for text in leftovers(adoption) if text.startswith("--rotary-base")]
    last = adopted(f"torchrun {TRAIN} --seed $S --seed 5\n")
    assert values(last)["training.seed"] == 5


def test_a_gpt_is_ours_whatever_its_options_are_called():
    words = [Word(text, 1) for text in f"{CORE} --img-h 3 --fsdp x".split()]
    assert foreign_framework(Word("pretrain_vlm.py", 1), words)
    adoption = adopted(f"torchrun pretrain_gpt.py {CORE} --use-torch-fsdp2\n")
    assert "--use-torch-fsdp2" in leftovers(adoption)


def test_an_argument_with_a_default_keeps_it_where_others_are_missing():
    adoption = adopted(
        "SAVE=$1\nITERS=${2:-77}\ntorchrun pretrain_gpt.py --save $SAVE --train-iters $ITERS\n"
    )
    assert values(adoption)["training.iterations"] == 77


def test_two_dropouts_that_differ_are_said():
    both = adopted(f"torchrun {TRAIN} --attention-dropout 0.0 --hidden-dropout 0.0\n")
    assert values(both)["training.dropout"] == 0.0
    assert not [text for text in leftovers(both) if "dropout" in text]
    alone = adopted(f"torchrun {TRAIN} --attention-dropout 0.0\n")
    assert values(alone)["training.dropout"] == 0.1
    assert "--attention-dropout 0.0" in leftovers(alone)
    hidden = adopted(f"torchrun {TRAIN} --hidden-dropout 0.0\n")
    assert AdoptMessage.ATTENTION_DROPOUT.fill(dropout=0.1) in leftovers(hidden)


def test_a_value_that_no_run_file_may_have_is_left_and_not_written():
    adoption = adopted(
        f"torchrun {TRAIN} --eval-iters -1 --recompute-granularity full --recompute-method chunk\n"
    )
    assert "--eval-iters -1" in leftovers(adoption)
    assert "--recompute-method chunk" in leftovers(adoption)
    assert values(adoption)["training.eval_iterations"] == 100


def test_the_kind_of_model_is_kept_without_its_layers_and_no_property_is_added():
    llama = "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
    untied = "--untie-embeddings-and-output-weights"
    adoption = adopted(
        f"torchrun pretrain_gpt.py --num-layers $LAYERS --hidden-size 4096 {llama} {untied}\n"
    )
    model = read_models(PROJECT).get(str(values(adoption)["model"]))
    assert (model.activation, model.normalization, model.position_embedding) == (
        "swiglu",
        "rmsnorm",
        "rope",
    )
    assert any(text.startswith("the model's layers") for text in leftovers(adoption))
    tied = adopted(f"torchrun {TRAIN} {llama}\n")
    tied_property = AdoptMessage.MODEL_PROPERTY.fill(field="tied_embeddings", value=True)
    assert tied_property in leftovers(tied)
    assert tied.findings.model_kind["tied_embeddings"] is True
    assert not adopted(f"torchrun {TRAIN} {llama} {untied}\n").findings.model_kind


def test_nodes_of_salloc_and_of_lsf_are_taken():
    allocation = adopted(f"salloc -N 4 --gpus-per-node=4 -t 30 srun torchrun {TRAIN}\n")
    assert values(allocation)["jobs.training.nodes"] == 4
    assert values(allocation)["jobs.training.walltime"] == "00:30:00"
    script = f"#BSUB -nnodes 6\n#BSUB -W 2:10\n#BSUB -P CSC1\n#BSUB -alloc_flags gpudefault\njsrun python {TRAIN}\n"
    lsf = values(adopted(script))
    assert (lsf["jobs.training.nodes"], lsf["jobs.training.walltime"]) == (6, "02:10:00")
    assert lsf["jobs.account"] == "CSC1"


def test_nemos_launcher_starts_more_than_one_device_of_a_node():
    script = "python3 main.py training=gpt3/5b stages=[training] training.trainer.num_nodes=2 cluster_type=bcm\n"
    assert "jobs.training.devices_per_node" not in values(adopted(script))


def test_a_template_in_the_folder_above_is_read(tmp_path):
    template = '{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}, "gradient_clipping": GC}'
    (tmp_path / "ds_template.json").write_text(template)
    (tmp_path / "unnamed.json").write_text("{}")
    folder = tmp_path / "jobs"
    folder.mkdir()
    script = folder / "126.sh"
    script.write_text(
        "sed 's/GC/0.5/' ../ds_template.json > ds.json\nls ../unnamed.json && exit 3\n"
        f"deepspeed {TRAIN} --deepspeed --deepspeed_config ds.json\n"
    )
    report = adopt_files([script], tmp_path / "job-126.yaml")
    carried = values(report.adopted)
    assert (carried["training.clip_gradient"], carried["parallel.zero_stage"]) == (0.5, 2)


def test_token_files_of_a_path_reach_the_job_as_they_are_named():
    adoption = adopted(
        f"#SBATCH --nodes 1\nsrun torchrun {TRAIN} --data-path /data/my-gpt_text_document\n"
    )
    assert values(adoption)["data.folder"] == "/data/my-gpt_text_document"


def test_key_value_heads_and_widths_are_the_scripts_own_whatever_model_is_near():
    llama = "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
    shape = "--num-layers 80 --hidden-size 10240 --num-attention-heads 80 --ffn-hidden-size 22528 --num-query-groups 8"
    untied = "--untie-embeddings-and-output-weights"
    script = f"torchrun pretrain_gpt.py {shape} {llama} {untied} --train-iters 5 --lr 1e-4\n"
    carried = values(adopted(script))
    assert (carried["training.shape.kv_heads"], carried["training.shape.ffn_hidden"]) == (8, 22528)
    # llama-3-8b has 8 key-value heads. A script that states none has as many as attention heads.
    many = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336"
    carried = values(
        adopted(f"torchrun pretrain_gpt.py {many} {llama} {untied} --train-iters 5 --lr 1e-4\n")
    )
    model = read_models(PROJECT).get(str(carried["model"]))
    heads = carried.get("training.shape.kv_heads", model.kv_heads or 32)
    assert (heads, carried.get("training.shape.ffn_hidden", model.ffn_hidden)) == (32, 14336)


def test_blooms_own_layout_is_not_refused(tmp_path):
    script = tmp_path / "bloom.slurm"
    script.write_text(
        "#SBATCH --nodes=48\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:8\n"
        "srun torchrun --nproc_per_node 8 --nnodes 48 pretrain_gpt.py --deepspeed --zero-stage 1 --num-layers 70 "
        "--hidden-size 14336 --num-attention-heads 112 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 12 "
        "--micro-batch-size 2 --global-batch-size 2048 --seq-length 2048 --train-iters 100 --lr 6e-5 --bf16 "
        "--checkpoint-activations --pp-partition-method 'type:transformer|embedding'\n"
    )
    report = adopt_files([script], tmp_path / "bloom.yaml")
    carried = values(report.adopted)
    assert (carried["parallel.first_stage_layers"], carried["parallel.last_stage_layers"]) == (5, 5)
    assert report.refused == ""
    assert any(
        text.startswith("framework megatron-deepspeed") for text in leftovers(report.adopted)
    )


def test_a_rank_for_each_task_of_srun_has_a_device():
    adoption = adopted(f"#SBATCH --nodes 8\n#SBATCH --ntasks-per-node=4\nsrun python {TRAIN}\n")
    assert values(adoption)["jobs.training.devices_per_node"] == 4
    one_task = adopted(f"#SBATCH --nodes 8\n#SBATCH --ntasks-per-node=1\nsrun torchrun {TRAIN}\n")
    assert "jobs.training.devices_per_node" not in values(one_task)

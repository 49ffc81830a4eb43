"""Forms of jobs that people have written: other queues, ranks, loops, wrappers, and files that
contain what the options do not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from suite.messages import refuses, says

from runbook.core.errors import ParamsError
from runbook.jobs.script_directives import directives_of, late_directives
from runbook.tools.adopt import sandbox
from runbook.tools.adopt.adopt_scripts import AdoptReport
from runbook.tools.adopt.adopt_scripts import adopt as adopt_files
from runbook.tools.adopt.adoption import Adoption, adopt
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.proof import OptionVerdict

PROJECT = Path(__file__).parents[3]
MODEL = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024"
TRAIN = f"pretrain_gpt.py {MODEL} --micro-batch-size 2 --train-iters 10 --lr 1e-4 --bf16"


def adopted(script: str, beside: dict[str, str] | None = None) -> Adoption:
    return adopt([("job.sh", script)], "mine", PROJECT, beside)


def values(adoption: Adoption) -> dict[str, object]:
    return {carried.key: carried.value for carried in adoption.findings.carried.values()}


def refusal(script: str) -> str:
    with pytest.raises(ParamsError) as refused:
        adopted(script)
    return str(refused.value)


def report_of(folder: Path, script: str) -> AdoptReport:
    """Adopt a script from a file, as the command does."""
    path = folder / "job.sh"
    path.write_text(script)
    return adopt_files([path], folder / "out.yaml", replace=True)


GRID_ENGINE = """#!/bin/bash
#$ -l rt_AF=4
#$ -l h_rt=2:12:00:00
#$ -j y
#$ -cwd
#$ -p -5
mpirun -np $((NHOSTS * 8)) --npernode 8 -hostfile $SGE_JOB_HOSTLIST python """


def test_nodes_and_time_that_grid_engine_is_asked_for_are_carried_over():
    adoption = adopted(GRID_ENGINE + TRAIN)
    carried = values(adoption)
    assert carried["jobs.training.nodes"] == 4
    assert carried["jobs.training.walltime"] == "60:00:00"
    (mpirun,) = [command for command in adoption.script.commands if command.name == "mpirun"]
    assert [word.text for word in mpirun.words[1:3]] == ["-np", "32"]
    leftovers = {remark.text: remark.why for remark in adoption.findings.leftovers}
    assert leftovers["#$ p=-5"] == AdoptMessage.FOR_ANOTHER_QUEUE.fill(
        queue="Grid Engine", scheduler="slurm"
    )


def test_nodes_and_time_that_fujitsus_queue_is_asked_for_are_carried_over():
    head = '#!/bin/bash\n#PJM -L "rscgrp=large,node=2x3x4"\n#PJM -L elapse=02:00:00\n#PJM -j\n'
    carried = values(adopted(f"{head}mpiexec -n 24 python {TRAIN}"))
    assert carried["jobs.training.nodes"] == 24
    assert carried["jobs.training.walltime"] == "02:00:00"
    assert carried["jobs.training.partition"] == "large"


OTHER_QUEUES = {
    '#OAR -l /nodes=2/gpu=4,walltime=1:30\n#OAR -p cluster="x"': (
        2,
        "01:30:00",
        "#OAR -p=cluster=x",
    ),
    "#COBALT -n 2 -t 90 -A me\n#COBALT --attrs filesystems=home": (
        2,
        "01:30:00",
        "#COBALT -attrs=filesystems=home",
    ),
    "#MSUB -l nodes=2:ppn=8,walltime=1:30:00": (2, "01:30:00", "#MSUB -l nodes=2:ppn=8"),
    "#MSUB -N 2\n#MSUB -T 5400\n#MSUB -x": (2, "01:30:00", "#MSUB -x"),
    "#flux: -N 2 -t 90m\n#flux: -n 32": (2, "01:30:00", "#flux: -n=32"),
    "#DSUB -N 2\n#DSUB -R gpu=8": (2, None, "#DSUB -R=gpu=8"),
    "#PBS -l nodes=2:ppn=4,walltime=1:30:00": (4, "01:30:00", "#PBS -l nodes=2:ppn=4"),
}
"""Requests, with the resulting nodes and time, and the request that is left over.

Nodes have 8 devices, and those of the PBS site have 4.
"""


@pytest.mark.parametrize("requests", OTHER_QUEUES)
def test_requests_of_other_queues_are_carried_over_or_named(requests):
    nodes, walltime, leftover = OTHER_QUEUES[requests]
    adoption = adopted(f"#!/bin/bash\n{requests}\ntorchrun --nproc_per_node 8 {TRAIN}")
    carried = values(adoption)
    assert carried["jobs.training.nodes"] == nodes
    assert carried.get("jobs.training.walltime") == walltime
    assert leftover in [remark.text for remark in adoption.findings.leftovers]


STARTED_IN = {
    "a branch for each rank": f"""
case $OMPI_COMM_WORLD_LOCAL_RANK in
  0) numactl --cpunodebind=0 python {TRAIN} ;;
  1) numactl --cpunodebind=1 python {TRAIN} ;;
esac""",
    "a loop over ranks": f"""
for ((rank = 0; rank <= $((GPUS_PER_NODE - 1)); rank++)); do
  RANK=$rank python {TRAIN} &
done
wait""",
    "a sequence of ranks": f"""
for rank in $(seq 0 $((DEVICES - 1))); do
  RANK=$rank python {TRAIN}
done""",
    "a file of the working folder": f"/opt/mpi/bin/mpirun -np 4 --wdir /code start.sh {TRAIN}",
    "a script that sets its PATH": f"export PATH=/usr/bin:/bin\ntorchrun {TRAIN}",
    "a script that prints by default": f"""
DRY_RUN=${{DRY_RUN:-1}}
command=(torchrun {TRAIN})
if [ "$DRY_RUN" -eq 1 ]; then echo "${{command[@]}}"; exit 0; fi
"${{command[@]}}" """,
    "coverage": f"coverage run --branch -a --source=/w {TRAIN}",
    "a job of ray": f"ray job submit --address http://a:8265 -- python {TRAIN}",
    "a script that needs a name": f"""
set -euo pipefail
: "${{BUCKET:?must be set}}"
export LOGS=/logs/$BUCKET/run
torchrun {TRAIN}""",
}


@pytest.mark.parametrize("form", STARTED_IN)
def test_a_training_is_seen_in(form):
    adoption = adopted(STARTED_IN[form], {"start.sh": 'python "$@"\n'})
    assert values(adoption)["training.iterations"] == 10
    assert adoption.launch is not None
    assert adoption.launch.script.text.endswith("pretrain_gpt.py")


def test_a_loop_that_has_a_count_runs_as_often_as_it_says():
    script = f"for ((seed = 1; seed < 4; seed++)); do torchrun {TRAIN} --seed $seed; done"
    assert len(adopted(script).launches) == 3


@pytest.mark.parametrize(
    "program", ["deepspeed_to_hf_llama.py", "megatron_gpt_generate.py", "inference_gpt.py"]
)
def test_a_program_that_converts_or_answers_is_refused_by_its_name(program):
    assert f"It starts {program}" in refusal(f"deepspeed tools/{program} {MODEL} --bf16")


def test_a_script_that_reads_a_documents_names_and_starts_its_own_program_is_not_that_document():
    script = """NUM_LAYERS=4
HIDDEN_SIZE=512
python my_model.py --num-layers $NUM_LAYERS --hidden-size $HIDDEN_SIZE
echo model.tensor_model_parallel_size=${TENSOR_MODEL_PARALLEL_SIZE} ${PIPELINE_MODEL_PARALLEL_SIZE}"""
    assert says(refusal(script), AdoptMessage.NO_TRAINING_STARTED, file_name="job.sh")


def test_a_reinforcement_learning_job_is_called_one():
    script = (
        "ray job submit -- python -m rl.launch --rollout-batch-size 8 --advantage-estimator grpo"
    )
    learning = {"does": "trains with", "whose": "reinforcement learning"}
    assert says(refusal(script), AdoptMessage.NOT_A_GPT, **learning)


YQ = f"""layers=$(yq '.training.num_layers' model.yaml)
hidden=$(yq -r .training.hidden elsewhere.yaml)
torchrun pretrain_gpt.py --num-layers $layers --hidden-size $hidden --num-attention-heads 12 --train-iters 10
torchrun {TRAIN} --num-layers $layers"""


def test_a_value_that_yq_reads_comes_from_the_file_at_hand():
    page = "# sizes\nnum_layers: 1\ntraining:\n  deep:\n    num_layers: 2\n  num_layers: 24 # of them\n"
    adoption = adopted(YQ, {"model.yaml": page})
    assert values(adoption)["training.shape.layers"] == 24
    first = [word.shown for word in adoption.launches[0].arguments]
    assert first[1] == "24"
    assert first[3] == "$training_hidden"


def test_a_training_whose_model_a_file_elsewhere_says_does_not_pass(tmp_path):
    report = report_of(tmp_path, "torchrun --nproc_per_node 8 pretrain_gpt.py --config gpt.yaml\n")
    assert report.check.startswith("the model is not known (")
    assert AdoptMessage.FILE_MAY_SAY_IT.fill(files="gpt.yaml") in report.check
    assert "model" in report.adopted.required
    nemo = "python megatron_gpt_pretraining.py --config-name=mine trainer.devices=8 trainer.num_nodes=2\n"
    assert report_of(tmp_path, nemo).check.startswith("the model is not known (the file mine")


def test_a_folder_of_somebodys_home_is_no_path_of_the_run_file(tmp_path):
    script = f"torchrun {TRAIN} --data-path ~/data/text_document --save ~/checkpoints\n"
    report = report_of(tmp_path, script)
    assert "data.folder" not in values(report.adopted)
    assert "/person" not in report.as_text() + report.adopted.text
    (row,) = [row for row in report.proof if row.option == "--data-path"]
    assert row.script == "~/data/text_document"


def test_one_task_a_node_that_starts_its_own_ranks_is_not_one_device_a_node():
    starter = "python -m torch.distributed.run --nnodes 2 --nproc_per_node $(nvidia-smi -L | wc -l)"
    adoption = adopted(f"mpiexec -n 2 -ppn 1 {starter} {TRAIN}")
    assert values(adoption).get("jobs.training.devices_per_node", 8) == 8
    two_ranks_a_node = adopted(f"mpiexec -n 8 -ppn 2 python {TRAIN}")
    assert values(two_ranks_a_node)["jobs.training.devices_per_node"] == 2


def test_files_and_sizes_of_another_vocabulary_are_not_called_gpt2s(tmp_path):
    words = "--tokenizer-type MyTokenizer --vocab-file v.json --vocab-size 32000 --data-path"
    proof = {row.option: row for row in report_of(tmp_path, f"torchrun {TRAIN} {words}\n").proof}
    assert "MyTokenizer" in proof["--vocab-file"].why
    size = proof["--vocab-size"]
    assert says(size.why, AdoptMessage.VOCABULARY_OF_MODEL, vocabulary=50257)
    assert proof["--data-path"].verdict is OptionVerdict.CHANGED
    no_value = AdoptMessage.NO_VALUE.fill(key="data.folder, or data.dataset")
    assert proof["--data-path"].why == no_value


def test_files_that_a_job_names_from_the_top_of_its_checkout_are_at_hand(tmp_path):
    checkout = tmp_path / "checkout"
    for folder in (".git", "jobs/small", "configs", "jobs/common"):
        (checkout / folder).mkdir(parents=True)
    (checkout / "configs/model.sh").write_text("source configs/more.sh\n")
    (checkout / "configs/more.sh").write_text(f"MODEL='{MODEL}'\n")
    (checkout / "jobs/common/time.sh").write_text("STEPS=70\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/steps.sh").write_text("STEPS=90\n")
    job = checkout / "jobs/small/job.sh"
    job.write_text(
        "source configs/model.sh\nsource ../common/time.sh\nsource outside/steps.sh\n"
        "torchrun pretrain_gpt.py $MODEL --micro-batch-size 2 --train-iters $STEPS --bf16\n"
    )
    carried = values(adopt_files([job], tmp_path / "out.yaml").adopted)
    assert carried["training.iterations"] == 70
    assert carried["model"] == "125m"
    (checkout / ".git").rmdir()  # no checkout, so only files next to the script are read
    assert "training.shape.layers" not in values(
        adopt_files([job], tmp_path / "out.yaml", replace=True).adopted
    )


NEMO_FILE = """
trainer:
  devices: 8
  num_nodes: 2
  max_steps: 77
model:
  micro_batch_size: 2
  global_batch_size: 64
  encoder_seq_length: 1024
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 12
  hidden_size: 768
  ffn_hidden_size: 3072
  num_attention_heads: 12
  tensor_model_parallel_size: ???
  optim:
    betas: [0.9, 0.98]
"""


@pytest.mark.parametrize(
    "options",
    ["--config-path=conf --config-name=mine", "-cp conf -cn mine", "-cp=conf -cn=mine"],
)
def test_nemos_own_file_at_hand_is_read_before_the_overrides(options):
    script = f"python /w/megatron_gpt_pretraining.py {options} trainer.max_steps=88\n"
    adoption = adopted(
        script, {"conf/mine.yaml": NEMO_FILE, "old/mine.yaml": "trainer: {devices: 1}"}
    )
    carried = values(adoption)
    assert carried["training.iterations"] == 88
    assert carried["jobs.training.nodes"] == 2
    assert carried["training.adam_beta2"] == 0.98
    assert adoption.findings.unknown_model == ""
    assert "model" not in adoption.required


def test_a_training_at_hand_that_is_watched_is_not_run():
    program = "#!/usr/bin/env python3\nraise SystemExit(3)\n"
    adoption = adopted(f"coverage run {TRAIN}", {"pretrain_gpt.py": program})
    assert values(adoption)["training.iterations"] == 10


def test_an_argument_that_was_not_given_stays_visible_in_paths(tmp_path):
    report = report_of(
        tmp_path, f"DATA=/data/$2/text_document\ntorchrun {TRAIN} --data-path $DATA\n"
    )
    (row,) = [row for row in report.proof if row.option == "--data-path"]
    assert row.script == "/data/$argument_2/text_document"
    assert "data.folder" not in values(report.adopted)
    assert says(report.as_text(), AdoptMessage.ARGUMENTS_NOT_GIVEN, job="job.sh", number=2)


def test_token_files_of_every_spelling_are_accounted_for(tmp_path):
    report = report_of(tmp_path, f"torchrun {TRAIN} --train-data-path /data/text_document\n")
    assert values(report.adopted)["data.folder"] == "/data/text_document"
    assert report.check == "passes"


def test_devices_that_jsrun_counts_are_carried_over():
    jsrun = "jsrun --nrs 48 --tasks_per_rs 1 --gpu_per_rs 1 --rs_per_host 6"
    carried = values(adopted(f"#BSUB -nnodes 8\n{jsrun} python {TRAIN}"))
    assert carried["jobs.training.nodes"] == 8
    assert carried["jobs.training.devices_per_node"] == 6


def test_overrides_reach_what_refers_to_them_in_nemos_file(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/mine.yaml").write_text(NEMO_FILE.replace("???", "1"))
    launch = "torchrun --nproc_per_node=8 /w/megatron_gpt_pretraining.py --config-path=conf --config-name mine.yaml"
    report = report_of(tmp_path, f"{launch} model.encoder_seq_length=4096\n")
    assert values(report.adopted)["training.sequence_length"] == 4096
    assert report.check == "passes"
    assert "parallel.virtual_pipeline" not in values(
        report.adopted
    )  # the base has it, and more stages


def test_nemos_launcher_without_a_size_is_nemos(tmp_path):
    words = (
        "training==mixtral/8x3b stages=[training] training.model.gradient_accumulation_fusion=True"
    )
    report = report_of(
        tmp_path, f"python launcher_scripts/main.py {words} training.trainer.max_steps=5\n"
    )
    assert report.adopted.framework == "nemo"
    assert report.check.startswith("the model is not known")


@pytest.mark.parametrize(
    ("comment", "is_read"),
    [("SBATCH -", False), ("PBS ", False), ("BSUB ", True), ("$ ", True), ("PJM ", True)],
)
def test_requests_below_the_first_command_count_where_the_queue_reads_them(comment, is_read):
    head = f"#!/bin/bash\n\n  # words\n#{comment}-first=2\n"
    script = f"{head}module load x\n#{comment}-late=8\n"
    assert len(directives_of(head)) == 1
    assert len(directives_of(script)) == 1 + is_read
    assert [entry.line for entry in late_directives(script)] == [6] * (not is_read)


def test_requests_that_the_queue_does_not_read_are_said():
    command = "torchrun pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12"
    other = "cat > other.sh <<'EOF'\n#SBATCH --nodes=32\nEOF"
    head = "#!/bin/bash\n#SBATCH --nodes=2"
    script = f"{head}\nmodule load x\n#SBATCH --nodes=64\n{other}\n{command}\n"
    adoption = adopted(script)
    assert values(adoption)["jobs.training.nodes"] == 2
    assert "(line 4)" in " ".join(adoption.script.notes)


REQUESTS = {
    "#OAR -l {mem_core > 3000}/nodes=2/gpu=1,walltime=4:00:00": {
        "l": "{mem_core > 3000}",
        "nodes": "2",
        "gpu": "1",
        "walltime": "4:00:00",
    },
    "#OAR -l /cluster=2/nodes=4/gpu=8": {"cluster": "2", "nodes": "8", "gpu": "8"},
    "#OAR -l /switch=BEST/nodes=4": {"switch": "BEST", "nodes": "BEST x 4"},
    "#OAR -l /nodes=1+/nodes=2,walltime=2": {"nodes": "/nodes=1+/nodes=2", "walltime": "2"},
    "#DSUB -nn 4": {"nn": "4"},
    "#DSUB -oo out -N 4": {"oo": "out", "N": "4"},
    "# flux: -N4": {"N": "4"},
    "#FLUX:-N4": {"N": "4"},
}


@pytest.mark.parametrize("request_line", REQUESTS)
def test_no_word_of_a_request_is_lost(request_line):
    directives = directives_of(request_line)
    assert {entry.name: entry.value for entry in directives} == REQUESTS[request_line]


@pytest.mark.parametrize("request_text", ["nodes=4:ppn=8:gpus=4+2:ppn=4", "select=4:x=8+2:x=4"])
def test_nodes_of_several_kinds_are_reported(request_text):
    adoption = adopted(f"#PBS -l {request_text}\ntorchrun --nproc_per_node 8 {TRAIN}")
    assert values(adoption)["jobs.training.nodes"] == 2  # one node of 8 devices becomes nodes of 4
    amount = request_text.partition("=")[2]
    assert any(amount in remark.text for remark in adoption.findings.leftovers)


def test_a_limit_of_time_that_nothing_sets_hides_no_training():
    adoption = adopted(f'timeout -k 30 "${{LIMIT}}m" torchrun {TRAIN}\n')
    assert adoption.launch is not None
    assert values(adoption)["training.iterations"] == 10


def test_timeout_ends_a_command_that_waits():
    adoption = adopted(f"timeout -s KILL 0.2 sh -c 'while :; do :; done'\ntorchrun {TRAIN}\n")
    assert adoption.launch is not None
    assert adoption.script.notes == ()


@pytest.mark.parametrize("name", ["RUN_NAME", "DEBUG"])
def test_a_name_that_a_script_requires_for_itself_is_a_marker(name):
    script = f'set -e\n{name}="${{{name}:?not given}}"\ntorchrun {TRAIN} --save /ckpt/${name}\n'
    beside = {"notes.txt": f"{name}=in-a-list", "first.sh": f"export {name}=first\nbash job.sh\n"}
    adoption = adopted(f"# started by first.sh, see notes.txt\n{script}", beside)
    assert adoption.launch is not None
    assert adoption.launch.arguments[-1].shown == f"/ckpt/${name}"


def test_an_option_that_the_shell_starts_as_a_program_is_named():
    adoption = adopted(f"torchrun {TRAIN} \\\n --seed 7\n --swiglu --clip-grad 0.5\n")
    assert values(adoption)["training.seed"] == 7
    assert "training.clip_gradient" not in {
        carried.key for carried in adoption.findings.carried.values() if carried.line
    }
    assert any("--swiglu" in note and "line 3" in note for note in adoption.script.notes)


def test_a_script_that_chooses_by_its_argument_takes_its_first_branch():
    script = (
        '[ -n "$1" ] || exit 1\n'
        'case "$1" in\n'
        "  help) exit 0 ;;\n"
        "  small|tiny) STEPS=20 ;;\n"
        '  "large") STEPS=30 ;;\n'
        "  *) exit 2 ;;\n"
        "esac\n"
        f"torchrun {TRAIN} --train-iters $STEPS\n"
    )
    adoption = adopted(script)
    assert values(adoption)["training.iterations"] == 20
    assert any("small" in note for note in adoption.script.notes)


@pytest.mark.parametrize("first", ["install", "build-image", "test"])
def test_a_branch_that_only_prepares_is_not_the_choice(first):
    branches = f"  {first}) exit 0 ;;\n  testbed) STEPS=20 ;;\n  *) exit 2 ;;\n"
    head = f'[ -n "$1" ] || exit 1\ncase "$1" in\n{branches}esac\n'
    adoption = adopted(f"{head}torchrun {TRAIN} --train-iters $STEPS\n")
    assert values(adoption)["training.iterations"] == 20
    assert any("testbed" in note for note in adoption.script.notes)


def test_a_script_whose_branches_all_prepare_takes_its_first():
    script = 'case "$1" in\n  help) exit ;;\n  install) STEPS=1 ;;\n  build) STEPS=2 ;;\nesac\n'
    job = sandbox.SandboxJob("job.sh", {"job.sh": script}, ())
    assert sandbox.first_choice(job) == ["install"]


def test_a_case_without_an_end_is_read_in_a_moment():
    many = "case $1 in\n" * 20_000
    assert sandbox.first_choice(sandbox.SandboxJob("job.sh", {"job.sh": many}, ())) == []


def test_a_configuration_in_the_home_folder_is_named():
    script = (
        "torchrun --nproc_per_node 4 $HOME/nanotron/run_train.py --config-file $HOME/conf/a.yaml\n"
    )
    assert says(refusal(script), AdoptMessage.CONFIGURATION_READABLE, files="~/conf/a.yaml")


@pytest.mark.parametrize("options", ["-e", "-u", "-euo pipefail"])
def test_a_training_inside_a_strict_shell_is_seen(options):
    adoption = adopted(f"bash -c '\n  set {options}\n  echo begin\n  torchrun {TRAIN}'\n")
    assert adoption.launch is not None
    assert values(adoption)["training.iterations"] == 10


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        (
            "from megatron.bridge.recipes.llama import llama3_8b_pretrain_config\n",
            "Megatron Bridge",
        ),
        ("import torch\nfrom nemo.collections import llm\n", "a recipe of NeMo 2"),
    ],
)
def test_a_recipe_that_a_script_starts_is_named_by_what_it_imports(source, framework):
    config = AdoptMessage.CONFIGURATION_READABLE.fill(files="my_pretrain.py")
    with refuses(ParamsError, AdoptMessage.NOT_A_GPT, whose=framework, config=config):
        adopted("torchrun --nproc_per_node 8 my_pretrain.py\n", {"my_pretrain.py": source})


def test_a_converter_of_weights_is_no_training():
    words = TRAIN.partition(" ")[2]
    with pytest.raises(ParamsError) as refused:
        adopted(f"torchrun hf2megablocks_v2.py {words}\n")
    assert "hf2megablocks_v2.py" in str(refused.value)


NEEDS_ITS_MACHINE = f"""#!/bin/bash
set -eu
GPU_TYPE=${{GPU_TYPE:?is required}}
GPU_TYPE=${{GPU_TYPE,,}}
if [[ $GPU_TYPE == "x100" ]]; then
  exit 1
fi
torchrun --nproc_per_node 8 {TRAIN} --wandb-exp-name $GPU_TYPE
"""


def test_a_variable_without_which_a_script_ends_gets_a_marker_although_it_is_changed():
    adoption = adopted(NEEDS_ITS_MACHINE)
    assert values(adoption)["training.iterations"] == 10
    assert adoption.launch is not None
    name = adoption.launch.arguments[-1]
    assert (name.shown, name.known) == ("$gpu_type", False)


def test_an_empty_count_of_mpirun_does_not_hide_the_program():
    script = f"#!/bin/bash\nmpirun -np $NOTHING --npernode -hostfile hosts -x PATH python {TRAIN}"
    adoption = adopted(f"{script}\n", {"hosts": "node1\n"})
    assert values(adoption)["training.iterations"] == 10


def test_variables_that_stand_for_options_and_that_nothing_sets_are_named(tmp_path):
    start = f"torchrun --nproc_per_node 8 {TRAIN}"
    script = f'#!/bin/bash\nsource conf/more.sh\n{start} "${{MOE_ARGS[@]}}" --log-interval $EVERY\n'
    report = report_of(tmp_path, script)
    assert report.check == AdoptMessage.UNSET_ARGUMENTS.fill(
        variables="$MOE_ARGS",
        files=AdoptMessage.UNSET_BECAUSE_OF_FILES.fill(files="conf/more.sh"),
    )
    complete = f"#!/bin/bash\nsource venv/bin/activate\n{start} --log-interval $EVERY\n"
    assert report_of(tmp_path, complete).check == "passes"


def test_a_script_that_starts_another_program_is_no_block_of_exports():
    exports = "export MODEL_SIZE=126m IMAGE=nvcr.io#nvidia/nemo:24 MAX_STEPS=5\n"
    assert adopted(exports).base == "aws-pile-175b"
    with refuses(ParamsError, AdoptMessage.NO_TRAINING_STARTED, file_name="job.sh"):
        adopted(f"{exports}python prepare_cluster_setup.py --all\n")
    with refuses(ParamsError, AdoptMessage.NOT_A_GPT, whose="Megatron Bridge"):
        adopted(f"{exports}python setup_experiment.py --model_recipe_name llama3_8b\n")


SWEPT = f"#!/bin/bash\n#SBATCH --nodes=2\nRATE=${{1:-$LR}}\ntorchrun {TRAIN} --lr $RATE\n"
SWEEPS = {
    "exported": "export LR=$rate\n  sbatch train.sh",
    "by an option": "sbatch --export=ALL,LR=$rate train.sh",
    "by a word": "sbatch --export ALL,LR=$rate train.sh",
    "by qsub": "qsub -v LR=$rate train.sh",
    "as an argument": "sbatch --time=1:00:00 ./train.sh $rate",
}


@pytest.mark.parametrize("form", SWEEPS)
def test_a_sweep_passes_its_values_to_the_jobs_and_all_are_counted(form):
    script = f"#!/bin/bash\nfor rate in 1e-4 3e-4 6e-4; do\n  {SWEEPS[form]}\ndone\n"
    adoption = adopted(script, {"train.sh": SWEPT})
    assert values(adoption)["training.learning_rate"] == 6e-4
    note = AdoptMessage.SEVERAL_SUBMITTED.fill(job="job.sh", number=3)
    assert note in adoption.script.notes


def test_a_single_submitted_job_is_not_counted():
    adoption = adopted("#!/bin/bash\nLR=1e-4 sbatch train.sh\n", {"train.sh": SWEPT})
    assert values(adoption)["training.learning_rate"] == 1e-4
    assert not any(says(note, AdoptMessage.SEVERAL_SUBMITTED) for note in adoption.script.notes)

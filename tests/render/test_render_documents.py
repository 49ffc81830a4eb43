"""The errors in the five documents do not appear in our scripts, and a check prevents people from
repeating them.
"""

import json
import re
import shlex

import pytest
from sites import NAMES, PHASES, PROJECT, RUNS, rendered, settings_of
from suite.messages import check_about, refuses
from suite.scripts import (
    array_of,
    command_of,
    commands_of,
    directives_of,
    environment_of,
    options_of,
    unset_in,
)

from runbook.core.errors import PlanError
from runbook.jobs.messages import JobMessage, JobReason
from runbook.params.messages import ParamsMessage
from runbook.plan_file.phase_names import FULL
from runbook.planning import make_plan
from runbook.planning.messages import PlanningMessage
from runbook.planning.plan_tables import CHECKPOINT_DISK, CHECKPOINT_INTERVAL, storage_table
from runbook.planning.rule_codes import PlanCode


def option(arguments, name):
    """Return the values after an option."""
    start = arguments.index(name) + 1
    end = next(
        (i for i in range(start, len(arguments)) if arguments[i].startswith("--")), len(arguments)
    )
    return arguments[start:end]


def labels(name, *words):
    return {entry.model: entry for entry in make_plan(settings_of(name, *words)).labels}


def test_all_thirty_two_are_listed_each_with_its_kind():
    page = (PROJECT / "docs" / "errors-in-the-documents.md").read_text()
    rows = [line.strip("|").split(" | ") for line in page.splitlines() if re.match(r"\| \d", line)]
    assert [int(row[0]) for row in rows] == list(range(1, 33))
    assert {row[-1].strip() for row in rows} == {"right", "guard", "text"}
    assert {len(row) for row in rows} == {6} and all(cell.strip() for row in rows for cell in row)


@pytest.mark.parametrize(
    ("variant", "model", "count"), [("smoke", "375m", 64_633_856), ("857m", "857m", 355_919_872)]
)
def test_1_and_2_the_labels_are_shown_with_their_counts(variant, model, count):
    entry = labels(f"azure-175b:{variant}")[model]
    assert (entry.parameters, entry.fits) == (count, False)


def test_3_and_10_seventy_four_files_of_which_fifteen_validate_and_fifteen_test():
    _, _, job = rendered("azure-175b", "04-training")
    parts = {
        name: option(job.arguments, f"--{name}-data-path")[1::2]
        for name in ("train", "valid", "test")
    }
    assert {name: len(files) for name, files in parts.items()} == {
        "train": 44,
        "valid": 15,
        "test": 15,
    }
    assert len({file for files in parts.values() for file in files}) == 74


def test_4_intervals_reach_the_program():
    _, _, job = rendered(
        "azure-175b", "04-training", "training.save_interval=77", "training.eval_interval=33"
    )
    assert (option(job.arguments, "--save-interval"), option(job.arguments, "--eval-interval")) == (
        ["77"],
        ["33"],
    )


def test_6_a_named_image_is_used():
    _, _, job = rendered("azure-175b", "04-training", "jobs.image=/mnt/nvme/striped.sqsh")
    assert "--container-image=/mnt/nvme/striped.sqsh" in job.script


@pytest.mark.parametrize("run", [run for run in RUNS if run != "aws-pile-175b"])
def test_13_merges_are_not_the_vocabulary(run):
    _, _, job = rendered(run, "04-training")
    vocabulary = option(job.arguments, "--vocab-file")
    merges = option(job.arguments, "--merge-file")
    assert (vocabulary[0].rpartition("/")[2], merges[0].rpartition("/")[2]) == (
        "vocab.json",
        "merges.txt",
    )


@pytest.mark.parametrize("run", RUNS)
def test_14_smoke_and_full_share_no_checkpoint(run):
    folders = {rendered(run, phase)[1].checkpoint.folder for phase in PHASES}
    assert len(folders) == 2


def test_15_devices_that_do_not_divide_are_refused():
    with pytest.raises(PlanError) as caught:
        rendered("lumi-13b", "04-training", "parallel.tensor=3", "parallel.pipeline=1")
    groups = PlanningMessage.GROUPS_OF_DEVICES.fill(group=3)
    check_about(caught.value.checks, PlanCode.WORLD_SIZE, FULL, world_size=16, groups=groups)


def test_16_state_that_does_not_fit_is_refused():
    with pytest.raises(PlanError) as caught:
        rendered("lumi-13b:13b-1n-dp8-zero1", "04-training")
    needs = {"states": "65.8 GiB", "available": "64.0 GiB"}
    check_about(caught.value.checks, PlanCode.MEMORY_FITS, FULL, **needs)


@pytest.mark.parametrize("run", RUNS)
def test_18_and_19_nodes_have_one_origin_and_one_step_trains(run):
    settings, spec, job = rendered(run, "04-training")
    nodes = settings.job("04-training").nodes
    starts = re.findall(r"^(srun|mpiexec)\b", job.script, re.M)
    assert len(starts) == 1 + bool(settings.site.node_setup)
    reason = JobReason.FEWER_NODES_GRANTED.fill(granted="${#hosts[@]}", nodes=nodes)
    guard = r'(?m)^\(\(\$\{#hosts\[@\]\} == (\d+)\)\) \|\| refuse "(.*)"$'
    assert re.findall(guard, job.script) == [(str(nodes), reason)]
    assert spec.parallel.world_size == nodes * settings.job("04-training").devices_per_node


def test_21_22_and_24_polaris_runs_the_pinned_script_in_the_environment_that_was_made():
    settings, _, job = rendered("polaris-25b", "04-training")
    assert settings.site.frameworks["megatron-deepspeed"].commit.startswith("6bcac4ee")
    assert "/pretrain_gpt_alcf.py" in job.files["rank.sh"]
    assert ["module", "load", "conda/2023-10-04"] in commands_of(job.script, "module")
    (activation,) = commands_of(job.script, "source")
    assert activation[1].endswith("/venvs/polaris/2023-10-04/bin/activate")


def test_25_gpt25b_is_shown_as_what_it_is_and_tensor_outside_a_node_is_warned_of():
    plan = make_plan(settings_of("polaris-25b"))
    assert 29.2e9 < labels("polaris-25b")["gpt25b"].parameters < 29.5e9
    check = next(
        check for check in plan.checks if check.name == "04-training: tensor inside a node"
    )
    assert check.verdict == "warn"


def test_27_what_is_saved_has_a_place_and_one_dynamic_loss_scale():
    _, _, job = rendered("slurm-oscar", "04-training")
    assert option(job.arguments, "--save") == option(job.arguments, "--load")
    assert "--loss-scale" not in job.arguments
    config = next(json.loads(text) for name, text in job.files.items() if name.endswith(".json"))
    assert config["fp16"]["loss_scale"] == 0
    assert "#SBATCH --gpus-per-node=8\n" in job.script


def test_no_two_jobs_share_a_deepspeed_file_unless_it_is_the_same():
    seen = {}
    for name in (name for name in NAMES if name != "lumi-13b:13b-1n-dp8-zero1"):
        for phase in PHASES:
            _, _, job = rendered(name, phase)
            for file, text in job.files.items():
                if file.endswith(".json"):
                    assert seen.setdefault(file, text) == text


@pytest.mark.parametrize("run", RUNS)
def test_the_port_comes_from_the_jobs_number_and_the_host_from_the_queues_list(run):
    settings, _, job = rendered(run, "04-training")
    hosts = {"hosts": "node7", "job_number": "16390"}
    environment = environment_of(job.script, variables=hosts)
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("node7", "49158")
    (source,) = re.findall(r"(?m)^mapfile -t hosts < <\((.*)\)$", job.script)
    queues_list = {
        "pbs": ["awk", "!seen[$0]++", "$PBS_NODEFILE"],
        "slurm": ["scontrol", "show", "hostnames", "$SLURM_JOB_NODELIST"],
    }
    assert shlex.split(source) == queues_list[settings.site.scheduler]


def test_a_group_of_the_environment_is_switched_by_name():
    _, _, without = rendered("azure-175b", "04-training")
    _, _, sharp = rendered("azure-175b", "04-training", "jobs.switch=+sharp -network")
    assert "SHARP_COLL_ENABLE_SAT" not in without.script and "UCX_TLS" in without.script
    assert "export SHARP_COLL_ENABLE_SAT=1\n" in sharp.script and "UCX_TLS" not in sharp.script


def test_the_plugin_block_of_polaris_is_unset_or_set():
    _, _, off = rendered("polaris-25b", "04-training")
    _, _, on = rendered("polaris-25b", "04-training", "jobs.switch=+plugin -no-plugin")
    assert "NCCL_NET" in unset_in(off.script) & unset_in(off.files["rank.sh"])
    assert "NCCL_NET" not in environment_of(off.script)
    assert environment_of(on.script)["NCCL_NET"] == "AWS Libfabric"
    assert "unset" not in on.files["rank.sh"]


def test_a_group_that_is_not_there_is_named_with_those_that_are():
    with refuses(
        Exception,
        ParamsMessage.UNKNOWN_SWITCH,
        word="+sharpp",
        site="azure",
        groups="megatron, network, sharp, debug",
    ):
        rendered("azure-175b", "04-training", "jobs.switch=+sharpp")


def test_the_deepspeed_launcher_is_for_one_node():
    _, _, job = rendered("slurm-oscar:single-node", "04-training")
    starter = command_of(job.script, "srun")
    module = "deepspeed.launcher.runner"
    place = starter.index(module)
    assert starter[place - 2 : place] == ["python3", "-m"]
    assert starter[place + 1] == "--num_gpus=8"
    with refuses(Exception, JobMessage.LAUNCHER_NEEDS_SSH):
        rendered("slurm-oscar", "04-training", "jobs.launcher=deepspeed")


def test_masks_bind_by_srun_or_by_rank():
    _, _, by_rank = rendered("lumi-13b", "04-training")
    _, _, by_srun = rendered("lumi-13b", "04-training", "jobs.launcher=srun")
    masks = array_of(by_rank.files["rank.sh"], "cores")
    assert masks[:3] == ["0xfe000000000000", "0xfe00000000000000", "0xfe0000"]
    assert len(masks) == 8
    starter = commands_of(by_srun.script, "srun")[-1]
    assert options_of(starter, "srun")["--cpu-bind"] == f"mask_cpu:{','.join(masks)}"
    assert "taskset" not in by_srun.files["rank.sh"]
    assert directives_of(by_srun.script)["ntasks-per-node"] == "8"


def test_our_own_trainer_is_rendered_for_each_site():
    for run in RUNS:
        words = ["training.framework=runbook", "parallel.sequence=false", "training.offload=false"]
        _, _, job = rendered(run, "04-training", *words)
        assert job.arguments == ["plan.json", "--phase", "04-training"]
        program = command_of(job.files["rank.sh"], "python3")
        assert program == ["python3", "-m", "runbook.training", "${arguments[@]}"]
        assert environment_of(job.script)["PYTHONPATH"] == "/project"


def test_the_nodes_own_copy_of_the_image_is_made_and_used():
    _, _, job = rendered("azure-175b", "04-training", "jobs.image_copy=/mnt/nvme")
    (copying, training) = commands_of(job.script, "srun")
    assert copying[-2:] == ["bash", "$job/node.sh"]
    options = options_of(training, "srun", flags=("--no-container-mount-home",))
    assert options["--container-image"] == "/mnt/nvme/pytorch+25.03+py3.sqsh"
    (copied,) = commands_of(job.files["node.sh"], "cp")
    assert copied == ["cp", "--", "$image", "$copy.part.$$"]
    with refuses(Exception, JobMessage.IMAGE_NOT_A_FILE):
        rendered(
            "slurm-oscar", "04-training", "jobs.image_copy=/mnt/nvme", "jobs.image=registry#a:1"
        )


def test_the_image_of_a_site_is_built_from_pinned_versions():
    from runbook.jobs.render.preparation import preparation_files

    for run in ("slurm-oscar", "aws-pile-175b"):
        settings = settings_of(run)
        text = preparation_files(settings)["Dockerfile"]
        assert f"ARG BASE={settings.site.container.recipe.base}\n" in text
        assert all("==" in package for package in settings.site.container.recipe.pip)
    # The newest DeepSpeed and the newest commit that work together, tried with `rehearse
    # --upstream`, 2026-11-26.
    slurm = settings_of("slurm-oscar")
    assert slurm.site.frameworks["megatron-deepspeed"].commit.startswith("6acc370a")
    dockerfile = preparation_files(slurm)["Dockerfile"]
    assert all(word in dockerfile for word in ("deepspeed==0.15.4", "transformers==4.46.3"))
    aws = preparation_files(settings_of("aws-pile-175b"))["Dockerfile"]
    assert all(word in aws for word in ("EFA_INSTALLER=1.19.0", "AWS_OFI_NCCL=1.4.0-aws"))
    assert "nsight" not in aws  # and not in the document's script either


def test_the_throughput_test_of_polaris_has_adams_own_betas_and_saves_nothing():
    settings, _, job = rendered("polaris-25b", "04-training")
    assert option(job.arguments, "--adam-beta2") == ["0.999"]
    assert not {"--save", "--load", "--save-interval"} & set(job.arguments)
    plan = make_plan(settings)
    assert plan.checkpoint["04-training"].disk_bytes == 0
    rows = {row["what"]: row["training"] for row in storage_table(plan).rows}
    assert rows[CHECKPOINT_DISK].split()[:2] == ["0", "B"]
    assert rows[CHECKPOINT_INTERVAL] == PlanningMessage.NOTHING_SAVED.fill()
    config = next(json.loads(text) for name, text in job.files.items() if name.endswith(".json"))
    assert config["wall_clock_breakdown"] is True
    assert config["zero_force_ds_cpu_optimizer"] is False


def test_a_single_stage_runs_in_the_engine_of_its_document():
    for name, wanted in (
        ("slurm-oscar:single-node", False),
        ("lumi-13b:13b-2n-dp16-zero1", True),
        ("polaris-25b", True),
    ):
        assert ("--no-pipeline-parallel" in rendered(name, "04-training")[2].arguments) == wanted
    words = ("parallel.zero_stage=2", "parallel.pipeline=1")
    assert "--no-pipeline-parallel" in rendered("slurm-oscar", "04-training", *words)[2].arguments


@pytest.mark.parametrize("variant", ["real-srun", "real-torchrun"])
def test_a_real_training_on_aws_has_nemos_own_schedule_evaluations_and_checkpoints(variant):
    _, _, job = rendered(f"aws-pile-175b:{variant}", "04-training")
    assert "model.optim.sched.constant_steps=12500" in job.arguments
    assert "model.optim.sched.warmup_steps=115" in job.arguments
    assert "trainer.limit_val_batches=20" in job.arguments
    assert "exp_manager.checkpoint_callback_params.save_top_k=5" in job.arguments
    threads = 12 if variant == "real-srun" else 96
    assert f"#SBATCH --cpus-per-task={threads}\n" in job.script

"""adopt turns someone's job script into a run file that `runbook check` accepts, with line numbers,
leftovers and known errors.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from suite.messages import refuses, says

from runbook import params
from runbook.cli.program import cli
from runbook.core.errors import ParamsError
from runbook.planning import make_plan
from runbook.planning.messages import PlanningMessage
from runbook.tools.adopt.adoption import Adoption, adopt
from runbook.tools.adopt.messages import AdoptMessage

PROJECT = Path(__file__).parents[3]
SAMPLES = PROJECT / "tests" / "samples" / "adopt"
NAMES = sorted(path.name for path in SAMPLES.iterdir())


def read(*names: str, change: dict[str, str] | None = None) -> Adoption:
    """Adopt a sample with some of its text replaced."""
    texts = [(name, (SAMPLES / name).read_text()) for name in names]
    for old, new in (change or {}).items():
        assert any(old in text for _, text in texts), old
        texts = [(name, text.replace(old, new)) for name, text in texts]
    return adopt(texts, "mine", PROJECT)


def values(found: Adoption) -> dict[str, object]:
    return {one.key: one.value for one in found.findings.carried.values()}


def lines(found: Adoption) -> dict[str, int]:
    return {one.key: one.line for one in found.findings.carried.values()}


def numbers(found: Adoption) -> set[int]:
    return {one.number for one in found.errors}


def checked(found: Adoption, folder: Path) -> params.Settings:
    """Read the run file as `runbook check` does, and compute the plan."""
    path = folder / "mine.yaml"
    path.write_text(found.text)
    settings = params.load(str(path), project=PROJECT, portable=True)
    make_plan(settings)
    return settings


@pytest.mark.parametrize("name", [name for name in NAMES if name != "lumi-batch.sh"])
def test_every_sample_becomes_a_run_file_that_check_takes(name, tmp_path):
    assert checked(read(name), tmp_path).run.run == "mine"


def test_lumis_two_scripts_are_one_job(tmp_path):
    found = read("lumi-batch.sh", "lumi-payload.sh")
    wanted = {
        "site": "lumi",
        "model": "13b",
        "parallel.tensor": 2,
        "parallel.pipeline": 2,
        "parallel.zero_stage": 1,
        "training.framework": "megatron-deepspeed",
        "training.tokens": 300_000_000_000,
        "training.warmup_tokens": 3_000_000_000,
        "training.global_batch": 1024,
        "training.recompute": "full",
        "training.attention": "flash1",
        "training.init_std": 0.008,
        "jobs.account": "project_465000000",
        "jobs.training.nodes": 2,
        "jobs.training.walltime": "02:00:00",
    }
    assert {key: values(found).get(key) for key in wanted} == wanted
    assert found.script.places[lines(found)["training.global_batch"]] == "lumi-payload.sh:8"
    assert list(found.required) == ["jobs.stage"]
    assert {19} == numbers(found)
    left = {one.text.split()[0] for one in found.findings.leftovers}
    # module: it loads the document's container, which LUMI has archived; the site file has the
    # nearest current module.
    assert left == {"NCCL_MIN_NCHANNELS=16", "shared", "--log-world-size-to-tensorboard", "module"}
    assert "training.exit_duration" not in values(found)  # 57 years means never
    checked(found, tmp_path)


def test_arrays_defaults_and_branches_are_followed():
    found = read("azure-train.sh")
    wanted = {
        "model": "175b",
        "training.iterations": 1500,
        "data.held_out": 15,
        "data.dataset": "slimpajama",
        "jobs.switch": "+sharp",
        "training.warmup_fraction": 0.001,
        "jobs.training.nodes": 16,
    }
    assert {key: values(found).get(key) for key in wanted} == wanted
    assert lines(found)["training.global_batch"] == 13  # its value's line, not the option's
    assert numbers(found) == {4, 6, 10, 13, 14}
    assert [one.text for one in found.findings.leftovers] == ["--use-sharp"]
    without = read("azure-train.sh", change={"USE_SHARP:-1": "USE_SHARP:-0"})
    assert [one.text for one in without.findings.leftovers] == []


@pytest.mark.parametrize(
    ("old", "new", "gone"),
    [
        (
            "MERGE_FILE:-$STAGE_PATH/slimpajama/bpe/vocab.json",
            "MERGE_FILE:-$STAGE_PATH/slimpajama/bpe/merges.txt",
            13,
        ),
        ("--save-interval 100", '--save-interval "$SAVE_INTERVAL"', 4),
        ('SQUASHED_PYTORCH_IMAGE="', 'SQUASHED_PYTORCH_IMAGE="${SQUASHED_PYTORCH_IMAGE:-}', 6),
        (
            "CHECKPOINT_PATH:-$STAGE_PATH/checkpoints",
            "CHECKPOINT_PATH:-$STAGE_PATH/$HIDDEN_SIZE",
            14,
        ),
    ],
)
def test_an_error_that_was_mended_is_not_told(old, new, gone):
    assert numbers(read("azure-train.sh", change={old: new})) == {4, 6, 10, 13, 14} - {gone}


def test_a_block_of_exports_is_laid_over_the_documents_own_run(tmp_path):
    found = read("azure-exports.sh")
    assert (found.findings.site.site, found.base) == ("azure", "azure-175b")
    assert (values(found)["model"], values(found)["jobs.training.nodes"]) == (
        "175b",
        32,
    )  # the last start counts
    assert values(found)["training.save_interval"] == 10000
    assert values(found)["jobs.stage"] == "/lustre/gpt"
    assert {4, 6, 14} == numbers(found)
    assert [one.text for one in found.findings.leftovers] == ["TEAM_COLOUR=blue"]
    text = (SAMPLES / "azure-exports.sh").read_text().partition("unset")[0]
    smoke = adopt([("smoke.sh", text)], "mine", PROJECT)
    settings = checked(smoke, tmp_path)
    assert make_plan(settings).phases["04-training"].model.parameters == 64_633_856
    assert {1, 14} <= numbers(smoke)
    assert (values(smoke)["parallel.tensor"], values(smoke)["parallel.sequence"]) == (1, False)


def test_several_texts_with_weights_are_left_with_the_blend_to_write():
    line = "torchrun pretrain_gpt.py --num-layers 2 --hidden-size 64 --data-path "
    said = {
        line
        + "0.7 /d/Wiki_en_text_document 0.2 /d/books_text_document 0.1 /d/wiki_en_text_document": "(kind: tokenized, in a separate folder) and set data.blend: wiki-en 0.8, books 0.2",  # noqa: E501
        line
        + "0.5 /d/pile_00_text_document 0.5 /e/oscar_text_document": "data.blend: the-pile 0.5, oscar-1GB 0.5",
    }
    for script, why in said.items():
        found = adopt([("train.sh", script)], "mine", PROJECT)
        assert any(one.why.endswith(why) for one in found.findings.leftovers), (
            found.findings.leftovers
        )
        assert values(found)["data.dataset"] == "tokenized"
    one = adopt(
        [("train.sh", line + "0.5 /d/pile_00_text_document 0.5 /d/pile_01_text_document")],
        "mine",
        PROJECT,
    )
    assert values(one)["data.dataset"] == "the-pile"


def test_a_document_s_knobs_before_a_command():
    found = read("polaris-exports.sh")
    wanted = {
        "model": "gpt13b",
        "training.sequence_length": 2048,
        "training.attention": "flash2",
        "parallel.sequence": True,
        "training.global_batch": 4,
    }
    assert {key: values(found).get(key) for key in wanted} == wanted
    assert numbers(found) == {21, 24}
    pinned = {"module load": "git checkout 6bcac4ee\nmodule load"}
    assert 21 not in numbers(read("polaris-exports.sh", change=pinned))


def test_pbs_mpiexec_and_deepspeeds_file():
    found = read("polaris-job.pbs")
    wanted = {
        "site": "polaris",
        "jobs.account": "mine",
        "jobs.training.nodes": 16,
        "jobs.training.partition": "prod",
        "training.initial_loss_scale": 4096.0,
        "data.folder": "/eagle/mine/books_text_document",
    }
    assert {key: values(found).get(key) for key in wanted} == wanted
    assert numbers(found) == {22, 24, 25}
    assert ["module", "load", "conda/2024-04-29"] in [
        remark.text.split() for remark in found.findings.leftovers
    ]


def test_four_things_that_make_27_and_what_mends_each():
    found = read("slurm-train.slurm")
    assert [(one.number, one.line) for one in found.errors] == [
        (27, 7),
        (27, 18),
        (27, 21),
        (27, 38),
    ]
    mended = read(
        "slurm-train.slurm",
        change={
            "--save-interval 1000": "--save-interval 1000 --save ck",
            "--loss-scale 12 ": "",
            "pytorch:22.02-deepspeed": "registry.example#lab/pytorch:22.02",
            "#SBATCH --hint": "#SBATCH --gpus-per-node=8\n#SBATCH --hint",
        },
    )
    assert numbers(mended) == set()
    assert values(mended)["jobs.image"] == "registry.example#lab/pytorch:22.02"
    assert values(found)["training.loss_scale_window"] == 500
    assert "training.static_loss_scale" not in values(
        found
    )  # DeepSpeed's file, which is the one in use, says dynamic
    static = read(
        "slurm-train.slurm",
        change={'"loss_scale": 0,': "", "--fp16": "--fp16 --rampup-batch-size 8 8 4096"},
    )
    assert values(static)["training.static_loss_scale"] == 12
    assert [
        values(static)[f"training.rampup_{word}"] for word in ("start", "increment", "samples")
    ] == [8, 8, 4096]


def test_nemos_overrides_over_its_own_file():
    found = read("aws-nemo.sbatch")
    wanted = {
        "model": "nemo-175b",
        "training.framework": "nemo",
        "training.iterations": 40,
        "training.save_interval": 0,
        "training.learning_rate": 1.2e-4,
        "jobs.stage": "/fsx",
        "jobs.training.nodes": 16,
        "jobs.image": "/apps/nemo.sqsh",
        "jobs.launcher": "torchrun",
    }
    assert {key: values(found).get(key) for key in wanted} == wanted
    assert [one.text for one in found.findings.leftovers] == ["model.transformer_engine=True"]


def test_a_shape_that_no_catalogue_has_is_kept(tmp_path):
    found = read("own-shape.sh")
    settings = checked(found, tmp_path)
    model = settings.model
    assert (model.layers, model.hidden, model.heads, model.ffn_hidden, model.positions) == (
        30,
        3072,
        24,
        8192,
        4096,
    )
    assert (
        settings.run.parallel.virtual_pipeline,
        settings.job("04-training").devices_per_node,
    ) == (3, 4)
    assert values(found)["jobs.training.walltime"] == "36:00:00"
    assert (
        values(found)["training.schedule"] == "linear"
    )  # the program's default, which is not ours


@pytest.mark.parametrize(
    ("change", "number"),
    [
        ({"nodes=2": "nodes=4"}, 18),
        ({"num_gpus=16": "num_gpus=24"}, 15),
        ({"mp_size=2": "mp_size=3"}, 15),
        (
            {
                "mp_size=2": "mp_size=1",
                "pp_size=2": "pp_size=1",
                "nodes=2": "nodes=1",
                "num_node=2": "num_node=1",
            },
            16,
        ),
        ({"model_size=13": "model_size=30"}, 1),
    ],
)
def test_numbers_that_contradict_each_other_are_found(change, number):
    assert number in numbers(read("lumi-batch.sh", "lumi-payload.sh", change=change))


def test_the_words_of_a_page_are_searched_and_its_blocks_read():
    page = (
        "# Training\n2. [Set-up](#1-setup)\nThe smoke model has 375M parameters.\n\n"
        "```bash\nexport STAGE_PATH=/lustre/a\npython3 download_slimpajama.py ${STAGE_PATH}/x\n"
        "sbatch -p hpc setup_environment.sh\nls $STAGE_PATH/train*.jsonl | wc -l  # 72\n"
        "NUM_LAYERS=12 HIDDEN_SIZE=512 sbatch -N 2 04-gpt175B.sh\n"
        "PARTITION=gpu ./02-extract_and_concat_dataset.sh\n```\n"
    )
    found = adopt([("page.md", page)], "mine", PROJECT)
    assert {1, 3, 5, 7, 8, 9} <= numbers(found)
    assert values(found)["jobs.stage"] == "/lustre/a"
    assert {one.line for one in found.errors if one.number == 7} == {8}


@pytest.mark.parametrize(
    ("repository", "options", "is_found"),
    [
        ("microsoft/Megatron-DeepSpeed", "--append-eod --workers 8", True),
        ("microsoft/Megatron-DeepSpeed", "--workers 8", False),
        ("NVIDIA/Megatron-LM", "--append-eod --workers 8", False),
    ],
)
def test_a_tool_whose_index_is_one_token_short_is_named(repository, options, is_found):
    page = (
        f"# Data\n```bash\nexport STAGE_PATH=/lustre/a\ngit clone https://github.com/{repository}\n"
        f"python tools/preprocess_data.py --input a.jsonl {options}\nNUM_LAYERS=12 sbatch 04-gpt175B.sh\n```\n"
    )
    found = adopt([("page.md", page)], "mine", PROJECT)
    assert (32 in numbers(found)) == is_found


def test_what_starts_no_training_is_refused_with_the_rule():
    with refuses(ParamsError, AdoptMessage.NO_TRAINING_STARTED, file_name="copy.sh"):
        adopt([("copy.sh", "#!/bin/bash\n#SBATCH --nodes=1\ncp a b\n")], "mine", PROJECT)


def test_the_command_writes_the_file_once_and_tells_everything(tmp_path):
    out = tmp_path / "old.yaml"
    words = ["adopt", str(SAMPLES / "lumi-batch.sh"), "--out", str(out)]
    first = CliRunner().invoke(cli, [*words, "--json"])
    report = json.loads(first.stdout)
    assert (report["run_file"], report["check"], report["site"]) == (str(out), "passes", "lumi")
    assert {
        "key": "parallel.tensor",
        "value": 2,
        "from": "--tensor-model-parallel-size",
    }.items() <= next(one for one in report["carried"] if one["key"] == "parallel.tensor").items()
    assert {error["number"] for error in report["errors"]} == {19}
    assert [one["key"] for one in report["required"]] == ["jobs.stage"]
    assert params.load(str(out), project=PROJECT, portable=True).run.parallel.pipeline == 2
    again = CliRunner().invoke(cli, words)
    assert again.exit_code == 0
    assert "lumi-payload.sh:40" in again.stdout and "jobs.stage" in again.stdout
    out.write_text("run: old\n")
    refused = CliRunner().invoke(cli, words)
    assert isinstance(refused.exception, ParamsError)
    assert out.read_text() == "run: old\n"
    assert CliRunner().invoke(cli, [*words, "--replace"]).exit_code == 0


def test_a_run_file_that_check_would_refuse_is_written_and_told(tmp_path):
    script = tmp_path / "odd.sh"
    script.write_text((SAMPLES / "slurm-train.slurm").read_text().replace("TP=4", "TP=3"))
    said = CliRunner().invoke(
        cli, ["adopt", str(script), "--out", str(tmp_path / "odd.yaml"), "--json"]
    )
    report = json.loads(said.stdout)
    assert says(report["check"], PlanningMessage.GROUPS_OF_DEVICES, group=6)
    assert 15 in {error["number"] for error in report["errors"]}


SCRIPT_OF_A_USER = """\
#!/bin/bash
#SBATCH -N 2 -p gpu-a,gpu-b
#SBATCH --ntasks-per-node=1
srun torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 12 --hidden-size 768 \
--num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 \
--global-batch-size 64 --lr 6e-4 --min-lr 6e-5 --train-iters 100 --bf16
"""


def project_with_sites(folder: Path, **queues: str) -> Path:
    """Copy the project's parameters, and add a site file for each name, with this one queue."""
    shutil.copytree(PROJECT / "params", folder / "params")
    slurm = (PROJECT / "params" / "sites" / "slurm.yaml").read_text()
    for name, queue in queues.items():
        text = slurm.replace("site: slurm\n", f"site: {name}\nqueues: {{{queue}: {{}}}}\n", 1)
        (folder / "params" / "sites" / f"{name}.yaml").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("queues", "site"),
    [
        ({"oak": "gpu-b"}, "oak"),
        ({"oak": "gpu-c"}, "slurm"),
        ({"oak": "gpu-a", "elm": "gpu-b"}, "slurm"),
        ({"oak": "gpu-a", "elm": "cpu"}, "oak"),
    ],
)
def test_a_partition_tells_which_of_the_users_own_sites_a_script_is_for(tmp_path, queues, site):
    project = project_with_sites(tmp_path, **queues)
    found = adopt([("old.sbatch", SCRIPT_OF_A_USER)], "old", project)
    assert found.findings.site.site == site

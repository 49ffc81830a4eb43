"""What the DeepSpeed engine does besides training: it evaluates, continues a text, saves, resumes,
and prints nothing.
"""

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from suite.messages import containing, refuses, says

from runbook.plan_file import trainer_requirements
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.messages import PlanFileMessage
from runbook.plan_file.schema import parse
from runbook.training.messages import TrainingMessage

from . import specs
from .test_layouts import prepared
from .test_resume import SAVING, back_to, losses

pytestmark = pytest.mark.training


def content(**options):
    return specs.spec(**{"engine": "deepspeed", **SAVING, **options})


def started(zygote, tmp_path_factory, corpus, **options):
    job = zygote.train(prepared(tmp_path_factory.mktemp("whole"), corpus), content(**options))
    assert job.code == 0, job.err
    return job


@pytest.fixture(scope="module")
def whole(zygote, tmp_path_factory, corpus):
    """Return finished 6-iteration runs with checkpoints 4 and 6, one for each set of options."""
    known = {}

    def finished(**options):
        key = repr(sorted(options.items()))
        if key not in known:
            known[key] = started(zygote, tmp_path_factory, corpus, **options)
        return known[key]

    return finished


def again(job, tmp_path, zygote, **options):
    """Return the run as it was after iteration 4, with the same or other options."""
    folder = tmp_path / "again"
    folder.mkdir()
    result = zygote.train(back_to(job, folder, 4), content(**options))
    assert result.code == 0, result.err
    assert result.events("resumed")[-1]["iteration"] == 4
    return result


SAME = {
    "zero 0 saving beside": {
        "zero_stage": 0,
        "copies": 2,
        "checkpoint": {"interval": 2, "asynchronous": True},
    },
    "zero 1": {"zero_stage": 1, "copies": 2},
    "zero 2 bf16": {"zero_stage": 2, "copies": 2, "precision": "bf16"},
    "zero 3 tp2 dropout": {"zero_stage": 3, "tensor": 2, "model": {"dropout": 0.1}},
    "zero 3 bf16": {"zero_stage": 3, "copies": 2, "precision": "bf16"},
    "zero 0 bf16": {"zero_stage": 0, "precision": "bf16"},
    "pp2 zero 1": {"zero_stage": 1, "pipeline": 2},
    "pp2 zero 0 bf16": {"zero_stage": 0, "pipeline": 2, "precision": "bf16"},
}


@pytest.mark.parametrize("options", SAME.values(), ids=SAME)
@pytest.mark.rotate(3)
def test_resuming_repeats_the_undisturbed_run_exactly(options, zygote, tmp_path, whole):
    job = whole(**options)
    assert losses(again(job, tmp_path, zygote, **options).metrics) == losses(job.metrics)[4:]


OTHER = {
    "dp2 zero 1 to zero 2": ({"zero_stage": 1, "copies": 2}, {"zero_stage": 2, "copies": 2}),
    "dp2 zero 1 to one process": ({"zero_stage": 1, "copies": 2}, {"zero_stage": 1}),
    "tp2 to one process": ({"zero_stage": 1, "tensor": 2}, {"zero_stage": 0}),
    "pp2 to one process": ({"zero_stage": 1, "pipeline": 2}, {"zero_stage": 1}),
    "dp2 zero 1 to tp2 zero 3": ({"zero_stage": 1, "copies": 2}, {"zero_stage": 3, "tensor": 2}),
}


@pytest.mark.parametrize(("before", "after"), OTHER.values(), ids=OTHER)
@pytest.mark.rotate(3)
def test_another_layout_or_stage_goes_on_with_weights_and_optimizer(
    before, after, zygote, tmp_path, whole
):
    job = whole(**before)
    for ours, theirs in zip(
        again(job, tmp_path, zygote, **after).metrics, job.metrics[4:], strict=True
    ):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)


CROSSINGS = [
    (
        {"engine": "megatron-core", "copies": 2},
        {"engine": "deepspeed", "zero_stage": 3, "copies": 2},
    ),
    (
        {"engine": "deepspeed", "zero_stage": 1, "pipeline": 2},
        {"engine": "megatron-core", "copies": 2},
    ),
    ({"engine": "megatron-core"}, {"engine": "deepspeed", "zero_stage": 1, "precision": "bf16"}),
]


@pytest.mark.parametrize(
    ("before", "after"), CROSSINGS, ids=["to zero 3", "from a pipeline", "to bf16"]
)
def test_the_other_engine_takes_up_the_weights_alone_and_says_so(
    before, after, zygote, tmp_path, whole
):
    job = whole(**before)
    crossed = again(
        job, tmp_path, zygote, **{"checkpoint": {"interval": 2, "resume_changed": True}, **after}
    )
    crossing = TrainingMessage.WEIGHTS_ALONE.fill(
        engine=before["engine"], planned_engine=after["engine"]
    )
    assert says(
        crossed.out,
        TrainingMessage.GOING_ON_WITH_THE_PLAN,
        folder=containing("iter_0000004"),
        change=crossing,
    )
    assert crossed.events("resumed")[-1]["weights_only"] is True
    # The first loss is computed before any step, so the weights and the data are the same.
    exact = after.get("precision") != "bf16"
    assert crossed.metrics[0]["loss"] == pytest.approx(
        job.metrics[4]["loss"], rel=1e-5 if exact else 1e-3
    )
    assert crossed.metrics[1]["loss"] < job.metrics[3]["loss"]


@pytest.mark.parametrize(
    "options", [{"zero_stage": 3, "copies": 2}, {"zero_stage": 1, "pipeline": 2}], ids=str
)
def test_evaluation_and_continued_text_are_those_of_the_other_engine(options, zygote, run, whole):
    telling = {
        "sampling": {"prompt_ids": [5, 6, 7]},
        "evaluation": {"interval": 3, "iterations": 2},
    }
    one = whole(engine="megatron-core", **telling)
    job = zygote.train(run, specs.spec(engine="deepspeed", **telling, **options))
    assert job.code == 0, job.err
    ours, theirs = (specs.metrics(folder, "validation.jsonl") for folder in (run, one.folder))
    assert [line["loss"] for line in ours] == pytest.approx(
        [line["loss"] for line in theirs], rel=1e-5
    )
    ours, theirs = (specs.metrics(folder, "samples.jsonl") for folder in (run, one.folder))
    assert [line["ids"] for line in ours] == [line["ids"] for line in theirs]
    assert job.events("started")[0]["parameters"] == one.events("started")[0]["parameters"]


def without_local_rank():
    """Act like a launcher that does not set LOCAL_RANK, such as srun, or like no launcher."""
    del os.environ["LOCAL_RANK"]


def test_zero_3_trains_and_evaluates_where_the_launcher_sets_no_local_rank(zygote, run):
    """DeepSpeed reads LOCAL_RANK in its first steps (first seen on an H200, 2026-11-26)."""
    short = {"iterations": 2, "global_batch": 2, "evaluation": {"interval": 2, "iterations": 1}}
    plan = specs.spec(engine="deepspeed", zero_stage=3, **short)
    job = zygote.train(run, plan, patch="training.test_deepspeed:without_local_rank")
    assert job.code == 0, job.err
    assert len(job.metrics) == 2


def test_the_log_holds_our_lines_alone_and_nothing_is_left_behind(run):
    """Start from the command line, without a launcher or LOCAL_RANK.

    The home folder and the temporary folder are separate.
    """
    home = run / "home"
    temporary = run / "tmp"
    home.mkdir()
    temporary.mkdir()
    plan = specs.write_plan(run, specs.spec(engine="deepspeed", zero_stage=2, iterations=2))
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("LOCAL_RANK", "RANK", "WORLD_SIZE")
    }
    done = subprocess.run(
        [sys.executable, "-m", "runbook.training", plan],
        env={**kept, "HOME": str(home), "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert [line.split("|")[0].split()[2:5] for line in done.stdout.splitlines()] == [
        ["iteration", "1/", "2"],
        ["iteration", "2/", "2"],
    ]
    assert list(home.rglob("*")) == []
    assert [
        path for path in temporary.rglob("*") if path.is_file()
    ] == []  # torch creates an empty folder there


def test_a_smaller_batch_at_first_is_a_smaller_batch_for_deepspeed(
    zygote, run, tmp_path_factory, corpus
):
    ramp = {
        "batch": {"ramp": {"start": 4, "increment": 4, "samples": 8}},
        "duration": {"samples": 40},
    }
    one = zygote.train(prepared(tmp_path_factory.mktemp("one"), corpus), specs.spec(**ramp))
    for number, layout in enumerate(
        ({"zero_stage": 2, "copies": 2}, {"zero_stage": 0, "pipeline": 2})
    ):
        folder = run / str(number)
        folder.mkdir()
        shutil.copytree(run / "data", folder / "data", symlinks=True)
        job = zygote.train(folder, specs.spec(engine="deepspeed", **ramp, **layout))
        assert job.losses() == pytest.approx(one.losses(), rel=1e-5)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            "0.18.9",
            TrainingMessage.DEEPSPEED_TOO_OLD.of(
                version="0.18.9", oldest="0.19", other_engine="megatron-core"
            ),
        ),
        ("", TrainingMessage.DEEPSPEED_MISSING.of(other_engine="megatron-core")),
    ],
)
def test_a_deepspeed_that_does_not_suffice_is_refused_with_the_remedy(found, message, monkeypatch):
    from runbook.training.engines import deepspeed_start

    def version(name):
        if not found:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", version)
    with refuses(RefusedError, message):
        deepspeed_start.import_deepspeed()


def fp16():
    """Allow fp16 on a CPU. The trainer refuses it because it is slow, but small models can use it."""
    from deepspeed.accelerator import get_accelerator

    from . import poison  # it imports the trainer, which only a rank may do

    poison.fp16()
    type(get_accelerator()).is_fp16_supported = lambda _: True


def half(engine, precision):
    content = specs.spec(engine=engine, precision="fp16")
    content["precision"] |= precision
    return content


@pytest.mark.parametrize(
    ("precision", "scales"),
    [
        (
            {"initial_loss_scale": 64.0, "loss_scale_window": 2},
            [64.0, 64.0, 128.0, 128.0, 256.0, 256.0],
        ),
        (
            {"initial_loss_scale": 2.0**36, "hysteresis": 1},
            [2.0**exponent for exponent in range(35, 29, -1)],
        ),
    ],
    ids=["grows", "falls"],
)
def test_the_loss_scale_changes_and_leaves_the_losses_as_they_are(
    precision, scales, zygote, run, tmp_path_factory, corpus
):
    options = {"patch": "training.test_deepspeed:fp16"}
    one = prepared(tmp_path_factory.mktemp("one"), corpus)
    jobs = [
        zygote.train(folder, half(engine, precision), **options)
        for folder, engine in ((one, "megatron-core"), (run, "deepspeed"))
    ]
    assert jobs[0].code == jobs[1].code == 0, jobs[1].err
    assert [line["loss_scale"] for line in jobs[1].metrics] == scales
    for ours, theirs in zip(jobs[1].metrics, jobs[0].metrics, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert ours["skipped"] == theirs["skipped"] == (scales[0] > 2**20)


PLANNED = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 1,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 1},
}


def test_what_the_plan_says_under_deepspeed_reaches_deepspeed_word_for_word(zygote, run):
    """Plan a value that only DeepSpeed itself can recognize as wrong."""
    wrong = {**PLANNED, "zero_optimization": {"stage": 1, "reduce_bucket_size": -5}}
    job = zygote.train(run, specs.spec(engine="deepspeed", zero_stage=1, deepspeed=wrong))
    assert job.codes == [1] and "reduce_bucket_size" in job.err


@pytest.mark.parametrize(
    ("key", "value", "full_key", "configured", "planned"),
    [
        ("train_batch_size", 16, "train_batch_size", "16", "8"),
        ("gradient_clipping", 2.0, "gradient_clipping", "2.0", "1.0"),
        ("zero_optimization", {"stage": 3}, "zero_optimization.stage", "3", "1"),
        ("bf16", {"enabled": True}, "bf16.enabled", "true", "false"),
    ],
)
def test_two_words_for_one_thing_must_agree(key, value, full_key, configured, planned):
    content = specs.spec(engine="deepspeed", zero_stage=1, deepspeed={**PLANNED, key: value})
    problem = PlanFileMessage.CONFIGURED_OTHERWISE.fill(
        key=full_key, configured=configured, planned=planned
    )
    with refuses(RefusedError, PlanFileMessage.CANNOT_BE_TRAINED, problems=f"  {problem}"):
        trainer_requirements.check(parse(content, Path()), 1, fp16=False)
    trainer_requirements.check(parse({**content, "deepspeed": PLANNED}, Path()), 1, fp16=False)


@pytest.mark.parametrize(
    "options",
    [
        {"zero_stage": 0},
        {"zero_stage": 2, "copies": 2},
        {"zero_stage": 3, "copies": 2},
        {"zero_stage": 1, "pipeline": 2},
    ],
    ids=str,
)
def test_a_step_that_is_left_out_leaves_no_gradient_behind(
    options, zygote, run, tmp_path_factory, corpus
):
    skipping = {"limits": {"spike_policy": "skip"}, "iterations": 4}
    bad = {
        "extra": {"RUNBOOK_FAULTS": "spike:step=2"}
    }  # only the loss is replaced: the gradients are good
    one = zygote.train(
        prepared(tmp_path_factory.mktemp("one"), corpus), specs.spec(**skipping), **bad
    )
    job = zygote.train(run, specs.spec(engine="deepspeed", **skipping, **options), **bad)
    assert job.code == one.code == 0, job.err + one.err
    assert (
        [line["skipped"] for line in job.metrics]
        == [line["skipped"] for line in one.metrics]
        == [0, 1, 0, 0]
    )
    for ours, theirs in zip(job.metrics, one.metrics, strict=True):
        if not ours["skipped"]:
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)


def srun():
    """Make the ranks look like srun's tasks, which have no LOCAL_RANK."""
    names = {
        "RANK": "SLURM_PROCID",
        "WORLD_SIZE": "SLURM_STEP_NUM_TASKS",
        "LOCAL_RANK": "SLURM_LOCALID",
    }
    for name, of_slurm in names.items():
        os.environ[of_slurm] = os.environ.pop(name, "1" if name == "WORLD_SIZE" else "0")


def test_zero_3_trains_under_srun(zygote, run):
    content = specs.spec(engine="deepspeed", zero_stage=3, copies=1, iterations=2)
    job = zygote.train(run, content, patch="training.test_deepspeed:srun")
    assert len(job.losses()) == 2

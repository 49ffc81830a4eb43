"""The way a step is executed does not change what is learned: overlaps, uneven stages, recomputed
layers.
"""

import os

import pytest

from . import specs

pytestmark = pytest.mark.training

OVERLAPS = {
    "overlap_gradients": True,
    "overlap_weights": True,
    "overlap_pipeline": "always",
    "gc_interval": 2,
}


def small_buckets():
    """Send gradients and weights in several messages, as for a large model."""
    from megatron.core.distributed import DistributedDataParallelConfig

    made = DistributedDataParallelConfig.__init__

    def with_buckets(self, **options):
        made(self, bucket_size=20_000, **options)

    DistributedDataParallelConfig.__init__ = with_buckets


@pytest.fixture(scope="module")
def plain(zygote, tmp_path_factory, corpus):
    """Return the losses of a layout executed in the simplest way."""
    known = {}

    def losses(**layout):
        key = repr(layout)
        if key not in known:
            folder = losses.folders[key] = tmp_path_factory.mktemp("plain")
            (folder / "data").symlink_to(corpus)
            known[key] = zygote.train(folder, specs.spec(**layout)).losses()
        return known[key]

    losses.folders = {}
    return losses


@pytest.mark.parametrize(
    "layout", [{"copies": 2}, {"pipeline": 2, "virtual_pipeline": 2, "copies": 2}]
)
def test_messages_beside_the_computation_change_no_loss(layout, zygote, run, plain):
    content = specs.spec(**layout, tuning=OVERLAPS, evaluation={"interval": 2, "iterations": 1})
    job = zygote.train(run, content, patch="training.test_tuning:small_buckets")
    assert job.losses() == pytest.approx(plain(**layout), rel=2e-7)


@pytest.mark.parametrize(
    "changes",
    [
        {"pipeline": 2, "parallel": {"first_stage_layers": 3}},
        {"pipeline": 2, "parallel": {"last_stage_layers": 3}},
        {"recompute": "full", "tuning": {"recompute_num_layers": 2}},
        {"recompute": "full", "tuning": {"recompute_method": "block", "recompute_num_layers": 3}},
    ],
    ids=["first stage", "last stage", "groups", "first layers"],
)
def test_uneven_stages_and_layers_computed_again_change_no_loss(changes, zygote, run, plain):
    layout = {"pipeline": changes.get("pipeline", 1)}
    assert zygote.train(run, specs.spec(**changes)).losses() == pytest.approx(
        plain(**layout), rel=2e-7
    )


GROUPED = {"position_embedding": "rope", "activation": "swiglu", "kv_heads": 2}


@pytest.mark.parametrize(
    ("layout", "model"),
    [
        ({"context": 2, "world_size": 2}, GROUPED),
        ({"context": 2, "tensor": 2, "sequence": True, "world_size": 4}, {}),
    ],
    ids=["two pieces, rotary and grouped", "in sequence parallel too"],
)
def test_a_sequence_that_ranks_share_gives_the_same_losses_and_text(
    layout, model, zygote, run, plain
):
    options = {
        "model": model,
        "evaluation": {"interval": 6, "iterations": 2},
        "sampling": {"prompt_ids": [5, 6, 7]},
    }
    job = zygote.train(
        run,
        specs.spec(**options, parallel=layout, tuning={"broadcast_batches": "tensor" in layout}),
    )
    assert job.losses() == pytest.approx(plain(**options), rel=2e-7)
    folder = plain.folders[repr(options)]
    for name, key in (("validation.jsonl", "loss"), ("samples.jsonl", "ids")):
        ours, theirs = (
            [line[key] for line in specs.metrics(where, name)] for where in (run, folder)
        )
        assert ours == (pytest.approx(theirs, rel=2e-7) if key == "loss" else theirs)


def first_rank_reads():
    """Let every rank except the first fail if it reads a sample."""
    from runbook.training.datasets import EpochDataset

    read = EpochDataset.__getitem__

    def read_on_first_rank(dataset, index):
        assert os.environ["RANK"] == "0", "the first tensor-parallel rank reads for the others"
        return read(dataset, index)

    EpochDataset.__getitem__ = read_on_first_rank


def test_batches_that_one_rank_reads_give_the_same_losses_over_a_resume(zygote, run, plain):
    options = {"tensor": 2, "evaluation": {"interval": 2, "iterations": 1}}
    content = specs.spec(**options, tuning={"broadcast_batches": True}, limits={"exit_interval": 3})
    jobs = [
        zygote.train(run, content, patch="training.test_tuning:first_rank_reads") for _ in range(2)
    ]
    assert [job.code for job in jobs] == [75, 0], jobs[-1].err[-2000:]
    assert [line["loss"] for line in specs.metrics(run)] == plain(**options)
    folder = plain.folders[repr(options)]
    ours, theirs = (
        [line["loss"] for line in specs.metrics(where, "validation.jsonl")]
        for where in (run, folder)
    )
    assert ours == theirs and len(ours) >= 3


def test_weights_that_are_gathered_late_are_saved_whole(zygote, run, plain):
    halves = {
        "precision": "bf16",
        "copies": 2,
        "tuning": OVERLAPS,
    }  # without overlaps, gradients are rounded differently
    content = specs.spec(**halves, limits={"exit_interval": 3})
    assert [zygote.train(run, content).code for _ in range(2)] == [75, 0]
    assert [line["loss"] for line in specs.metrics(run)] == plain(**halves)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tuning": {"fuse_gradients": "always"}}, "this needs a GPU, Transformer Engine, Apex"),
        (
            {"tuning": {"cuda_graphs": True}},
            "cuda_graphs: this needs a GPU, Transformer Engine, which is missing here",
        ),
        ({"precision": "bf16", "fp8": True}, "training.fp8: this needs a GPU"),
        ({"tuning": {"overlap_tensor": True}}, "Set parallel.sequence true"),
        ({"tuning": {"overlap_weights": True}, "copies": 2}, "Set training.overlap_gradients true"),
        (
            {"recompute": "full", "tuning": {"recompute_num_layers": 3}},
            "training.recompute_num_layers=3, and the stages have 4 layers",
        ),
        (
            {"pipeline": 2, "parallel": {"first_stage_layers": 4}},
            "4 layers over parallel.pipeline=2",
        ),
        (
            {"engine": "deepspeed", "tuning": {"recompute_method": "block"}},
            "uneven stages with engine deepspeed",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_remedy(changes, reason, zygote, run):
    in_8_bits = changes.pop("fp8", None)
    content = specs.spec(**changes)
    content["precision"] |= {"fp8": "delayed"} if in_8_bits else {}
    job = zygote.train(run, content)
    assert job.code == 2 and reason in job.err

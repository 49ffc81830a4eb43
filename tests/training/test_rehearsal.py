"""A rehearsal on fake tensors counts what the same layout needs and sends in real training."""

import itertools
import json

import pytest

from runbook.planning.cost.counted_step import schedule_of

from . import specs

pytestmark = pytest.mark.training

LAYOUTS = {
    "bf16": {"precision": "bf16"},
    "dp2": {"copies": 2},
    "dropout": {"model": {"dropout": 0.1}},
    "tp2 sequence parallel": {
        "tensor": 2,
        "parallel": {"sequence": True},
        "micro": 2,
        "tuning": {"broadcast_batches": True},
    },
    "pp2 interleaved": {"pipeline": 2, "virtual_pipeline": 2, "precision": "bf16"},
    "pp2 dp2 recompute": {"pipeline": 2, "copies": 2, "recompute": "full", "precision": "bf16"},
    "pp2 dp2 uneven overlapped": {
        "pipeline": 2,
        "copies": 2,
        "recompute": "full",
        "parallel": {"first_stage_layers": 3},
        "tuning": {"overlap_gradients": True, "overlap_weights": True, "recompute_method": "block"},
    },
    "context 2": {"parallel": {"context": 2, "world_size": 2}},
    "tp2 pp2 bf16": {"tensor": 2, "pipeline": 2, "precision": "bf16"},
    "deepspeed zero 1": {"copies": 2, "precision": "bf16", "engine": "deepspeed"},
    "deepspeed zero 3": {"copies": 2, "zero_stage": 3, "engine": "deepspeed"},
    "deepspeed pp2": {"pipeline": 2, "zero_stage": 1, "engine": "deepspeed"},
    "deepspeed tp2": {"tensor": 2, "zero_stage": 0, "engine": "deepspeed"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.rotate(3)
def test_a_rehearsed_rank_counts_what_a_real_one_does(layout, zygote, tmp_path):
    content = specs.spec(mock=True, global_batch=16, **LAYOUTS[layout])
    world = content["parallel"]["world_size"]
    real = zygote.train(tmp_path, content, patch="training.counted:measured")
    assert real.code == 0, real.err
    fake = zygote.train(tmp_path, content, world_size=1, patch="training.counted:rehearsed")
    assert fake.code == 0, fake.err
    for rank in range(world):
        counted = json.loads((tmp_path / f"measured-{rank}.json").read_text())
        rehearsed = json.loads((tmp_path / f"rehearsed-{rank}.json").read_text())
        assert rehearsed["collectives"] == counted["collectives"]
        assert rehearsed["flops"] == counted["flops"]
        _assert_same_work(rehearsed["work"], counted["work"])
        if (
            content["precision"]["format"] == "bf16"
        ):  # torch has no FLOP count for oneDNN's float32 products
            assert counted["passes"] == _planned_passes(content, rehearsed["stage"])
        assert rehearsed["peak_bytes"] == pytest.approx(counted["peak_bytes"], rel=0.03)


def _assert_same_work(rehearsed, counted):
    """Check that a rehearsal counts the same matrix products and messages as a real run.

    A real run also has gloo's own copies, and clips gradients that are not zero.
    """
    for kind, number in counted.items():
        if "moved" in kind and "optimizer" not in kind:
            assert 0.75 * number < rehearsed[kind] <= number, kind
        elif "kernels" not in kind and "moved" not in kind:
            assert rehearsed[kind] == number, kind


def _planned_passes(content, stage):
    """Return the kinds of passes in planned order, without repetitions."""
    pipeline = content["parallel"]
    batch = content["batch"]
    order = schedule_of(
        stage, pipeline["pipeline"], pipeline["virtual_pipeline"], batch["num_microbatches"]
    )
    return [list(key) for key, _ in itertools.groupby((kind, chunk) for kind, chunk, _ in order)]


def ask_for_capture():
    """Query CUDA before each step as torch's optimizers do, without a driver or CUDA."""
    import torch

    from runbook.training.rehearsal import gpu_stand_in

    gpu_stand_in.install()
    return int(torch.cuda.is_current_stream_capturing())


def test_the_stand_in_answers_what_optimizers_ask_where_no_driver_is(zygote, tmp_path):
    content = specs.spec(mock=True)
    job = zygote.train(tmp_path, content, patch="training.test_rehearsal:ask_for_capture")
    assert job.codes == [0], job.err


def test_a_plan_for_gpus_is_rehearsed_with_the_copy_that_a_save_makes(zygote, tmp_path):
    content = specs.spec(mock=True, precision="bf16", copies=2)
    content["device"] = "nvidia-h100-sxm"
    job = zygote.train(tmp_path, content, world_size=1, patch="training.counted:rehearsed")
    assert job.code == 0, job.err
    counted = json.loads((tmp_path / "rehearsed-0.json").read_text())
    assert counted["save_host_bytes"] == pytest.approx(counted["saved_bytes"], rel=0.02)
    waits = counted["synchronizations"]
    assert sum(waits.values()) == 3, f"the loss, its mean, and the gradient norm: {waits}"

"""Initial weights depend only on seed, name and position: any slice equals the same slice of the
complete weight, and only the slice is generated.
"""

import math

import pytest

torch = pytest.importorskip("torch")
mapping = pytest.importorskip("megatron.core.dist_checkpointing.mapping")
numpy = pytest.importorskip("numpy")

import warnings  # noqa: E402
from types import SimpleNamespace  # noqa: E402

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # megatron-core warns when it is imported
    from runbook.training.engines import gpt_model

MODEL = SimpleNamespace(init_std=0.02, shape=SimpleNamespace(layers=8))


def part(key, shape, rows, columns, seed=7, model=MODEL):
    """Return one part of a weight that is divided into this many parts along each dimension."""
    height = shape[0] // rows[1]
    width = shape[1] // columns[1]
    cuts = ((0, *rows), (1, *columns))
    shard = mapping.ShardedTensor.from_rank_offsets(key, torch.empty(height, width), *cuts)
    gpt_model.fill_first_weights({key: shard}, model, seed)
    return shard.data


WHOLE = (0, 1)


@pytest.mark.parametrize("shape", [(256, 192), (320, 64), (12, 20_000), (60, 36)], ids=str)
@pytest.mark.parametrize("cuts", [2, 4])
def test_a_slice_is_that_of_the_whole_weight_to_the_last_bit(shape, cuts):
    whole = part("w.weight", shape, WHOLE, WHOLE)
    by_rows = [part("w.weight", shape, (place, cuts), WHOLE) for place in range(cuts)]
    by_columns = [part("w.weight", shape, WHOLE, (place, cuts)) for place in range(cuts)]
    assert torch.equal(torch.cat(by_rows), whole)
    assert torch.equal(torch.cat(by_columns, 1), whole)


def test_rows_that_pad_a_vocabulary_change_no_other_row():
    small, large = (part("w.weight", (rows, 64), WHOLE, WHOLE) for rows in (256, 384))
    assert torch.equal(large[:256], small)


def test_the_numbers_do_not_depend_on_threads_and_number_format(monkeypatch):
    monkeypatch.setattr(gpt_model, "SMALL_BLOCK", 0)
    drawn = []
    for threads in (1, 5):
        monkeypatch.setattr(gpt_model, "cores_of_rank", lambda threads=threads: threads)
        drawn.append(part("w.weight", (1200, 448), WHOLE, (1, 2)))
    assert torch.equal(*drawn)
    half = torch.nn.Parameter(torch.empty(1200, 224, dtype=torch.bfloat16))
    shard = mapping.ShardedTensor.from_rank_offsets("w.weight", half, (0, 0, 1), (1, 1, 2))
    gpt_model.fill_first_weights({"w": shard}, MODEL, 7)
    assert torch.equal(half, drawn[0].bfloat16())


class CopiesToDevice(TorchDispatchMode):
    """A mode that keeps what is copied to the "meta" device, which stands for a GPU."""

    def __init__(self):
        super().__init__()
        self.copies = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default and args[0].is_meta:
            self.copies.append(args[1].clone())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("block_rows", [10_000, 700])
def test_a_weight_reaches_a_gpu_in_large_copies(block_rows, monkeypatch):
    monkeypatch.setattr(gpt_model, "BLOCK_BYTES", block_rows * 192 * 4)
    whole = part("w.weight", (2000, 192), WHOLE, WHOLE)
    on_device = torch.empty(2000, 192, device="meta")
    shard = mapping.ShardedTensor.from_rank_offsets("w.weight", on_device)
    with CopiesToDevice() as device:
        gpt_model.fill_first_weights({"w": shard}, MODEL, 7)
    assert len(device.copies) == -(-2000 // block_rows)
    assert torch.equal(torch.cat(device.copies), whole)


def test_a_rank_draws_no_more_numbers_than_its_slice_has(monkeypatch):
    drawn = []
    normal_numbers = gpt_model._normal_numbers

    def counted(philox, count, *rest):
        drawn.append(count)
        return normal_numbers(philox, count, *rest)

    monkeypatch.setattr(gpt_model, "_normal_numbers", counted)
    for rows, columns in (((1, 4), WHOLE), (WHOLE, (2, 4))):
        drawn.clear()
        assert part("w.weight", (512, 256), rows, columns).numel() == sum(drawn) == 512 * 256 // 4


def test_the_numbers_are_normal_with_gpt2s_widths_and_differ_by_name_and_seed():
    plain, deep = (
        part(f"layers.3.{name}.weight", (1024, 512), WHOLE, WHOLE)
        for name in ("linear_fc1", "linear_fc2")
    )
    for values, std in ((plain, 0.02), (deep, 0.02 / math.sqrt(16))):
        values = values.double() / std
        error = 1 / math.sqrt(values.numel())
        assert abs(values.mean()) < 4 * error
        assert abs(values.std() - 1) < 4 * error / math.sqrt(2)
        assert abs((values**4).mean() - 3) < 4 * error * math.sqrt(96)
        assert (
            abs(torch.corrcoef(torch.stack([values.view(-1)[:-1], values.view(-1)[1:]]))[0, 1])
            < 4 * error
        )
        assert 4.0 < values.abs().max() < 6.8
        below = torch.special.ndtr(values.view(-1)).sort().values
        steps = torch.arange(1, len(below) + 1) / len(below)
        assert (below - steps).abs().max() < 2 * error  # Kolmogorov-Smirnov: exceeded once in 1,500
    other = part("layers.3.linear_fc1.weight", (1024, 512), WHOLE, WHOLE, seed=8)
    assert abs(torch.corrcoef(torch.stack([plain.view(-1), other.view(-1)]))[0, 1]) < 4 * error


def test_norms_are_one_and_biases_zero():
    for key, expected in (
        ("final_layernorm.weight", 1.0),
        ("linear_qkv.layer_norm_bias", 0.0),
        ("fc1.bias", 0.0),
    ):
        shard = mapping.ShardedTensor.from_rank_offsets(key, torch.empty(5))
        gpt_model.fill_first_weights({key: shard}, MODEL, 7)
        assert torch.equal(shard.data, torch.full((5,), expected))


def test_the_numbers_are_those_of_every_machine_and_version():
    first = part("w.weight", (2, 8), WHOLE, WHOLE).view(-1)[:4] / 0.02
    assert first.tolist() == pytest.approx(PINNED, rel=1e-5)


PINNED = [0.479452520608902, -1.117288589477539, 1.546499490737915, 0.43229880928993225]

"""Our own attention, cross entropy and matrix products, compared with plain computations in
float64.
"""

import math
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")

from runbook.training import cpu  # noqa: E402
from runbook.training.kernels import blocked  # noqa: E402
from runbook.training.kernels import blocked as kernels  # noqa: E402
from runbook.training.rehearsal.counter import OperatorCounter  # noqa: E402


@pytest.fixture(scope="module")
def linear():
    """Return the module with the layers' matrix products, without megatron-core's import warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from runbook.training.kernels import linear

    return linear


class One:
    """A process group of one rank."""

    def size(self):
        return 1

    def rank(self):
        return 0


def relative(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float32, 1e-6), (torch.bfloat16, 3e-2)])
def test_blocked_attention_is_attention(dtype, gap):
    torch.manual_seed(1)
    given = [torch.randn(2, 3, 64, 16, dtype=torch.float64) for _ in range(3)]
    ours = [part.to(dtype).requires_grad_() for part in given]
    plain = [part.to(dtype).double().requires_grad_() for part in given]
    future = torch.ones(64, 64).triu(1).bool()
    query, key, value = plain
    scores = (query @ key.transpose(-1, -2) / math.sqrt(16)).masked_fill(future, float("-inf"))
    expected = scores.softmax(-1) @ value
    found = blocked.blocked_attention(*ours, 1 / math.sqrt(16))
    weight = torch.randn(2, 3, 64, 16, dtype=torch.float64)
    (found.double() * weight).sum().backward()
    (expected * weight).sum().backward()
    assert relative(found.detach(), expected.detach()) < gap
    for one, other in zip(ours, plain, strict=True):
        assert relative(one.grad, other.grad) < gap


@pytest.mark.parametrize(("spread", "error"), [(1.0, 4e-3), (4.0, 1e-2)])
def test_half_precision_attention_is_as_exact_as_the_documents_say(spread, error):
    """Check the errors in docs/measurements/trainer-speed.md. Torch's own error is 2e-3."""
    generator = torch.Generator().manual_seed(1)
    query, key, value = (
        torch.randn(1, 4, 256, 64, generator=generator).bfloat16() for _ in range(3)
    )
    query = query * spread
    plain = torch.nn.functional.scaled_dot_product_attention
    exact = plain(query.double(), key.double(), value.double(), is_causal=True)
    assert relative(blocked.blocked_attention(query, key, value, 0.125), exact) < error
    assert relative(plain(query, key, value, is_causal=True), exact) < 3e-3


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loss_has_one_block_of_float32_at_once(ranks, monkeypatch):
    group = One()
    monkeypatch.setattr(group, "size", lambda: ranks, raising=False)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_, **__: None)
    rows, words = 64, kernels._BLOCK_BYTES["cpu"] // (4 * 16)  # four blocks of 16 tokens
    counter = OperatorCounter(fake=False, device_type="cpu")
    with counter:
        logits = torch.zeros(rows, words, dtype=torch.bfloat16, requires_grad=True)
        labels = torch.zeros(rows, dtype=torch.int64)
        counter.reset()
        torch.autograd.grad(kernels.cross_entropy(logits, labels, group).sum(), logits)
    assert counter.reset().peak_bytes < 2 * logits.numel() + 1.5 * kernels._BLOCK_BYTES["cpu"]


def test_blocked_attention_is_used_only_where_it_pays():
    half = torch.zeros(1, 2, 8, 4, dtype=torch.bfloat16)
    full = torch.zeros(1, 2, 8, 4)
    assert blocked.blocked_is_faster(half, half, 0.0)
    assert not blocked.blocked_is_faster(full, full, 0.0)
    assert not blocked.blocked_is_faster(half, half, 0.1)
    assert not blocked.blocked_is_faster(half, half[:, :1], 0.0)
    assert not blocked.blocked_is_faster(half[:, :, :7], half[:, :, :7], 0.0)


@pytest.mark.parametrize(
    ("dtype", "gap"),
    [(torch.float32, 1e-6), (torch.bfloat16, 4e-3), (torch.float16, 1e-3)],
    ids=str,
)
@pytest.mark.parametrize("weight", [1 / 64, 0.37])
def test_cross_entropy_and_its_gradient(dtype, gap, weight, monkeypatch):
    monkeypatch.setitem(
        kernels._BLOCK_BYTES, "cpu", 4 * 97 * 5
    )  # several blocks, the last one shorter
    torch.manual_seed(2)
    logits = (torch.randn(4, 16, 97) * 5).to(dtype)
    labels = torch.randint(0, 97, (4, 16))
    plain = logits.double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        plain.view(-1, 97), labels.view(-1), reduction="none"
    ).view(4, 16)
    (expected * weight).sum().backward()
    ours = logits.clone().requires_grad_()
    found = kernels.cross_entropy(ours * 1, labels, One())
    assert found.dtype == torch.float32
    assert relative(found.detach(), expected.detach()) < 1e-6
    (found * weight).sum().backward()
    assert relative(ours.grad, plain.grad) < gap


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_padding_of_the_vocabulary_takes_no_part_in_the_loss(dtype):
    logits = torch.randn(2, 8, 128, generator=torch.Generator().manual_seed(4)).to(dtype)
    logits[..., 97:] = 50.0  # far above all tokens
    labels = torch.arange(16).view(2, 8)
    plain = logits[..., :97].float().requires_grad_()
    expected = torch.nn.functional.cross_entropy(
        plain.view(-1, 97), labels.view(-1), reduction="none"
    )
    expected.sum().backward()
    ours = logits.requires_grad_()
    found = kernels.cross_entropy(ours * 1, labels, One(), vocabulary=97)
    found.sum().backward()
    assert relative(found.detach().view(-1), expected.detach()) < 1e-6
    assert relative(ours.grad[..., :97], plain.grad) < 1e-3 and not ours.grad[..., 97:].any()


def test_a_small_fp16_gradient_is_scaled_before_it_is_rounded():
    logits = torch.zeros(1, 1, 64, dtype=torch.float16)
    logits[..., 0] = 22.0  # the others' probability is 2.8e-10, which fp16 cannot represent
    ours = logits.clone().requires_grad_()
    (
        kernels.cross_entropy(ours * 1, torch.zeros(1, 1, dtype=torch.int64), One()) * 2.0**16
    ).sum().backward()
    assert float(ours.grad[0, 0, 1]) == pytest.approx(math.exp(-22) * 2**16, rel=1e-2)


def test_an_evaluation_leaves_the_logits_as_they_are():
    logits = torch.randn(1, 4, 32)
    before = logits.clone()
    with torch.no_grad():
        kernels.cross_entropy(logits, torch.zeros(1, 4, dtype=torch.int64), One())
    assert torch.equal(logits, before)


needs_onednn = pytest.mark.skipif(
    not cpu.onednn_is_faster(), reason="MKL multiplies float32 as fast on this processor"
)


@needs_onednn
@pytest.mark.parametrize("outputs", [24, 200, 5001])
@pytest.mark.parametrize("biased", [True, False])
def test_a_layer_by_onednn_and_its_gradients(linear, outputs, biased):
    torch.manual_seed(1)
    values, weight, bias, share = (
        torch.randn(*shape, dtype=torch.float64)
        for shape in ((7, 3, 48), (outputs, 48), (outputs,), (7, 3, outputs))
    )
    given = [values, weight, bias] if biased else [values, weight]
    ours = [part.float().requires_grad_() for part in given]
    plain = [part.float().double().requires_grad_() for part in given]
    found = linear.multiply(
        *ours[:2], ours[2] if biased else None, allreduce_dgrad=False, tp_group=None
    )
    expected = torch.nn.functional.linear(*plain)
    assert relative(found.detach(), expected.detach()) < 1e-6
    (found.double() * share).sum().backward()
    (expected * share).sum().backward()
    for one, other in zip(ours, plain, strict=True):
        assert one.grad.is_contiguous() and relative(one.grad, other.grad) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_tied_weights_are_summed_in_float32_in_place(linear, dtype, monkeypatch):
    monkeypatch.setattr(cpu, "OUTPUT_BLOCK", 7)
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(40, 24).to(dtype))
    weight.sums_in_place, weight.main_grad = True, torch.zeros(40, 24)
    plain = weight.detach().double().requires_grad_()
    ids = torch.tensor([[3, 5, 3], [39, 0, 5]])
    share = torch.randn(2, 3, 40)
    for _ in range(2):
        vectors = linear._Embedding.apply(ids, weight)
        scores = linear.multiply(vectors, weight, None, allreduce_dgrad=False, tp_group=None)
        (scores.float() * share).sum().backward()
        vectors = torch.nn.functional.embedding(ids, plain)
        (torch.nn.functional.linear(vectors, plain) * share).sum().backward()
    assert weight.grad is None
    assert relative(weight.main_grad, plain.grad) < (1e-6 if dtype == torch.float32 else 5e-3)


@needs_onednn
def test_a_product_of_views_is_right_however_they_lie():
    torch.manual_seed(1)
    left = torch.randn(40, 30)[::2, ::3]
    right = torch.randn(60, 30)[:, 5:13][::6]
    assert torch.allclose(cpu.onednn_matmul(left, right), left @ right, rtol=1e-5, atol=1e-5)
    assert torch.allclose(
        cpu.onednn_matmul(left, right.t().contiguous().t()), left @ right, rtol=1e-5, atol=1e-5
    )


@needs_onednn
@pytest.mark.parametrize("turned", [True, False])
def test_a_long_sum_is_rounded_no_more_than_a_short_one(turned):
    torch.manual_seed(1)
    left = torch.randn(64, 2100)
    right = torch.randn(2100, 96)
    bias = torch.randn(96)
    expected = left.double() @ right.double() + bias
    right = right.t().contiguous().t() if turned else right
    assert (
        relative(cpu.onednn_matmul(left, right, bias), expected) < 4e-7
    )  # 6e-7 if summed all at once


def test_float32_goes_to_onednn_only_where_mkl_leaves_avx512_unused(monkeypatch, tmp_path):
    cpu_info = tmp_path / "cpuinfo"
    monkeypatch.setattr(cpu, "_CPU_INFO", cpu_info)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    ask = cpu.onednn_is_faster.__wrapped__
    assert not ask()  # nothing is known about the processor
    cpu_info.write_text("vendor_id : GenuineIntel\n")
    assert not ask()
    cpu_info.write_text("vendor_id : AuthenticAMD\n")
    assert ask() == torch.backends.mkl.is_available()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not ask()


WIDENED = """
import torch
from runbook.training import cpu
cpu.multiplies_half = lambda: False
generator = torch.Generator().manual_seed(1)
draw = lambda *shape: torch.randn(*shape, generator=generator)
exact = [draw(3, 40, 24), draw(32, 24), draw(32)]
half = [tensor.bfloat16().requires_grad_() for tensor in exact]
wide = [tensor.detach().double().requires_grad_() for tensor in half]
cpu.widen_half_matmuls()
for tensors in (half, wide):
    result = torch.nn.functional.linear(*tensors)
    (result.square().sum() + (tensors[0] @ tensors[0].transpose(1, 2)).sum()).backward()
assert result.dtype is torch.float64 and half[0].grad.dtype is torch.bfloat16
print(max(float((a.grad.double() - b.grad).norm() / b.grad.norm()) for a, b in zip(half, wide)))
x = torch.randn(5, 4)
assert torch.equal(x @ x.t(), torch.ops.aten.mm.out(x, x.t(), out=torch.empty(0)))
"""


def test_sixteen_bit_matmuls_are_computed_in_float32_where_the_processor_has_none():
    """Run both passes, with and without bias, in two and three dimensions.

    A product of float32 values is unchanged.
    """
    ended = subprocess.run(
        [sys.executable, "-c", WIDENED], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) < 0.006

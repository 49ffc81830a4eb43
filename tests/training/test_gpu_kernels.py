"""The trainer's kernels, run by the Triton interpreter on a CPU, against float64 and in complete
training runs.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="a CPU build of torch comes without Triton")

from . import specs  # noqa: E402

SINGLE, HALF = torch.float32, torch.bfloat16
GAPS = {SINGLE: 1e-6, HALF: 6e-3}


class One:
    """A process group of one rank."""

    def size(self):
        return 1

    def rank(self):
        return 0


@pytest.fixture(scope="module")
def kernels():
    """Return the kernel modules by name. Triton interprets them because of conftest.py."""
    from runbook.training.kernels import activation, eight_bits, loss, norm, sums

    modules = (activation, eight_bits, loss, norm, sums)
    return {module.__name__.rpartition(".")[2]: module for module in modules}


def relative(found, expected):
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


def pairs(dtype, *shapes):
    """Return random tensors of these shapes in a number format, and the same tensors in float64."""
    generator = torch.Generator().manual_seed(3)
    ours = [torch.randn(*shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    exact = [tensor.detach().double().requires_grad_() for tensor in ours]
    return ours, exact


def compare(results, expected, ours, exact, gap):
    """Return both results and, for random output gradients, the gradients of all inputs."""
    total = exact_total = 0.0
    for result, exact_result in zip(results, expected, strict=True):
        assert relative(result, exact_result) < gap
        share = torch.randn_like(exact_result)
        total = total + (result.double() * share).sum()
        exact_total = exact_total + (exact_result * share).sum()
    total.backward()
    exact_total.backward()
    for tensor, exact_tensor in zip(ours, exact, strict=True):
        assert tensor.grad.dtype == tensor.dtype
        assert relative(tensor.grad, exact_tensor.grad) < gap


@pytest.mark.parametrize("dtype", GAPS, ids=str)
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("gated", [True, False], ids=["swiglu", "gelu"])
def test_activations_and_their_gradients(kernels, dtype, biased, gated):
    ours, exact = pairs(dtype, (37, 3, 200), *[(200,)] * biased)
    activation = kernels["activation"]
    activate = activation.bias_swiglu if gated else activation.bias_gelu
    shifted = sum(exact)
    if gated:
        first, second = shifted.chunk(2, -1)
        expected = torch.nn.functional.silu(first) * second
    else:
        expected = torch.nn.functional.gelu(shifted, approximate="tanh")
    result = activate(ours[0], ours[1] if biased else None)
    compare([result], [expected], ours, exact, GAPS[dtype])


@pytest.mark.parametrize("dtype", GAPS, ids=str)
@pytest.mark.parametrize("kind", ["layer norm", "rms norm"])
@pytest.mark.parametrize("adds", [True, False], ids=["residual", "alone"])
def test_norms_of_the_residual_stream_and_their_gradients(kernels, dtype, kind, adds):
    width = 96
    shapes = [(37, 3, width), (width,), *[(width,)] * (kind == "layer norm")]
    ours, exact = pairs(dtype, *shapes, *[(37, 3, width), (width,)] * adds)
    bias, exact_bias = (ours[2], exact[2]) if kind == "layer norm" else (None, None)
    total = exact[0]
    if adds:
        total = total + exact[-1] + exact[-2]
        # The residual stream is stored in its number format, and the stored values are normalized.
        total = total + (total.detach().to(dtype).double() - total.detach())
    if kind == "layer norm":
        expected = torch.nn.functional.layer_norm(total, (width,), exact[1], exact_bias, 1e-5)
    else:
        expected = torch.nn.functional.rms_norm(total, (width,), exact[1], 1e-5)
    if adds:
        results = kernels["norm"].add_and_normalize(
            ours[0], ours[-1], ours[-2], ours[1], bias, 1e-5
        )
        compare(results, [expected, total], ours, exact, GAPS[dtype])
    else:
        result = kernels["norm"].normalize(ours[0], ours[1], bias, 1e-5)
        compare([result], [expected], ours, exact, GAPS[dtype])


@pytest.mark.parametrize("dtype", GAPS, ids=str)
def test_cross_entropy_leaves_padding_out(kernels, dtype):
    (scores,), (exact,) = pairs(dtype, (5, 3, 700))
    labels = torch.randint(0, 650, (5, 3), generator=torch.Generator().manual_seed(4))
    losses = kernels["loss"].cross_entropy(scores * 1, labels, One(), vocabulary=650)
    expected = torch.nn.functional.cross_entropy(
        exact[..., :650].reshape(-1, 650), labels.view(-1), reduction="none"
    ).view(5, 3)
    compare([losses], [expected], [scores], [exact], GAPS[dtype])


@pytest.mark.parametrize("hooked", [True, False])
def test_a_bias_adds_its_gradients_up_in_float32(kernels, hooked):
    (values,), (exact,) = pairs(HALF, (45, 3, 200))
    bias = torch.nn.Parameter(torch.zeros(200, dtype=HALF))
    assert relative(kernels["sums"].column_sum(values.detach(), bias), exact.sum((0, 1))) < 6e-3
    bias.main_grad = torch.zeros(200)
    bias.sums_in_place, bias.needs_hook = True, hooked
    for _ in range(2):
        handed_over = kernels["sums"].column_sum(values.detach(), bias)
        assert (handed_over is None) is not hooked
    assert relative(bias.main_grad, 2 * exact.sum((0, 1))) < 1e-6


def test_a_norm_adds_its_gradients_up_in_float32(kernels):
    (values, weight, bias), exact = pairs(SINGLE, (45, 3, 96), (96,), (96,))
    parameters = [torch.nn.Parameter(weight.detach()), torch.nn.Parameter(bias.detach())]
    for parameter in parameters:
        parameter.main_grad = torch.zeros(96)
        parameter.sums_in_place = True
    result = kernels["norm"].normalize(values, *parameters, 1e-5)
    expected = torch.nn.functional.layer_norm(exact[0], (96,), *exact[1:], 1e-5)
    share = torch.randn_like(expected)
    (result.double() * share).sum().backward()
    (expected * share).sum().backward()
    assert [parameter.grad for parameter in parameters] == [None, None]
    for parameter, exact_parameter in zip(parameters, exact[1:], strict=True):
        assert relative(parameter.main_grad, exact_parameter.grad) < 1e-6


def test_products_in_8_bits_are_as_exact_as_8_bits_are(kernels):
    (values, weight, bias), exact = pairs(HALF, (48, 64), (32, 64), (32,))
    eight_bits = kernels["eight_bits"]
    # The Triton interpreter truncates where a GPU rounds, so errors are twice as large here as on a
    # GPU.
    with torch.no_grad():
        found = eight_bits.product(values * 1e4, weight, bias)
        assert relative(found, exact[0] * 1e4 @ exact[1].t() + exact[2]) < 0.12
        (gradient,), (exact_gradient,) = pairs(HALF, (48, 32))
        found = eight_bits.product_of_gradient(gradient * 1e-6, weight)
        assert relative(found, exact_gradient * 1e-6 @ exact[1]) < 0.2
        weight.data.mul_(2)  # changed as an optimizer would, so the 8-bit copy is computed again
        eight_bits.begin_pass()
        found = eight_bits.product_of_gradient(gradient, weight)
        assert relative(found, 2 * exact_gradient @ exact[1]) < 0.2
        zeros, scale = eight_bits.in_8_bits(torch.zeros(64, 16), torch.float8_e5m2)
        assert zeros.float().abs().sum() == 0 and scale > 0


@pytest.mark.training
def test_a_training_in_8_bits_follows_one_in_bf16(zygote, tmp_path, corpus):
    losses = {}
    for fp8 in ("none", "tensorwise"):
        folder = tmp_path / fp8
        folder.mkdir()
        (folder / "data").symlink_to(corpus)
        content = specs.spec(
            model={"sequence_length": 16, "positions": 16},
            iterations=4,
            global_batch=4,
            precision="bf16",
            peak=1e-2,  # the weights must change enough to reveal stale ones
            warmup=0,
            tuning={"kernels": "compiled"},
        )
        content["precision"]["fp8"] = fp8
        losses[fp8] = zygote.train(folder, content).losses()
    assert losses["tensorwise"] == pytest.approx(losses["none"], rel=5e-3)
    assert losses["tensorwise"] != losses["none"]


LAYOUTS = {
    "alone": {},
    "tensor": {"tensor": 2},
    "sequence": {"tensor": 2, "parallel": {"sequence": True}},
    "pipeline": {"pipeline": 2},
    "interleaved": {"pipeline": 2, "virtual_pipeline": 2},
    "copies": {"copies": 2, "tuning": {"overlap_gradients": True}},
    "context": {"parallel": {"context": 2, "world_size": 2}},
    "recompute": {"recompute": "full"},
    "llama": {"model": {"activation": "swiglu", "normalization": "rmsnorm", "biases": False}},
    "deepspeed": {"engine": "deepspeed"},
    "deepspeed zero 3": {"engine": "deepspeed", "copies": 2, "parallel": {"zero_stage": 3}},
}


@pytest.mark.training
@pytest.mark.rotate(4)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_kernels_change_no_loss(layout, zygote, tmp_path, corpus):
    losses = {}
    for kernels in ("plain", "compiled"):
        folder = tmp_path / kernels
        folder.mkdir()
        (folder / "data").symlink_to(corpus)
        changes = LAYOUTS[layout]
        tuning = changes.get("tuning", {}) | {"kernels": kernels}
        # The interpreter takes a millisecond per row, so there are only a few short sequences.
        model = changes.get("model", {}) | {"sequence_length": 16, "positions": 16}
        content = specs.spec(
            **{**changes, "tuning": tuning, "model": model}, iterations=2, global_batch=4
        )
        losses[kernels] = zygote.train(folder, content).losses()
    assert losses["compiled"] == pytest.approx(losses["plain"], rel=2e-7)
    assert losses["compiled"][0] != losses["compiled"][1]

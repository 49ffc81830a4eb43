"""Training on a CPU.

This module replaces the torch.cuda functions that megatron-core calls, and speeds up matmuls.

megatron-core 0.16 always asks `torch.cuda` for the current device, random states and tensor type
names. On a CPU, this module replaces the functions that return these. If torch sees a GPU, this
module changes nothing.

torch multiplies float32 matrices with MKL, which uses its AVX2 code on processors not made by
Intel: 105 GFLOP/s per Zen 5 core. oneDNN, which torch uses for 16-bit numbers, reaches 200 to 250
GFLOP/s in all three matmuls of a linear layer (torch 2.13, 2026-11-22). Both accumulate in float32.
On a processor without bfloat16 instructions, a torch bfloat16 matmul is 5 to 80 times slower than a
float32 matmul. There, the factors are widened to float32, and the result is rounded once.
"""

import ctypes
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from runbook.training.ranks import on_gpu

_FACTORIES = (
    "tensor",
    "zeros",
    "ones",
    "empty",
    "full",
    "arange",
    "rand",
    "randn",
    "randint",
    "as_tensor",
    "eye",
)


@functools.cache
def answer_for_cpu() -> None:
    """Install replacements for `torch.cuda` functions if there is no GPU."""
    if on_gpu():
        return
    keep_freed_memory()
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    for name in (
        "synchronize",
        "empty_cache",
        "reset_peak_memory_stats",
        "set_device",
        "current_stream",
    ):
        setattr(torch.cuda, name, lambda *_, **__: None)

    _answer_random_states()
    name_types_as_on_gpu()
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def name_types_as_on_gpu() -> None:
    """Make `Tensor.type()` return the name a tensor has on a GPU.

    Optimizers compare it with names such as torch.cuda.FloatTensor.
    """
    original = torch.Tensor.type

    def type_(
        self: torch.Tensor,
        dtype: Any = None,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        if dtype is not None:
            return original(self, dtype, *arguments, **options)
        name = original(self)
        if ".cuda." in name:
            return name
        return name.replace("torch.", "torch.cuda.", 1)

    torch.Tensor.type = type_  # type: ignore[method-assign,assignment]


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks instead of returning each one to the kernel.

    Activations are allocated and freed in every micro-batch. Faulting in their pages each time took
    10 to 15 % of a step with the 12 x 512 model (measured 2026-11, glibc 2.36); the pages for the
    logits alone took 4 % (2026-11-23). Other C libraries are left unchanged.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        # M_TRIM_THRESHOLD, M_MMAP_MAX of <malloc.h>
        trim_threshold, mmap_max = -1, -4
        mallopt(trim_threshold, -1)
        mallopt(mmap_max, 0)


def _answer_random_states() -> None:
    """Make the functions for GPU random states use the generator on the CPU.

    The "GPU" states that Megatron forks become states of the default generator on the CPU.
    """
    from megatron.core.tensor_parallel import random

    def get(device: Any = None, **_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def put(state: torch.Tensor, device: Any = None, **_: Any) -> None:
        torch.set_rng_state(state)

    random._get_cuda_rng_state = get
    random._set_cuda_rng_state = put
    torch.cuda.get_rng_state, torch.cuda.set_rng_state = get, put  # type: ignore[assignment]
    # torch.manual_seed cannot be used here, since it calls torch.cuda.manual_seed_all.
    torch.cuda.manual_seed = torch.cuda.manual_seed_all = torch.default_generator.manual_seed  # type: ignore[assignment]


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def make(*arguments: Any, **options: Any) -> Any:
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        options.pop("pin_memory", None)
        return factory(*arguments, **options)

    return make


# One matmul computes the weight gradient for this many outputs of a layer
OUTPUT_BLOCK = 2048

SUM_DEPTH = 256
"""Number of products a matmul sums at a time.

With this number, the error in the result is 3e-7 of its norm, as with MKL.

By default, oneDNN sums a thousand products at a time, with an error of 6e-7. With this error, one
in a million weights differs by 1.1e-5 from a plain program after the first Adam step. The smaller
sums cost 2 to 3 % of a step with the 12 x 512 model.
"""

_CPU_INFO = Path("/proc/cpuinfo")


@functools.cache
def onednn_is_faster() -> bool:
    """Return whether oneDNN is faster than MKL on this processor.

    oneDNN is faster if torch has both libraries, and the CPU has AVX-512 and is not from Intel.
    """
    both = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]
    if on_gpu() or not both or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    return _CPU_INFO.is_file() and "GenuineIntel" not in _CPU_INFO.read_text(
        encoding="utf-8", errors="replace"
    )


@functools.cache
def multiplies_half() -> bool:
    """Return whether torch has fast kernels for 16-bit floats here: AVX-512 BF16 or AMX."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@functools.cache
def widen_half_matmuls() -> None:
    """Compute every 16-bit matmul on the CPU in float32, if the processor has no 16-bit kernels."""
    if not (on_gpu() or multiplies_half()):
        widen_every_half_matmul()


def widen_every_half_matmul() -> None:
    """Compute 16-bit matmuls in float32 on any processor.

    Most processors have no fast fp16 kernels.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name in ("mm", "bmm", "addmm", "baddbmm"):
            _MATMULS.impl(name, _widened(getattr(torch.ops.aten, name).out), "CPU")  # type: ignore[no-untyped-call]


_MATMULS = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
"""Kept as long as the process runs, because torch removes the kernels when the library object is
freed."""


def _widened(multiply_into: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    def multiply(*tensors: torch.Tensor, **scalars: Any) -> torch.Tensor:
        number_format = tensors[0].dtype
        if number_format in (torch.bfloat16, torch.float16):
            tensors = tuple(tensor.float() for tensor in tensors)
        result = torch.empty(0, dtype=tensors[0].dtype)
        multiply_into(*tensors, **scalars, out=result)
        return result.to(number_format)

    return multiply


def product(input: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return `input @ right + bias`, computed in the fastest way on this processor."""
    if input.dtype == torch.float32 and onednn_is_faster():
        return onednn_matmul(input, right, bias)
    if bias is None:
        return input @ right
    has_kernel = input.dtype == torch.bfloat16 and multiplies_half()
    if has_kernel:
        return _matmul(input, right, bias)
    return torch.addmm(bias, input, right)


def onednn_matmul(
    input: torch.Tensor,
    right: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `input @ right + bias` for two float32 matrices.

    If the inner dimension is larger than a row of the result, `SUM_DEPTH` products are summed at a
    time. Otherwise, copying the result (possibly all logits) would cost more than the extra
    precision is worth.
    """
    depth = input.shape[1]
    if depth <= max(SUM_DEPTH, right.shape[1] - 1):
        return _matmul(input, right, bias)
    first, *others = slices(depth, SUM_DEPTH)
    result = _matmul(input[:, first].contiguous(), right[first], bias)
    for block in others:
        result = _matmul(input[:, block].contiguous(), right[block], None, result)
    return result


def slices(length: int, size: int) -> list[slice]:
    """Return consecutive slices of `size` that cover `length`. The last slice may be shorter."""
    return [slice(start, start + size) for start in range(0, length, size)]


def _matmul(
    input: torch.Tensor,
    right: torch.Tensor,
    bias: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
) -> torch.Tensor:
    # With any other strides, oneDNN would be a hundred times slower
    if not (right.is_contiguous() or right.t().is_contiguous()):
        right = right.contiguous()

    multiply = torch.ops.mkldnn._linear_pointwise
    if addend is None:
        return multiply(input, right.t(), bias, "none", [], "")  # type: ignore[no-any-return]
    return multiply.binary(input, addend, right.t(), None, "add")  # type: ignore[no-any-return]


def add_weight_gradient(gradient: torch.Tensor, values: torch.Tensor, total: torch.Tensor) -> None:
    """Add `gradient.t() @ values` to `total`, block by block.

    oneDNN copies a float32 factor that is sliced or transposed. With blocks, the whole gradient
    (perhaps for all logits) is never copied. If `values` is the smaller factor, it is copied once.
    """
    by_onednn = values.dtype == torch.float32 and onednn_is_faster()
    if by_onednn and gradient.shape[1] > values.shape[1]:
        transposed = values.t().contiguous()
    else:
        transposed = None

    for block in slices(gradient.shape[1], OUTPUT_BLOCK):
        part = gradient[:, block]
        if transposed is not None:
            total[block] += _matmul(transposed, part).t()
        else:
            total[block] += _matmul(part.t(), values) if by_onednn else part.t() @ values

"""The highest speeds that the device reaches: matrix products, attention, copies, checksums, files.

The matrix products come from one layer of the 1.3B model at 8,192 tokens, to compare a step time
with the time for its products alone.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_stages import device
from benchmarks.gpu_stages.worker import Emit

INPUT_SETS = 4
"""Number of input sets, which are used in turn.

At 40 MB each, four sets do not fit into 50 to 60 MB of L2 cache.
"""
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
WGRAD_TOLERANCE = 2e-3
"""Relative error allowed in a float32 sum over bf16 products if they are added in another order."""


@dataclass(frozen=True)
class Sizes:
    """Problem sizes to measure."""

    square: int
    tokens: int
    hidden: int
    vocabulary: int
    batch: int
    heads: int
    sequence: int
    head_size: int
    copy_bytes: int
    host_bytes: int
    calls: int


FULL = Sizes(
    square=8192,
    tokens=8192,
    hidden=2048,
    vocabulary=50304,
    batch=4,
    heads=16,
    sequence=2048,
    head_size=128,
    copy_bytes=4 * 2**30,
    host_bytes=2 * 2**30,
    calls=10,
)
REHEARSAL = Sizes(
    square=128,
    tokens=64,
    hidden=64,
    vocabulary=256,
    batch=1,
    heads=2,
    sequence=32,
    head_size=16,
    copy_bytes=2**20,
    host_bytes=2**20,
    calls=1,
)


def measure(arguments: dict[str, Any], emit: Emit) -> None:
    """Emit a row for each ceiling.

    If this torch or device refuses a measurement, the row gives the reason.
    """
    sizes = REHEARSAL if arguments["rehearsal"] else FULL
    torch.manual_seed(0)
    for group in (squares, layer_products, wide_gradients, biases, attention, eight_bits, copies):
        for name, action in group(sizes).items():
            emit({"measured": name} | _attempt(action))
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    with tempfile.TemporaryDirectory() as folder:
        for name, action in host(sizes, Path(folder)).items():
            emit({"measured": name} | _attempt(action))


Action = Callable[[], dict[str, Any]]


def _attempt(action: Action) -> dict[str, Any]:
    try:
        return action()
    except (RuntimeError, TypeError, NotImplementedError, ValueError, OSError) as error:
        return {"failed": f"{type(error).__name__}: {error}"[:400]}


def _half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device.device(), dtype=torch.bfloat16)


def _rate(operations: float, seconds: float) -> dict[str, float]:
    return {"seconds": seconds, "tflops": operations / seconds / 1e12}


def _time(sizes: Sizes, functions: list[Callable[[], Any]]) -> float:
    return device.seconds_per_call(functions, calls=sizes.calls)


def _product(sizes: Sizes, rows: int, inner: int, columns: int, kind: str) -> dict[str, Any]:
    """Time a product as a linear layer computes it: forward x w^T, dgrad g w, wgrad g^T x."""
    functions = []
    for _ in range(INPUT_SETS):
        inputs = _half(rows, inner)
        weight = _half(columns, inner)
        gradient = _half(rows, columns)
        if kind == "forward":
            functions.append(lambda x=inputs, w=weight: torch.mm(x, w.t()))
        elif kind == "dgrad":
            functions.append(lambda g=gradient, w=weight: torch.mm(g, w))
        else:
            functions.append(lambda g=gradient, x=inputs: torch.mm(g.t(), x))
    return _rate(2.0 * rows * inner * columns, _time(sizes, functions))


def squares(sizes: Sizes) -> dict[str, Action]:
    """Return the large square product in bf16."""
    size = sizes.square
    return {f"gemm {size}^3 bf16": lambda: _product(sizes, size, size, size, "forward")}


def layer_shapes(sizes: Sizes) -> dict[str, tuple[int, int]]:
    """Return the inner and outer width for each matrix in a layer, and for the output layer."""
    hidden = sizes.hidden
    return {
        "qkv": (hidden, 3 * hidden),
        "proj": (hidden, hidden),
        "fc1": (hidden, 4 * hidden),
        "fc2": (4 * hidden, hidden),
        "logits": (hidden, sizes.vocabulary),
    }


def layer_products(sizes: Sizes) -> dict[str, Action]:
    """Return the matrix products in a layer and for the logits, each in three directions."""
    actions: dict[str, Action] = {}
    for name, (inner, columns) in layer_shapes(sizes).items():
        for kind in ("forward", "dgrad", "wgrad"):
            actions[f"{name} {kind}"] = lambda i=inner, c=columns, k=kind: _product(
                sizes, sizes.tokens, i, c, k
            )
    return actions


def wide_gradients(sizes: Sizes) -> dict[str, Action]:
    """Return weight gradients added up in float32, by the product itself and by a second pass."""
    actions: dict[str, Action] = {}
    for name, (inner, columns) in layer_shapes(sizes).items():
        actions[f"{name} wgrad into fp32"] = lambda i=inner, c=columns: _wide_gradient(sizes, i, c)
    return actions


def _wide_gradient(sizes: Sizes, inner: int, columns: int) -> dict[str, Any]:
    pairs = [(_half(sizes.tokens, columns), _half(sizes.tokens, inner)) for _ in range(INPUT_SETS)]
    total = torch.randn(columns, inner, device=device.device())

    def by_second_pass(gradient: torch.Tensor, inputs: torch.Tensor) -> None:
        total.add_(torch.mm(gradient.t(), inputs))

    slow = _time(sizes, [lambda p=pair: by_second_pass(*p) for pair in pairs])
    row: dict[str, Any] = {"mm_then_add_seconds": slow}

    def by_product(gradient: torch.Tensor, inputs: torch.Tensor) -> None:
        torch.addmm(total, gradient.t(), inputs, out_dtype=torch.float32, out=total)

    gradient, inputs = pairs[0]
    expected = total + gradient.float().t() @ inputs.float()
    by_product(gradient, inputs)
    error = float((total - expected).norm() / expected.norm())
    fast = _time(sizes, [lambda p=pair: by_product(*p) for pair in pairs])
    operations = 2.0 * sizes.tokens * inner * columns
    correct = error < WGRAD_TOLERANCE
    row |= {"addmm": _rate(operations, fast), "relative_error": error, "correct": correct}
    return row | {"speedup": slow / fast}


def biases(sizes: Sizes) -> dict[str, Action]:
    """Return forward products with a bias: added in the epilogue, and added afterwards."""
    actions: dict[str, Action] = {}
    for name, (inner, columns) in layer_shapes(sizes).items():
        if name != "logits":
            actions[f"{name} with bias"] = lambda i=inner, c=columns: _bias(sizes, i, c)
    return actions


def _bias(sizes: Sizes, inner: int, columns: int) -> dict[str, Any]:
    weight = _half(columns, inner)
    bias = _half(columns)
    inputs = [_half(sizes.tokens, inner) for _ in range(INPUT_SETS)]
    together = _time(sizes, [lambda x=x: functional.linear(x, weight, bias) for x in inputs])
    apart = _time(sizes, [lambda x=x: torch.mm(x, weight.t()).add_(bias) for x in inputs])
    alone = _time(sizes, [lambda x=x: torch.mm(x, weight.t()) for x in inputs])
    return {
        "linear_seconds": together,
        "mm_then_add_seconds": apart,
        "mm_alone_seconds": alone,
    }


def attention(sizes: Sizes) -> dict[str, Action]:
    """Return causal attention forward and backward, for each backend, on views as in megatron-core."""
    actions: dict[str, Action] = {"attention default": lambda: _attention(sizes, None)}
    for name, backend in BACKENDS.items():
        actions[f"attention {name}"] = lambda b=backend: _attention(sizes, b)
    actions["attention default, contiguous"] = lambda: _attention(sizes, None, contiguous=True)
    return actions


def _attention(
    sizes: Sizes, backend: SDPBackend | None, *, contiguous: bool = False
) -> dict[str, Any]:
    query, key, value = _attention_inputs(sizes, contiguous=contiguous)
    places = (sizes.sequence, sizes.batch, sizes.heads, sizes.head_size)
    gradient = _half(*places).permute(1, 2, 0, 3)

    def forward() -> torch.Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    def both() -> None:
        torch.autograd.grad(forward(), (query, key, value), gradient)

    chosen = list(SDPBackend.__members__.values()) if backend is None else [backend]
    chosen = [choice for choice in chosen if choice is not SDPBackend.ERROR]
    with sdpa_kernel(chosen) if backend is not None else torch.enable_grad():
        forward_seconds = _time(sizes, [forward])
        both_seconds = _time(sizes, [both])
    # Half of the scores are masked. The backward pass computes five products, and the forward pass
    # two.
    operations = 2.0 * sizes.batch * sizes.heads * sizes.sequence**2 * sizes.head_size
    return {
        "forward": _rate(operations, forward_seconds),
        "forward_and_backward": _rate(3.5 * operations, both_seconds),
    }


def _attention_inputs(sizes: Sizes, *, contiguous: bool) -> list[torch.Tensor]:
    """Return query, key and value as [batch, heads, sequence, size] views of one [sequence, batch, ...] tensor."""
    mixed = _half(sizes.sequence, sizes.batch, sizes.heads, 3 * sizes.head_size)
    parts = [part.permute(1, 2, 0, 3) for part in mixed.split(sizes.head_size, dim=-1)]
    if contiguous:
        parts = [part.contiguous() for part in parts]
    return [part.detach().requires_grad_() for part in parts]


def eight_bits(sizes: Sizes) -> dict[str, Action]:
    """Return products in float8 e4m3 with one scale per tensor."""
    square = (sizes.square, sizes.square, sizes.square)
    layer = (sizes.tokens, sizes.hidden, 4 * sizes.hidden)
    return {
        f"scaled_mm {sizes.square}^3 e4m3": lambda: _scaled(sizes, *square, fast=True),
        f"scaled_mm {sizes.square}^3 e4m3, exact sums": lambda: _scaled(sizes, *square, fast=False),
        "scaled_mm fc1 e4m3": lambda: _scaled(sizes, *layer, fast=True),
    }


def _scaled(sizes: Sizes, rows: int, inner: int, columns: int, *, fast: bool) -> dict[str, Any]:
    left = _half(rows, inner).to(torch.float8_e4m3fn)
    right = _half(columns, inner).to(torch.float8_e4m3fn).t()
    scale = torch.ones((), device=device.device())

    def multiply() -> torch.Tensor:
        return torch._scaled_mm(
            left,
            right,
            scale_a=scale,
            scale_b=scale,
            out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )

    return _rate(2.0 * rows * inner * columns, _time(sizes, [multiply]))


def copies(sizes: Sizes) -> dict[str, Action]:
    """Return actions that time copies on the device and to the host."""
    return {
        "copy on the device": lambda: _device_copy(sizes),
        "copy to the host, pinned": lambda: _host_copy(sizes, pinned=True),
        "copy to the host, pageable": lambda: _host_copy(sizes, pinned=False),
    }


def _bandwidth(count: int, seconds: float) -> dict[str, float]:
    return {"seconds": seconds, "gigabytes_per_second": count / seconds / 1e9}


def _device_copy(sizes: Sizes) -> dict[str, Any]:
    source = torch.zeros(sizes.copy_bytes, dtype=torch.uint8, device=device.device())
    target = torch.empty_like(source)
    seconds = _time(sizes, [lambda: target.copy_(source)])
    return _bandwidth(2 * sizes.copy_bytes, seconds)  # read and written


def _host_copy(sizes: Sizes, *, pinned: bool) -> dict[str, Any]:
    source = torch.zeros(sizes.host_bytes, dtype=torch.uint8, device=device.device())
    pins = pinned and torch.cuda.is_available()
    begun = time.monotonic()
    target = torch.empty(sizes.host_bytes, dtype=torch.uint8, pin_memory=pins)
    allocated = time.monotonic() - begun
    seconds = device.seconds_per_call([lambda: target.copy_(source)], repeats=2, calls=1, warmup=1)
    return _bandwidth(sizes.host_bytes, seconds) | {"allocation_seconds": allocated}


def host(sizes: Sizes, folder: Path) -> dict[str, Action]:
    """Return how fast the host does what a save needs: checksums and writing files."""
    return {
        "sha256": lambda: _sha256(sizes),
        "write and fsync": lambda: _write(sizes, folder),
    }


def _sha256(sizes: Sizes) -> dict[str, Any]:
    content = bytes(sizes.host_bytes // 4)
    start = time.perf_counter()
    hashlib.sha256(content).hexdigest()
    return _bandwidth(len(content), time.perf_counter() - start)


def _write(sizes: Sizes, folder: Path) -> dict[str, Any]:
    block = os.urandom(2**20) * 64
    count = max(1, sizes.host_bytes // len(block))
    start = time.perf_counter()
    with (folder / "file").open("wb") as file:
        for _ in range(count):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return _bandwidth(count * len(block), time.perf_counter() - start)

"""Replaces a GPU this machine lacks.

torch.cuda behaves as on the target, and fake tensors are on a separate device.

A PyTorch build for CPUs has no CUDA device guard, so fake tensors on "cuda" break in autograd. The
torch device type for backends written in Python has a guard, so every request for CUDA receives
that device instead. As on the cluster, an operation fails if one tensor is still on the host and
the other is on the GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

# Torch 2.10 and newer
from torch.utils.backend_registration import (
    _setup_privateuseone_for_python_backend,
)

NAME = "gpu"
_IS_CUDA = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]


class _Stream:
    """A stream or event that does nothing. With no GPU, all operations run in order."""

    cuda_stream = 0

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., float]:
        return lambda *_, **__: 0.0


def install() -> None:
    """Make torch.cuda behave as if there were a GPU, until this process ends."""
    from megatron.core.tensor_parallel import random

    _setup_privateuseone_for_python_backend(NAME)
    cuda: Any = torch.cuda
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "max_memory_allocated": lambda *_: 0,
        "get_device_capability": lambda *_: (9, 0),
        "current_stream": lambda *_: _Stream(),
        "Stream": lambda *_, **__: _Stream(),
        "Event": lambda *_, **__: _Stream(),
        "stream": lambda *_: _Stream(),
        # torch optimizers call this before each step, and a CUDA build of PyTorch would ask a
        # driver that may not exist.
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
    }
    for name in (
        "synchronize",
        "empty_cache",
        "reset_peak_memory_stats",
        "set_device",
        "_lazy_init",
        "set_rng_state",
    ):
        answers[name] = lambda *_, **__: None

    for name in ("manual_seed", "manual_seed_all"):
        answers[name] = lambda *_: None
    for name, function in answers.items():
        setattr(cuda, name, function)
    random._get_cuda_rng_state = answers["get_rng_state"]
    random._set_cuda_rng_state = answers["set_rng_state"]


class StandIn(TorchFunctionMode):
    """Redirects requests for CUDA to the stand-in device.

    C++ code that reads numbers from fake tensors is also replaced here.
    """

    def __init__(self, *, on_gpu: bool) -> None:
        super().__init__()
        self.device = torch.device(NAME, 0) if on_gpu else torch.device("cpu")

    def __torch_function__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Handle a call to torch from Python."""
        options = dict(kwargs or {})
        if func is _original(torch.tensor) and isinstance(args[0], list | tuple):
            args = (tree_map_only(torch.Tensor, torch.Tensor.item, args[0]), *args[1:])
        if "device" in options:
            options["device"] = self._meant(options["device"])
        if func is torch.Tensor.cuda:
            return args[0].to(self.device)
        # Fake tensors do not support this function.
        if func is torch.Tensor.pin_memory:
            return args[0]
        if func is torch.Tensor.to:
            args = tuple(self._meant(argument) for argument in args)
        elif func in (_original(torch.tensor), _original(torch.as_tensor)) and "device" in options:
            # torch would fill the tensor on the host, and then try to move nonexistent numbers.
            options.pop("device")
            result = func(*args, **options)
            return torch.empty(result.shape, dtype=result.dtype, device=self.device)
        elif func is torch.Tensor.type and len(args) == 1:
            return func(*args).replace(f"torch.{NAME}.", "torch.cuda.")
        elif func == _IS_CUDA:
            return args[0].device == self.device

        return func(*args, **options)

    def _meant(self, value: Any) -> Any:
        is_cuda = isinstance(value, str | torch.device) and str(value).startswith("cuda")
        return self.device if is_cuda else value


def attention(*, for_gpu: bool) -> Callable[..., torch.Tensor]:
    """Return a replacement for torch attention.

    With fake tensors, the torch function would create the whole score matrix.
    """
    whole = torch.nn.functional.scaled_dot_product_attention

    def attend(*tensors: torch.Tensor, dropout_p: float = 0.0, **options: Any) -> torch.Tensor:
        # The kernel for CPUs does not support dropout on scores.
        has_kernel = for_gpu or not dropout_p
        kernel: Callable[..., torch.Tensor] = _flash_attention if has_kernel else whole
        return kernel(*tensors, dropout_p=dropout_p, **options)

    return attend


@functools.cache
def know_onednn() -> None:
    """Register the result shape for the oneDNN matmul that adds to a matrix.

    `cpu.onednn_matmul` calls it, and torch does not know the shape.
    """
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        torch.library.register_fake(
            "mkldnn::_linear_pointwise.binary", lambda input, addend, *_: torch.empty_like(addend)
        )


def _original(factory: Any) -> Any:
    """Return the original torch function, which `cpu.answer_for_cpu` may have wrapped."""
    return getattr(factory, "__wrapped__", factory)


def _flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    attn_mask: Any = None,
) -> torch.Tensor:
    """Call the kernel used by torch on a GPU for 16-bit numbers.

    Otherwise torch would create the whole score matrix.
    """
    is_causal = is_causal or attn_mask is not None
    if enable_gqa:
        repeats = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))

    kernels: Any = torch.ops.aten
    if query.device.type == "cpu":
        mixed = kernels._scaled_dot_product_flash_attention_for_cpu(
            query,
            key,
            value,
            dropout_p,
            is_causal,
            scale=scale,
        )
    else:
        mixed = kernels._scaled_dot_product_flash_attention(
            query,
            key,
            value,
            dropout_p,
            is_causal,
            False,
            scale=scale,
        )

    return mixed[0]  # type: ignore[no-any-return]


def move_module(
    module: torch.nn.Module,
    change: Callable[[torch.Tensor], torch.Tensor],
    recurse: bool = True,
) -> Any:
    """Replace `Module._apply`, which swaps tensors but cannot swap fake tensors.

    New parameters get the same attributes as the old ones.
    """
    for child in module.children() if recurse else ():
        move_module(child, change)
    for tensors in (module._parameters, module._buffers):
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            with torch.no_grad():
                moved = change(tensor)
            if moved is tensor:
                continue
            if isinstance(tensor, torch.nn.Parameter):
                moved = torch.nn.Parameter(moved.detach(), tensor.requires_grad)
                vars(moved).update(
                    {key: mark for key, mark in vars(tensor).items() if key not in vars(moved)}
                )

            tensors[name] = moved  # type: ignore[assignment]

    return module


def list_of_zeros(tensor: torch.Tensor) -> Any:
    """Replace `FakeTensor.tolist`, which reads each number separately.

    A real tensor is copied as a whole by torch.
    """
    if tensor.numel():
        tensor.view(-1)[0].item()
    return numpy.zeros(tuple(tensor.shape)).tolist()

"""Lets megatron-core run where there is no GPU, by reading its "cuda" as the CPU.

megatron-core 0.16 asks `torch.cuda` for the current device, random states and tensor type names on every path. Here
those few questions are answered for the CPU; nothing is changed where torch sees a GPU.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

_FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn", "randint", "as_tensor", "eye")


def answer_for_cpu() -> bool:
    """Put the answers in place, once; True where there is no GPU and they are needed."""
    if torch.cuda.is_available():
        return False
    if not getattr(torch.cuda, "answered_for_cpu", False):
        _keep_freed_memory()
        _answer_device_questions()
        _answer_random_states()
        _answer_types()
        for name in _FACTORIES:
            setattr(torch, name, _on_cpu(getattr(torch, name)))
        torch.cuda.answered_for_cpu = True  # type: ignore[attr-defined]
    return True


def _keep_freed_memory() -> None:
    """Let glibc keep freed blocks instead of handing each back to the kernel; the largest apart, so that none is split.

    Activations are allocated and freed in every micro-batch; faulting their pages in anew each time took 10 to 15 % of
    a step of the 12 x 512 model (measured 2026-11, glibc 2.36). Blocks over 32 MiB (logits) come from the kernel: a
    hole that a small block has bitten into cannot take them again, and the peak grew by a fifth. Pages of 2 MiB
    (`__main__`) make up for what that costs. Another C library is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of <malloc.h>
        mallopt(trim_threshold, -1)
        mallopt(mmap_threshold, 2**25)


def _answer_device_questions() -> None:
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "set_device", "current_stream"):
        setattr(torch.cuda, name, lambda *_, **__: None)


def _answer_random_states() -> None:
    """One generator for all: Megatron's forked "GPU" states are states of the CPU's default generator."""
    from megatron.core.tensor_parallel import random

    def get(device: Any = None, **_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def put(state: torch.Tensor, device: Any = None, **_: Any) -> None:
        torch.set_rng_state(state)

    random._get_cuda_rng_state, random._set_cuda_rng_state = get, put
    torch.cuda.get_rng_state, torch.cuda.set_rng_state = get, put  # type: ignore[assignment]
    # Not torch.manual_seed: that one calls torch.cuda.manual_seed_all in its turn.
    torch.cuda.manual_seed = torch.cuda.manual_seed_all = torch.default_generator.manual_seed  # type: ignore[assignment]


def _answer_types() -> None:
    """Optimizers compare `Tensor.type()` with torch.cuda.FloatTensor and its like."""
    original = torch.Tensor.type

    def type_(self: torch.Tensor, dtype: Any = None, *arguments: Any, **options: Any) -> Any:
        if dtype is not None:
            return original(self, dtype, *arguments, **options)
        name = original(self)
        return name if ".cuda." in name else name.replace("torch.", "torch.cuda.", 1)

    torch.Tensor.type = type_  # type: ignore[method-assign,assignment]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def make(*arguments: Any, **options: Any) -> Any:
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        return factory(*arguments, **options)

    return make

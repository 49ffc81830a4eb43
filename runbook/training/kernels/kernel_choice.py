"""Selects which parts of a step use our own GPU kernels (`training.kernels`).

`compiled` replaces four parts of megatron-core on a GPU, without Transformer Engine or Apex:

- `norm`: the gradient norm is read back once, not once for each weight (see gradient_norm.py);
- `linear`: the bias is added inside the matrix product, and the matmul for a weight gradient adds
  to the float32 sum (see linear.py);
- `layers`: norms, activations, biases and residual sums are one Triton kernel each (see layer.py);
- `cross_entropy`: the loss and its gradient are one Triton kernel each (see loss.py).

Weight names, checkpoints and random numbers do not change. Losses differ only by rounding.
"""

import functools
import os

import torch

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import PhasePlan
from runbook.training.messages import TrainingMessage
from runbook.training.ranks import on_gpu

PARTS = ("norm", "linear", "layers", "cross_entropy")

PARTS_VARIABLE = "RUNBOOK_KERNEL_PARTS"
"""Environment variable for benchmarks.

It contains a comma-separated list of parts to use. If it is not set, all are used.
"""


def chosen_parts(spec: PhasePlan, *, has_transformer_engine: bool) -> frozenset[str]:
    """Return the parts to replace.

    Raise `RefusedError` if `compiled` was requested but cannot run. `auto` uses the parts that can
    run on this machine. On a GPU, these are all parts, or only the norm and the loss if Transformer
    Engine provides the layers, or only the norm if Triton kernels cannot run. On a CPU, no parts
    are replaced.
    """
    kernels = spec.tuning.kernels
    if kernels == "plain" or (kernels == "auto" and not on_gpu()):
        return frozenset()
    fault = triton_fault()
    if fault and kernels == "compiled":
        raise RefusedError(TrainingMessage.KERNELS_NOT_COMPILED, fault=fault)
    if fault:
        # The norm is the only part without a Triton kernel.
        return frozenset({"norm"})

    listed = os.environ.get(PARTS_VARIABLE)
    parts = frozenset(PARTS) if listed is None else frozenset(filter(None, listed.split(",")))
    unknown = parts - frozenset(PARTS)
    if unknown:
        raise RefusedError(
            TrainingMessage.UNKNOWN_PARTS,
            parts_variable=PARTS_VARIABLE,
            unknown=", ".join(sorted(unknown)),
            parts=PARTS,
        )
    if has_transformer_engine:
        return parts & {"norm", "cross_entropy"}
    return parts


def fault_of_8_bits(parts: frozenset[str]) -> str:
    """Return the reason why 8-bit products cannot run here, or an empty string if they can."""
    if "linear" not in parts:
        return triton_fault() or "it needs training.kernels auto or compiled"
    if on_gpu() and torch.cuda.get_device_capability() < (8, 9):
        return (
            f"{torch.cuda.get_device_name()} cannot compute 8-bit matrix products (Ada, Hopper and "
            "later GPUs can)"
        )

    return ""


@functools.cache
def triton_fault() -> str:
    """Return why this process cannot run Triton kernels, or an empty string if it can.

    A kernel is compiled and run once, to notice a missing C compiler or an old driver. In tests,
    the Triton interpreter can run kernels on a CPU, slowly.
    """
    try:
        import triton  # noqa: F401

        from runbook.training.kernels import activation
    except ImportError as error:
        return f"Triton is not installed ({error})"

    if not on_gpu() and not os.environ.get("TRITON_INTERPRET"):
        return "Triton needs a GPU"
    device = torch.device("cuda" if on_gpu() else "cpu")
    values = torch.ones(4, 4, device=device)
    try:
        activation.bias_gelu(values, None)
    except Exception as error:  # noqa: BLE001 - compilers and drivers fail in many ways
        return f"no Triton kernel can be compiled here ({type(error).__name__}: {error})"

    return ""

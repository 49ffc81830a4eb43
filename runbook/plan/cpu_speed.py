"""Seconds of a step on a CPU: products of matrices at measured rates, and what scales with words, layers and weights.

The rates were measured on one core of an AMD EPYC with AVX-512 BF16 (torch 2.13, 2026-11-22); the other figures were
fitted to the idle steps of fourteen trainings there (17.7 M to 356 M parameters, sequences of 256 to 1,024, two
processes): the worst is 9 % off. Another CPU differs by clock and units; a smoke test's measurement corrects that.
"""

from __future__ import annotations

from dataclasses import dataclass

from runbook.params.schema import Precision, Recompute
from runbook.plan import flops
from runbook.plan.checks import Check, judge
from runbook.plan.choices import Choice
from runbook.plan.layout import Layout
from runbook.plan.machine import Machine
from runbook.plan.sizes import Shape, on_rank

BF16_UNITS = ("avx512_bf16", "amx_bf16")
"""Instructions that multiply bf16 directly."""

CORE_FLOPS = {
    "fp32": 90e9,
    "fp32 by AVX-512": 185e9,
    "bf16": 380e9,
    "bf16 by AVX-512": 72e9,
    "bf16 by slow code": 1e9,
}
"""Products of matrices a second on one core; fp32 without AVX-512 by MKL, the last two by ONEDNN_MAX_CPU_ISA there."""

CONVENTION = "megatron-causal"
"""Scores above the diagonal are not computed."""

WORD_SECONDS = 1.54e-9
"""Of one core, for each token and word of the vocabulary: the softmax of the loss and its gradient."""

ELEMENT_SECONDS = 59e-9
"""Of one core, for each token, layer and hidden number: norms, GELU, softmax of attention, sums, copies."""

MESSAGE_SECONDS = 19e-9
"""The same where tensor parallelism sends them to and fro."""

WEIGHT_SECONDS = 3.0e-9
"""For each weight on a rank: bringing gradients together, Adam, handing out new weights."""

CALL_SECONDS = 5e-3
"""For each layer and micro-batch on a rank: Python, and starting some hundred operations."""

FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class CpuStep:
    """Seconds of one step by what takes them."""

    products: float
    loss: float
    elements: float
    weights: float
    calls: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.products + self.loss + self.elements + self.weights + self.calls


def cpu_step(choice: Choice, layout: Layout, shape: Shape, machine: Machine | None) -> tuple[CpuStep | None, str]:
    """A step on the site's CPUs, and where it comes from; None with the reason where it cannot be known."""
    cores = ((machine.cores if machine else 0) or choice.site.hardware.cores_per_node) * choice.nodes
    if not cores:
        return None, "how many cores this machine has is not known"
    precision = choice.training.precision
    path = cpu_path(precision, machine.flags if machine else frozenset())
    if path is None:
        return None, f"whether this CPU multiplies {precision} directly is not known"
    again = 1 + FORWARD_SHARE if choice.training.recompute is Recompute.FULL else 1.0
    waiting = 1 + layout.bubble
    tokens = layout.global_batch * shape.sequence_length
    elements = tokens * shape.hidden * shape.layers / cores
    own = [on_rank(shape, tensor=layout.tensor, pipeline=layout.pipeline, stage=at) for at in range(layout.pipeline)]
    step = CpuStep(
        products=flops.flops(shape, layout.global_batch, CONVENTION) / (cores * CORE_FLOPS[path]) * again * waiting,
        loss=tokens * shape.padded_vocabulary * WORD_SECONDS / cores * waiting,
        elements=elements * (ELEMENT_SECONDS * again + (MESSAGE_SECONDS if layout.tensor > 1 else 0)) * waiting,
        weights=max(stage.total for stage in own) * WEIGHT_SECONDS,
        calls=shape.layers / layout.pipeline * layout.num_microbatches * CALL_SECONDS,
    )
    where = f"{cores} cores" if choice.nodes == 1 else f"{cores} cores of {choice.nodes} nodes"
    return step, (
        f"{where} x {CORE_FLOPS[path] / 1e9:g} GFLOP/s ({path}, measured) for products of matrices, "
        f"{step.products / step.seconds:.0%} of the step"
    )


def check_cpu(choice: Choice, machine: Machine | None) -> list[Check]:
    """Says beforehand, once for both phases, when a CPU has no unit for the number format asked for."""
    if choice.smoke or not choice.on_cpu or choice.training.precision is not Precision.BF16:
        return []
    name, rule = "bf16 on this CPU", "the CPU multiplies bf16 directly (AVX-512 BF16 or AMX)"
    path = cpu_path(Precision.BF16, machine.flags if machine else frozenset())
    if path is None:
        return [Check(name, "unknown", "which instructions this CPU has is not known", rule)]
    times = CORE_FLOPS[cpu_path(Precision.FP32, machine.flags if machine else frozenset()) or "fp32"] / CORE_FLOPS[path]
    slower = f"about {times:.1f} times as long as in fp32" if times > 1 else f"{1 / times:.1f} times as fast as fp32"
    return [
        judge(
            name,
            path == "bf16",
            f"{path}: products of matrices {'take ' if times > 1 else 'are '}{slower}",
            rule,
            "Set training.precision to fp32.",
            otherwise="warn",
        )
    ]


def cpu_path(precision: Precision, flags: frozenset[str]) -> str | None:
    """Which of the measured rates holds on a CPU with these instruction sets; None: not known.

    >>> cpu_path(Precision.BF16, frozenset({"avx512f", "avx512_bf16"})), cpu_path(Precision.BF16, frozenset({"avx2"}))
    ('bf16', 'bf16 by slow code')
    """
    if precision is Precision.FP32:
        return "fp32 by AVX-512" if "avx512f" in flags else "fp32"
    if precision is Precision.FP16 or not flags:
        return None
    if any(unit in flags for unit in BF16_UNITS):
        return "bf16"
    return "bf16 by AVX-512" if "avx512f" in flags else "bf16 by slow code"

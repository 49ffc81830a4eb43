"""Process memory and step time when training on a CPU.

tests/planning/measured_peaks.csv has measured values (torch 2.13, gloo, Linux, one to four
processes, 2026-11-22), and the test next to that file shows how accurate the memory estimate is.
Tensors do not account for all of the memory: oneDNN copies matrices into its own layout, and a
freed block is not always the right size for the next tensor.

The rates were measured on one core of an AMD EPYC with AVX-512 BF16 (torch 2.13, 2026-11-22). The
other values were fitted to step times from fourteen training runs on that machine while it was
otherwise idle (17.7 M to 356 M parameters, sequences of 256 to 1,024, two processes); the worst
prediction is 9 % off. Other CPUs have different clock rates and execution units; a smoke test
measures the difference, and the plan is corrected. Without a smoke test, a ladder times a matrix
product and scales all parts of a step accordingly.
"""

from runbook.core.checks import Check, judge
from runbook.plan_file.schema import Precision
from runbook.planning.choice import Choice, Machine
from runbook.planning.cost import flops
from runbook.planning.messages import PlanningMessage
from runbook.planning.sizes import on_rank

PROCESS_BYTES = 450 * 2**20
"""Memory used by Python, torch and megatron-core (360 MiB), and by buffers."""

ACTIVATIONS = 2.07
"""Bytes of process memory per byte of activations."""

DROPPED_SCORES = 4.4
"""Bytes of process memory per byte of 16-bit attention scores if dropout is used.

Without dropout, our attention stores no scores.
"""

LOGITS = 1.14
"""Bytes of process memory per byte of logits.

The same memory is used for their gradient (`training/cross_entropy.py`).
"""


def moment_bytes(
    precision: Precision,
    *,
    deepspeed: bool,
    zero_stage: int,
    data: int,
) -> float:
    """Return the temporary memory for the optimizer step, in bytes per parameter.

    The megatron-core distributed optimizer copies each rank's gradient shard; with 16-bit weights
    it also gathers the new weights.

    >>> moment_bytes("bf16", deepspeed=False, zero_stage=1, data=2)
    6.0
    """
    half = precision != "fp32"
    # ZeRO 3 keeps its buckets permanently.
    if deepspeed:
        if zero_stage == 3:
            whole = 0.0
        elif zero_stage == 0:
            whole = 5.0
        else:
            whole = 10.5 / data

        return whole if half else 2 * whole

    if zero_stage == 0:
        return 2.0
    if data == 1:  # Nothing is partitioned.
        return 5.5 if half else 8.0
    return (4.0 if half else 0.0) + (4.0 if half else 8.0) / data


BF16_UNITS = {"avx512_bf16": "AVX-512 BF16", "amx_bf16": "AMX BF16"}
"""Instructions that multiply bf16 directly."""

WIDENED = "bf16 in float32"
WIDENED_BY_AVX_512 = "bf16 in float32 by AVX-512"
CORE_FLOPS = {
    "fp32": 90e9,
    "fp32 by AVX-512": 185e9,
    "bf16": 380e9,
    WIDENED: 85e9,
    WIDENED_BY_AVX_512: 72e9,
}
"""Matmul FLOP/s per core. Without AVX-512, fp32 was measured with MKL.

Without bf16 instructions, the trainer widens bf16 values to float32. The trainer then reaches 0.95
to 0.97 times the fp32 rate (three shapes, medians of nine, one busy core of an AMD EPYC with AVX2,
torch 2.13, 2026-11-22). With AVX-512 this was not measured; the rate listed for AVX-512 is what
oneDNN reaches when it computes bf16 products in float32.
"""

CONVENTION = "megatron-causal"
"""FLOPs convention for our attention, which does not compute scores above the diagonal."""

WORD_SECONDS = 1.54e-9
"""Seconds on one core per token and vocabulary entry, for the softmax in the loss and the gradient.
"""

ELEMENT_SECONDS = 59e-9
"""Seconds on one core per token, layer and hidden unit, for norms, GELU, the attention softmax,
sums and copies.
"""

MESSAGE_SECONDS = 19e-9
"""Seconds per number that tensor parallelism sends back and forth."""

WEIGHT_SECONDS = 3.0e-9
"""Seconds per weight on a rank, for reducing gradients, for Adam, and for distributing new weights.
"""

CALL_SECONDS = 5e-3
"""Seconds per layer and micro-batch on a rank, for Python and for starting about a hundred
operations.
"""

FORWARD_SHARE = 1 / 3
"""Share of the operations in a step that belong to the forward pass."""


def cpu_step(choice: Choice, machine: Machine | None) -> tuple[dict[str, float] | None, str]:
    """Return the step time on CPUs at the site, in seconds by part, and where it comes from.

    If the time is unknown, return None and the reason.
    """
    cores = _cores_per_node(choice, machine) * choice.nodes
    if not cores:
        return None, PlanningMessage.CORES_NOT_KNOWN.fill()
    precision = choice.training.precision
    path = cpu_path(precision, machine.flags if machine else frozenset())
    if path is None:
        return None, PlanningMessage.CPU_NOT_KNOWN.fill(precision=precision)
    core_flops = CORE_FLOPS[path]
    parts = _step_parts(choice, cores, core_flops)
    if machine and machine.core_flops:
        slowdown = core_flops / machine.core_flops
        parts = {name: seconds * slowdown for name, seconds in parts.items()}
        core_flops = machine.core_flops
    if choice.nodes == 1:
        where = f"{cores} cores"
    else:
        where = f"{cores} cores of {choice.nodes} nodes"

    products_share = parts["products"] / sum(parts.values())
    basis = PlanningMessage.CPU_BASIS.fill(
        cores=where,
        gflops=core_flops / 1e9,
        path=path,
        share=products_share,
    )
    return parts, basis


def _cores_per_node(choice: Choice, machine: Machine | None) -> int:
    """Return the core count of this machine, or else of a node at the site; 0 if unknown."""
    if machine and machine.cores:
        return machine.cores
    return choice.site.hardware.cores_per_node


def _step_parts(choice: Choice, cores: int, core_flops: float) -> dict[str, float]:
    """Return the step time in seconds by part, on this many cores at this speed."""
    shape = choice.shape
    recomputes = choice.training.recompute == "full"
    again = 1 + FORWARD_SHARE * choice.recomputed if recomputes else 1.0
    waiting = 1 + choice.bubble
    tokens = choice.global_batch * shape.sequence_length
    elements = tokens * shape.hidden * shape.layers / cores
    step_flops = flops.flops(shape, choice.global_batch, CONVENTION)
    message_seconds = MESSAGE_SECONDS if choice.layout.tensor > 1 else 0
    return {
        "products": step_flops / (cores * core_flops) * again * waiting,
        "loss": tokens * shape.padded_vocabulary * WORD_SECONDS / cores * waiting,
        "elements": elements * (ELEMENT_SECONDS * again + message_seconds) * waiting,
        "weights": _largest_rank(choice) * WEIGHT_SECONDS,
        "calls": max(choice.stage_layers) * choice.num_microbatches * CALL_SECONDS,
    }


def _largest_rank(choice: Choice) -> int:
    """Return the parameter count on the largest rank."""
    layout = choice.layout
    ranks = []
    for stage, layers in enumerate(choice.stage_layers):
        ranks.append(
            on_rank(
                choice.shape,
                tensor=layout.tensor,
                pipeline=layout.pipeline,
                stage=stage,
                layers=layers,
            )
        )

    return max(rank.total for rank in ranks)


def check_cpu(choice: Choice, machine: Machine | None) -> list[Check]:
    """Warn once, for both phases, if bf16 is slow because this CPU has no bf16 instructions."""
    if choice.smoke or not choice.on_cpu or choice.training.precision != "bf16":
        return []
    name = PlanningMessage.CPU_PRECISION.fill()
    rule = "bf16 takes at most 1.5 times as long as fp32"
    flags = machine.flags if machine else frozenset[str]()
    path = cpu_path("bf16", flags)
    if path is None:
        return [Check(name, "unknown", "the instruction sets of this CPU are unknown", rule)]
    times = CORE_FLOPS[cpu_path("fp32", flags) or "fp32"] / CORE_FLOPS[path]
    if times > 1:
        comparison = PlanningMessage.TIMES_AS_LONG.fill(times=times)
    else:
        comparison = PlanningMessage.TIMES_AS_FAST.fill(times=1 / times)

    value = PlanningMessage.CPU_PRODUCTS.fill(path=path, comparison=comparison)
    return [
        judge(
            name,
            times <= 1.5,
            value,
            rule,
            PlanningMessage.SET_FP32.fill(),
            otherwise="warn",
        )
    ]


def cpu_path(precision: Precision, flags: frozenset[str]) -> str | None:
    """Return the key in `CORE_FLOPS` for a CPU with these instruction sets; None if unknown.

    >>> cpu_path("bf16", frozenset({"avx512f", "avx512_bf16"})), cpu_path("bf16", frozenset({"avx2"}))
    ('bf16', 'bf16 in float32')
    """
    if precision == "fp32":
        return "fp32 by AVX-512" if "avx512f" in flags else "fp32"
    if precision == "fp16" or not flags:
        return None
    if any(unit in flags for unit in BF16_UNITS):
        return "bf16"
    if "avx512f" in flags:
        return WIDENED_BY_AVX_512
    return WIDENED

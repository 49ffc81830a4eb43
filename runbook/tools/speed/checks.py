"""For each cause, a check of minutes that tells whether it is the cause of a slow training run."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.parts import GapPart


class _Check(NamedTuple):
    """What to do, and the result that confirms the cause."""

    action: str
    confirming: str


_CHECKS = {
    "DataParallel": _Check("nvidia-smi", "one process ID is on all devices"),
    "FLOPs convention": _Check(
        "compute the MFU as 6 x parameters x tokens/s / (devices x dense peak)",
        "it is as high as expected",
    ),
    "adapters": _Check("time 50 steps with and without adapters", "both take about as long"),
    "communication": _Check(
        "nvidia-smi topo -m, and profile 5 steps with torch.profiler",
        "kernels of NCCL take over 20 % of a step, or devices are linked by PHB, NODE or SYS",
    ),
    "compilation": _Check(
        "TORCH_LOGS=recompiles, or log the time of each step",
        "it compiles after the first steps",
    ),
    "data wait": _Check(
        "time 50 steps that reuse one batch in device memory",
        "they are over 10 % faster",
    ),
    "debug option": _Check(
        "time 50 steps without CUDA_LAUNCH_BLOCKING, detect_anomaly and profilers",
        "they are over 10 % faster",
    ),
    "evaluation": _Check("time an epoch without evaluation", "it is over 10 % faster"),
    "flash attention": _Check(
        "profile 5 steps with torch.profiler",
        "no attention kernel is named flash, fmha or cudnn",
    ),
    "garbage collection": _Check("gc.disable() for 200 steps", "the slow steps disappear"),
    "generation": _Check(
        "time the sampling of answers and the update apart",
        "sampling takes over half of the time",
    ),
    "gradient accumulation": _Check(
        "compare tokens/s without accumulation, and profile 5 steps with torch.profiler",
        "tokens/s are equal, so that a step only has more work, or each micro-batch reduces gradients",
    ),
    "growing steps": _Check(
        "log the time of each step, nvidia-smi and free -g for 1000 steps; then restart",
        "time grows, and a restart makes it short again",
    ),
    "host": _Check(
        "top -H while it trains, and profile 5 steps with torch.profiler",
        "a thread is at 100 % and the device has gaps between kernels",
    ),
    "kernels": _Check(
        "profile 5 steps with torch.profiler, sorted by device time",
        "kernels other than matrix products and fused attention take most of it",
    ),
    "layout": _Check("time 50 steps with half the tensor or pipeline ranks", "tokens/s rise"),
    "memory": _Check(
        "free -g, nvidia-smi, and num_alloc_retries in torch.cuda.memory_stats()",
        "the host swaps, a memory is full, or retries rise",
    ),
    "micro-batch": _Check("time 50 steps with twice the micro-batch", "tokens/s rise by over 10 %"),
    "network": _Check(
        "all_reduce_perf of nccl-tests on 1 and on 2 nodes, with NCCL_DEBUG=INFO",
        "2 nodes have a fraction of the link's rate, or it prints NET/Socket",
    ),
    "no device": _Check(
        "nvidia-smi or rocm-smi while it trains, and torch.cuda.is_available()",
        "utilization is 0 %, or it is False",
    ),
    "offload": _Check(
        "time 50 steps without offload, if need be of a smaller model", "they are over 10 % faster"
    ),
    "padding": _Check("count the padding in 100 batches", "it is over 20 % of the tokens"),
    "pipeline bubble": _Check(
        "time 50 steps with twice the micro-batches per step", "tokens/s rise by over 10 %"
    ),
    "precision": _Check(
        "print the dtype of weights and autocast, and torch.get_float32_matmul_precision()",
        "weights are float32 without autocast, and it is 'highest'",
    ),
    "recompute": _Check(
        "time 50 steps without recomputation, with a smaller micro-batch",
        "tokens/s rise by over 10 %",
    ),
    "saves": _Check("time 200 steps without saves", "they are over 10 % faster"),
    "slow steps": _Check(
        "write down the time of day of each slow step",
        "saves, evaluations or other jobs ran at these times",
    ),
    "software version": _Check(
        "time 50 steps in a fresh environment with the previous versions",
        "they are over 10 % faster",
    ),
    "stragglers": _Check(
        "time a matrix product on each rank alone; nvidia-smi -q -d CLOCK,PERFORMANCE",
        "one rank is over 5 % slower, or its clock is reduced",
    ),
    "timing": _Check(
        "torch.cuda.synchronize() before each reading of the clock", "another part is slow"
    ),
    "token dispatch": _Check(
        "profile 5 steps with torch.profiler",
        "all-to-all takes over 20 % of a step, or each expert has its own matrix product",
    ),
    "unequal work": _Check(
        "compute tokens/s per device of both runs, padding left out",
        "they are about equal",
    ),
    "warm-up": _Check("leave the first 50 steps out", "the rest is as fast as expected"),
}


def checks_of(parts: Sequence[GapPart], most: int) -> Iterator[str]:
    """Yield lines that say how to confirm the first causes whose time is not known.

    >>> part = GapPart("network", 0.0, "", "")
    >>> next(checks_of([part], 3))[:57]
    'check 1, network: all_reduce_perf of nccl-tests on 1 and '
    """
    names = dict.fromkeys(part.name for part in parts if not part.seconds)
    checks = [(name, _CHECKS[name]) for name in names if name in _CHECKS]
    for number, (cause, check) in enumerate(checks[:most], start=1):
        yield SpeedMessage.CHECK.fill(
            number=number, cause=cause, action=check.action, confirming=check.confirming
        )

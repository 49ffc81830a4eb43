"""Checks that take minutes, to test whether a cause explains a slow training run."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.parts import GapPart


class _Check(NamedTuple):
    """What to do, and the result that confirms the cause."""

    action: str
    confirming: str


_CHECKS = {
    "DataParallel": _Check("run nvidia-smi", "the same process ID is on all devices"),
    "FLOPs convention": _Check(
        "compute the MFU as 6 x parameters x tokens/s / (devices x dense peak)",
        "this MFU is as high as expected",
    ),
    "adapters": _Check(
        "time 50 steps with and 50 without adapters", "both take about the same time"
    ),
    "communication": _Check(
        "run nvidia-smi topo -m, and profile 5 steps with torch.profiler",
        "NCCL's kernels take over 20 % of a step, or the devices are linked by PHB, NODE or SYS",
    ),
    "compilation": _Check(
        "set TORCH_LOGS=recompiles, or log the time of each step",
        "the program still compiles after the first steps",
    ),
    "data wait": _Check(
        "time 50 steps that reuse one batch in device memory",
        "these steps are over 10 % faster",
    ),
    "debug option": _Check(
        "time 50 steps without CUDA_LAUNCH_BLOCKING, detect_anomaly and profilers",
        "these steps are over 10 % faster",
    ),
    "evaluation": _Check("time an epoch without evaluation", "this epoch is over 10 % faster"),
    "flash attention": _Check(
        "profile 5 steps with torch.profiler",
        "no attention kernel has flash, fmha or cudnn in its name",
    ),
    "garbage collection": _Check(
        "call gc.disable() and train 200 steps", "the slow steps disappear"
    ),
    "generation": _Check(
        "time the sampling of answers and the update separately",
        "sampling takes over half of the time",
    ),
    "gradient accumulation": _Check(
        "compare tokens/s with and without accumulation, and profile 5 steps with torch.profiler",
        "tokens/s are equal (a step just has more work), or each micro-batch reduces gradients",
    ),
    "growing steps": _Check(
        "log the time of each step, nvidia-smi and free -g for 1000 steps, then restart",
        "the step time grows, and is short again after the restart",
    ),
    "host": _Check(
        "run top -H during the training, and profile 5 steps with torch.profiler",
        "a thread uses 100 % of a core, and the device is idle between kernels",
    ),
    "kernels": _Check(
        "profile 5 steps with torch.profiler, sorted by device time",
        "kernels other than matrix products and fused attention take most of the time",
    ),
    "layout": _Check("time 50 steps with half the tensor or pipeline ranks", "tokens/s rise"),
    "memory": _Check(
        "look at free -g, nvidia-smi, and num_alloc_retries in torch.cuda.memory_stats()",
        "the host swaps, a memory is full, or the number of retries rises",
    ),
    "micro-batch": _Check("time 50 steps with twice the micro-batch", "tokens/s rise by over 10 %"),
    "network": _Check(
        "run all_reduce_perf of nccl-tests on one and on two nodes, with NCCL_DEBUG=INFO",
        "two nodes reach only a fraction of the link's rate, or NCCL prints NET/Socket",
    ),
    "no device": _Check(
        "run nvidia-smi or rocm-smi during the training, and print torch.cuda.is_available()",
        "the devices' utilization is 0 %, or Python prints False",
    ),
    "offload": _Check(
        "time 50 steps without offload, with a smaller model if it no longer fits",
        "these steps are over 10 % faster",
    ),
    "padding": _Check("count the padding in 100 batches", "over 20 % of the tokens are padding"),
    "pipeline bubble": _Check(
        "time 50 steps with twice the micro-batches per step", "tokens/s rise by over 10 %"
    ),
    "precision": _Check(
        "print the dtype of the weights, the autocast state, and "
        "torch.get_float32_matmul_precision()",
        "the weights are float32 without autocast, and the precision is 'highest'",
    ),
    "recompute": _Check(
        "time 50 steps without recomputation, with a smaller micro-batch",
        "tokens/s rise by over 10 %",
    ),
    "saves": _Check("time 200 steps without saves", "these steps are over 10 % faster"),
    "slow steps": _Check(
        "write down the time of day of each slow step",
        "a save, an evaluation or another job ran at these times",
    ),
    "software version": _Check(
        "time 50 steps in a fresh environment with the previous versions",
        "these steps are over 10 % faster",
    ),
    "stragglers": _Check(
        "time a matrix product on each rank alone, and run nvidia-smi -q -d CLOCK,PERFORMANCE",
        "one rank is over 5 % slower, or its clock is reduced",
    ),
    "timing": _Check(
        "call torch.cuda.synchronize() before each reading of the clock",
        "another part takes the time",
    ),
    "token dispatch": _Check(
        "profile 5 steps with torch.profiler",
        "the all-to-all takes over 20 % of a step, or each expert has its own matrix product",
    ),
    "unequal work": _Check(
        "compute the tokens/s per device of both runs, without padding",
        "both reach about the same",
    ),
    "warm-up": _Check("leave out the first 50 steps", "the other steps are as fast as expected"),
}


def checks_of(parts: Sequence[GapPart], most: int) -> Iterator[str]:
    """Yield lines that say how to confirm the first causes whose time is not known.

    >>> part = GapPart("network", 0.0, "", "")
    >>> next(checks_of([part], 3))[:57]
    'check 1, network: run all_reduce_perf of nccl-tests on on'
    """
    names = dict.fromkeys(part.name for part in parts if not part.seconds)
    checks = [(name, _CHECKS[name]) for name in names if name in _CHECKS]
    for number, (cause, check) in enumerate(checks[:most], start=1):
        yield SpeedMessage.CHECK.fill(
            number=number, cause=cause, action=check.action, confirming=check.confirming
        )

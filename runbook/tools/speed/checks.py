"""Checks that take minutes, to test whether a cause explains a slow training run."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.parts import GapPart


class _Check(NamedTuple):
    """What to do, the result that confirms the cause, and what usually lies behind it."""

    action: str
    confirming: str
    behind: str = ""
    """What to look for once the cause is confirmed, separated by semicolons, the most frequent
    first.
    """


_CHECKS = {
    "DataParallel": _Check(
        "run nvidia-smi",
        "the same process ID is on all devices",
        "nn.DataParallel or device_map=auto in place of one process for each device (torchrun)",
    ),
    "FLOPs convention": _Check(
        "compute the MFU as 6 x parameters x tokens/s / (devices x dense peak)",
        "this MFU is as high as expected",
    ),
    "adapters": _Check(
        "time 50 steps with and 50 without adapters",
        "both take about the same time",
        "frozen layers that still take the forward and most of the backward pass; "
        "quantized weights that are unpacked in each pass; checkpointing",
    ),
    "communication": _Check(
        "run nvidia-smi topo -m, and profile 5 steps with torch.profiler",
        "NCCL's kernels take over 20 % of a step, or the devices are linked by PHB, NODE or SYS",
        "links over PCIe or the host (PHB, SYS) in place of NVLink; peer-to-peer "
        "blocked by ACS, IOMMU or NUMA settings in the BIOS; gradients reduced on the "
        "host or in one process; gradients reduced in every micro-batch; too little "
        "work per device",
    ),
    "compilation": _Check(
        "set TORCH_LOGS=recompiles, or log the time of each step",
        "the program still compiles after the first steps",
        "shapes that change; a step that is not compiled as a whole; a cache that is not kept",
    ),
    "data wait": _Check(
        "time 50 steps that reuse one batch in device memory",
        "these steps are over 10 % faster",
        "too few workers, or none; a slow disk, a hard disk or a network file system; "
        "samples decoded, tokenized or augmented on the CPU; more workers x ranks than "
        "cores; workers started anew each epoch (persistent_workers); fewer files than "
        "workers",
    ),
    "debug option": _Check(
        "time 50 steps without CUDA_LAUNCH_BLOCKING, detect_anomaly and profilers",
        "these steps are over 10 % faster",
        "anomaly detection; deterministic algorithms; logging or synchronizing in every step",
    ),
    "evaluation": _Check(
        "time an epoch without evaluation",
        "this epoch is over 10 % faster",
        "evaluation in every step or on the whole set; pictures, metrics or samples "
        "written each time",
    ),
    "flash attention": _Check(
        "profile 5 steps with torch.profiler",
        "no attention kernel has flash, fmha or cudnn in its name",
        "a library that is missing or built for other versions; a mask or a head size "
        "that it does not accept; float32",
    ),
    "garbage collection": _Check(
        "call gc.disable() and train 200 steps", "the slow steps disappear"
    ),
    "generation": _Check(
        "time the sampling of answers and the update separately",
        "sampling takes over half of the time",
        "answers sampled one by one or in small batches; no vLLM or a similar engine; "
        "weights copied to it in each step; long answers that all ranks wait for",
    ),
    "gradient accumulation": _Check(
        "compare tokens/s with and without accumulation, and profile 5 steps with torch.profiler",
        "tokens/s are equal (a step just has more work), or each micro-batch reduces gradients",
    ),
    "growing steps": _Check(
        "log the time of each step, nvidia-smi and free -g for 1000 steps, then restart",
        "the step time grows, and is short again after the restart",
        "a list, graph or cache that grows; a device that overheats; memory that "
        "fragments; logs or pictures written more and more",
    ),
    "host": _Check(
        "run top -H during the training, and profile 5 steps with torch.profiler",
        "a thread uses 100 % of a core, and the device is idle between kernels",
        "too many threads in each process (OMP_NUM_THREADS, OpenCV); .item(), prints "
        "or copies to the host in each step; a model or batch so small that launching "
        "kernels takes longer than they run; eager code in Python loops; too few cores "
        "in the job or the container; a weak CPU",
    ),
    "kernels": _Check(
        "profile 5 steps with torch.profiler, sorted by device time",
        "kernels other than matrix products and fused attention take most of the time",
        "custom or fused kernels that were not built; loops over experts, time steps "
        "or layers in Python; a recurrent model; 4-bit or 8-bit weights, which save "
        "memory, not time; kernels not tuned for this device or chosen "
        "deterministically",
    ),
    "layout": _Check("time 50 steps with half the tensor or pipeline ranks", "tokens/s rise"),
    "memory": _Check(
        "look at free -g, nvidia-smi, and num_alloc_retries in torch.cuda.memory_stats()",
        "the host swaps, a memory is full, or the number of retries rises",
        "a device that spills into the host's memory; a host that swaps, or caches too "
        "much data; a batch, resolution or sequence near the limit; fragments that the "
        "allocator frees and requests again",
    ),
    "micro-batch": _Check(
        "time 50 steps with twice the micro-batch",
        "tokens/s rise by over 10 %",
        "a batch that fills only a part of the device; a model too small for it; a "
        "batch that is divided over the devices",
    ),
    "network": _Check(
        "run all_reduce_perf of nccl-tests on one and on two nodes, with NCCL_DEBUG=INFO",
        "two nodes reach only a fraction of the link's rate, or NCCL prints NET/Socket",
        "Ethernet or TCP sockets in place of InfiniBand (NCCL_IB_DISABLE, "
        "NCCL_SOCKET_IFNAME); GPUDirect RDMA that is off (nv_peer_mem, "
        "NCCL_NET_GDR_READ); a topology that NCCL cannot see; fewer cards or a slower "
        "rate than assumed; parameters gathered by ZeRO 3 over it",
    ),
    "no device": _Check(
        "run nvidia-smi or rocm-smi during the training, and print torch.cuda.is_available()",
        "the devices' utilization is 0 %, or Python prints False",
        "a build without GPU support; a wrong device number in CUDA_VISIBLE_DEVICES; a "
        "driver that does not match; a part of the step that runs on the CPU; a device "
        "that another job uses as well",
    ),
    "offload": _Check(
        "time 50 steps without offload, with a smaller model if it no longer fits",
        "these steps are over 10 % faster",
        "states or blocks that are copied over PCIe in each step; a host optimizer on "
        "too few cores",
    ),
    "padding": _Check(
        "count the padding in 100 batches",
        "over 20 % of the tokens are padding",
        "samples padded to the model's full length; batches not grouped by length; no packing",
    ),
    "pipeline bubble": _Check(
        "time 50 steps with twice the micro-batches per step", "tokens/s rise by over 10 %"
    ),
    "precision": _Check(
        "print the dtype of the weights, the autocast state, and "
        "torch.get_float32_matmul_precision()",
        "the weights are float32 without autocast, and the precision is 'highest'",
        "float32 weights without autocast; TF32 that is off; a device without tensor "
        "cores for this type; a model too small for 16 bits to pay; casts and scales "
        "around small products",
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
        "PyTorch, CUDA or cuDNN too old for the device; a regression in a new version, "
        "such as in attention kernels; defaults that changed (threads, TF32, RDMA); a "
        "library built without its kernels",
    ),
    "stragglers": _Check(
        "time a matrix product on each rank alone, and run nvidia-smi -q -d CLOCK,PERFORMANCE",
        "one rank is over 5 % slower, or its clock is reduced",
        "a device that overheats or is limited in power; a device or a node that "
        "another job shares; ranks with more tokens, layers or files than others",
    ),
    "timing": _Check(
        "call torch.cuda.synchronize() before each reading of the clock",
        "another part takes the time",
    ),
    "token dispatch": _Check(
        "profile 5 steps with torch.profiler",
        "the all-to-all takes over 20 % of a step, or each expert has its own matrix product",
        "a loop over experts in Python, as in transformers; no grouped or fused "
        "product for the experts; experts on other nodes",
    ),
    "unequal work": _Check(
        "compute the tokens/s per device of both runs, without padding",
        "both reach about the same",
        "a batch per device that was taken for the global batch; longer sequences, "
        "more padding or a larger resolution; steps counted as samples, or epochs with "
        "more steps; a larger model, or one that is trained in full; another kind of "
        "device",
    ),
    "warm-up": _Check("leave out the first 50 steps", "the other steps are as fast as expected"),
}


def checks_of(parts: Sequence[GapPart], most: int) -> Iterator[str]:
    """Yield how to confirm the first causes whose time is not known, and what usually lies behind them.

    >>> part = GapPart("network", 0.0, "", "")
    >>> next(checks_of([part], 3))[:57]
    'check 1, network: run all_reduce_perf of nccl-tests on on'
    """
    names = dict.fromkeys(part.name for part in parts if not part.seconds)
    checks = [(name, _CHECKS[name]) for name in names if name in _CHECKS]
    for number, (cause, check) in enumerate(checks[:most], start=1):
        lines = [
            SpeedMessage.CHECK.fill(
                number=number, cause=cause, action=check.action, confirming=check.confirming
            )
        ]
        if check.behind:
            lines.append(SpeedMessage.BEHIND_THE_CAUSE.fill(behind=check.behind))
        yield "\n".join(lines)

"""One step under torch.profiler: kernels by time, sums by kind, and idle time on the device."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_stages import device

TOP = 40
NAME_LENGTH = 140
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
KINDS = (
    # The first expression that matches decides: cuDNN attention kernels also have "gemm"-like words
    # in their names.
    ("attention", r"flash|fmha|sdpa|attention|mha_"),
    ("gemm", r"gemm|nvjet|cutlass|xmma|cublas|splitk|wgmma|matmul|aten::(mm|addmm|bmm|linear)$"),
    ("optimizer", r"adam|multi_tensor|foreach|lpnorm|l2norm"),
    ("cross entropy", r"cross_entropy|nll_|softmax|logsumexp|xent|scatter|gather"),
    ("embedding", r"embedding|index_select|indexing"),
    ("norm", r"layer_?norm|rms_?norm|GammaBeta"),
    ("memcpy", r"memcpy|memset|copy_kernel|CopyDevice"),
    ("pointwise", r""),
)
WAITS = re.compile(r"(Stream|Device|Event)Synchronize|MemcpyAsync|cudaMemcpy$")
"""Calls in which the host may wait for the device."""


@dataclass(frozen=True)
class Span:
    """One activity on the device, with times in microseconds."""

    name: str
    category: str
    start: float
    duration: float


def profile(step: Callable[[], Any]) -> dict[str, Any]:
    """Profile one step, and return the table as text and as numbers."""
    on_gpu = torch.cuda.is_available()
    activity = torch.profiler.ProfilerActivity
    activities = [activity.CUDA if on_gpu else activity.CPU]
    device.wait()
    with torch.profiler.profile(activities=activities) as profiler:
        start = time.perf_counter()
        step()
        device.wait()
        seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    return summary(events, seconds)


def summary(events: Iterable[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Sum the events in a chrome trace by kernel and by kind."""
    spans = []
    waits = []
    for event in events:
        if event.get("ph") != "X":
            continue
        span = Span(
            str(event.get("name", "")),
            str(event.get("cat", "")),
            float(event["ts"]),
            float(event.get("dur", 0.0)),
        )
        if span.category in DEVICE_CATEGORIES:
            spans.append(span)
        elif span.category == "cuda_runtime" and WAITS.search(span.name):
            waits.append(span)
        elif span.category == "cpu_op" and not torch.cuda.is_available():
            spans.append(span)  # a rehearsal has operators instead of kernels
    busy = busy_microseconds(spans) / 1e6
    kinds = sums_by(spans, lambda span: kind_of(span.name))
    kernels = sums_by(spans, lambda span: span.name)
    sums = {
        "step_seconds": seconds,
        "busy_seconds": busy,
        "idle_seconds": max(0.0, seconds - busy),
        "host_wait_seconds": sum(span.duration for span in waits) / 1e6,
        "host_waits": len(waits),
        "kinds": {kind: {"seconds": time_, "count": count} for kind, time_, count in kinds},
        "top": [
            {"kernel": name[:NAME_LENGTH], "seconds": time_, "count": count}
            for name, time_, count in kernels[:TOP]
        ],
    }
    return sums | {"profile_text": table(sums)}


def kind_of(name: str) -> str:
    """Return what kind of computation a kernel name stands for.

    >>> kind_of("nvjet_tst_256x128_64x4_2x1_v_bz_coopA_TNT"), kind_of("triton_poi_fused_add_gelu_3")
    ('gemm', 'pointwise')
    >>> kind_of("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_31_64x64x128")
    'attention'
    """
    for kind, pattern in KINDS:
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    return "pointwise"


def sums_by(spans: list[Span], key: Callable[[Span], str]) -> list[tuple[str, float, int]]:
    """Return (key, seconds, count), the longest first."""
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for span in spans:
        name = key(span)
        seconds[name] += span.duration / 1e6
        counts[name] += 1
    rows = [(name, total, counts[name]) for name, total in seconds.items()]
    return sorted(rows, key=lambda row: -row[1])


def busy_microseconds(spans: list[Span]) -> float:
    """Return the total time during which at least one span was running."""
    busy = 0.0
    reached = float("-inf")
    for span in sorted(spans, key=lambda span: span.start):
        end = span.start + span.duration
        if end > reached:
            busy += end - max(span.start, reached)
            reached = end
    return busy


def table(sums: dict[str, Any]) -> str:
    """Return the summary as text."""
    seconds = sums["step_seconds"]
    lines = [
        f"step {seconds * 1e3:.1f} ms, device busy {sums['busy_seconds'] * 1e3:.1f} ms, "
        f"idle {sums['idle_seconds'] * 1e3:.1f} ms; host waited in {sums['host_waits']} calls "
        f"for {sums['host_wait_seconds'] * 1e3:.1f} ms",
        "",
        f"{'kind':16} {'ms':>10} {'share':>7} {'count':>8}",
    ]
    for kind, total in sums["kinds"].items():
        milliseconds = total["seconds"] * 1e3
        share = total["seconds"] / seconds
        lines.append(f"{kind:16} {milliseconds:10.2f} {share:7.1%} {total['count']:8}")
    lines += ["", f"{'ms':>10} {'share':>7} {'count':>8}  kernel"]
    for row in sums["top"]:
        milliseconds = row["seconds"] * 1e3
        share = row["seconds"] / seconds
        lines.append(f"{milliseconds:10.2f} {share:7.1%} {row['count']:8}  {row['kernel']}")
    return "\n".join(lines) + "\n"

"""A run's own choice as the model of an iteration takes it: its devices, its framework's code, its recomputation."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from runbook.params.catalogue import Site
from runbook.params.schema import Framework
from runbook.plan.accelerators import Accelerator, find_accelerator
from runbook.plan.choices import Choice
from runbook.plan.iteration import Setup, known
from runbook.plan.layout import Layout

CODE = {
    Framework.RUNBOOK: "eager",
    Framework.MEGATRON_LM: "tuned",
    Framework.MEGATRON_DEEPSPEED: "unfused",
    Framework.NEMO: "tuned",
}
"""How well each framework's layers are fused (`iteration.Setup.code`)."""


def device_of(site: Site) -> Accelerator | None:
    """The site's accelerator, with the site's own peaks, memory and devices of a node; None where it is not known."""
    hardware = site.hardware
    return _device(
        hardware.device,
        tuple(sorted(hardware.peak_tflops.items())),
        hardware.device_memory,
        hardware.devices_per_node,
    )


@cache
def _device(name: str, peaks: tuple[tuple[str, float], ...], memory: int, node: int) -> Accelerator | None:
    found = find_accelerator(name)
    if found is None:
        return None
    return replace(
        found, peaks={**found.peaks, **dict(peaks)}, memory_bytes=memory or found.memory_bytes, devices_per_node=node
    )


def setup_for(choice: Choice, layout: Layout, device: Accelerator) -> Setup:
    """The choice in the words of the model of an iteration; attention keeps no scores, as all three frameworks' do."""
    return Setup(
        shape=choice.shape,
        device=device,
        precision=str(choice.training.precision),
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        data=layout.data,
        context=layout.context,
        virtual_pipeline=layout.virtual_pipeline,
        micro_batch=layout.micro_batch,
        global_batch=layout.global_batch,
        sequence=layout.sequence,
        recompute=str(choice.training.recompute),
        zero_stage=layout.zero_stage,
        flash=True,
        code=CODE[choice.training.framework],
    )


def why_unknown(choice: Choice) -> str:
    """Why no speed can be given on the site's devices, or an empty word."""
    if choice.on_cpu:
        return "a CPU has no links between devices to lay a model out over"
    device = device_of(choice.site)
    precision = str(choice.training.precision)
    if device is None:
        return f"the accelerator {choice.site.hardware.device} is not in our table, and no peak is guessed"
    if precision not in choice.site.hardware.peak_tflops:
        return f"no {precision} peak is known for {choice.site.hardware.device}"
    return known(device, precision)

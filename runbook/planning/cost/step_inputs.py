"""Inputs to the iteration model that follow from the choices for a run.

These inputs are the devices, the kernels the framework has, and recomputation.
"""

from dataclasses import replace

from runbook.core.checks import Check, judge
from runbook.core.units import show_bytes
from runbook.params.schema.site import Site
from runbook.planning.choice import Choice
from runbook.planning.cost.accelerators import (
    Accelerator,
    find_accelerator,
    named_memory,
    nearest_accelerators,
)
from runbook.planning.cost.iteration import StepSetup, known
from runbook.planning.messages import PlanningMessage

_CODE = {
    "megatron-lm": "tuned",
    "megatron-deepspeed": "unfused",
    "nemo": "tuned",
}


def code_of(choice: Choice) -> str:
    """Return how well the kernels in the framework are fused (`iteration.StepSetup.code`).

    For our own trainer, compiled kernels are assumed unless the run file requests plain ones. If
    compiled kernels cannot run, the step takes longer than planned.
    """
    training = choice.training
    if training.framework != "runbook":
        return _CODE[training.framework]
    if training.fp8 != "none":
        # Layers from Transformer Engine were not measured; they are assumed to move as few bytes as
        # compiled ones.
        return "compiled"

    if not choice.compiles_kernels:
        return "plain"
    return "compiled-dropout" if training.dropout else "compiled"


def device_of(site: Site) -> Accelerator | None:
    """Return the accelerator at a site, with the peaks, memory and devices per node stated there.

    Return None if the table has no such device.
    """
    hardware = site.hardware
    device = find_accelerator(hardware.device)
    if device is None:
        return None
    return replace(
        device,
        peaks={**device.peaks, **hardware.peak_tflops},
        memory_bytes=memory_of(site),
        devices_per_node=hardware.devices_per_node,
    )


def peak_of(site: Site, precision: str) -> float | None:
    """Return the peak TFLOP/s per device, or None if unknown.

    A figure in the site file takes precedence over the datasheet for the named device.
    """
    device = device_of(site)
    if device:
        return device.peaks.get(precision)
    return site.hardware.peak_tflops.get(precision)


def memory_of(site: Site) -> int:
    """Return the memory per device in bytes, or 0 if unknown.

    A figure in the site file takes precedence over the size that the device name states.
    """
    return site.hardware.device_memory or named_memory(site.hardware.device)


def check_device(choice: Choice) -> list[Check]:
    """Check whether peak and memory are known for the devices at the site.

    Return no check for CPUs, since their speed is measured.
    """
    if choice.on_cpu:
        return []
    site = choice.site
    hardware = choice.site.hardware
    precision = choice.training.precision
    where = f"In params/sites/{site.site}.yaml:"
    device = device_of(site)
    peak = peak_of(site, precision)
    memory = memory_of(site)
    name = "device"
    rule = "the device's peak and memory are known, from its name or from the site file"
    if device is None:
        value = hardware.device
    else:
        value = PlanningMessage.DEVICE_READ_AS.fill(device=hardware.device, name=device.name)

    if memory:
        memory_text = show_bytes(memory)
    else:
        memory_text = PlanningMessage.MEMORY_NOT_KNOWN.fill()
    if peak:
        peak_text = PlanningMessage.PEAK_OF_DEVICE.fill(peak=peak, precision=precision)
    else:
        peak_text = PlanningMessage.NO_PEAK_KNOWN.fill(precision=precision)
    value = f"{value}, {memory_text}, {peak_text}"
    ways = []
    if device is None:
        names = ", ".join(nearest_accelerators(hardware.device))
        ways.append(PlanningMessage.WRITE_DEVICE.fill(names=names))

    if not memory:
        ways.append(PlanningMessage.WRITE_MEMORY.fill())
    if not peak:
        ways.append(PlanningMessage.WRITE_PEAK.fill(precision=precision))

    checks = [
        judge(
            name,
            not ways,
            value,
            rule,
            f"{where} {'; '.join(ways)}.",
            otherwise="warn",
        )
    ]
    if not hardware.cores_per_node and site.scheduler != "local":
        rule = "a job requests the cores of its nodes; otherwise each task gets one"
        remedy = f"{where} set hardware.cores_per_node (sinfo -o %c shows it)."
        checks.append(
            Check(
                "cores",
                "warn",
                "cores of a node are not known",
                rule,
                remedy,
            )
        )

    return checks


def setup_for(choice: Choice, device: Accelerator) -> StepSetup:
    """Return the choice as input for the iteration model.

    It is assumed that attention stores no scores, as in all three frameworks.
    """
    training = choice.training
    return StepSetup(
        shape=choice.shape,
        layout=choice.layout,
        micro_batch=choice.micro_batch,
        global_batch=choice.global_batch,
        device=device,
        precision=_product_precision(choice),
        recompute=training.recompute,
        recomputed=choice.recomputed,
        shown_data=choice.shown_data,
        overlaps_tensor=training.overlap_tensor and choice.layout.sequence,
        hides_sends=choice.hides_sends,
        broadcasts_batches=training.broadcast_batches,
        code=code_of(choice),
        deepspeed=choice.deepspeed,
        num_moments=len(training.optimizer.moments),
        # NeMo is planned as version 23.04; megatron-core has had fused losses since 2024.
        fused_loss=training.loss_fusion != "auto",
        half_sums=choice.has_half_sums,
        fp8_recipe=training.fp8,
    )


def _product_precision(choice: Choice) -> str:
    """Return the number format used for matrix products."""
    if choice.training.fp8 != "none":
        return "fp8"
    return choice.training.precision


def modelled_device(choice: Choice) -> Accelerator | str:
    """Return the device that `iteration` can model steps for, or why there is none."""
    if choice.on_cpu:
        return PlanningMessage.CPU_HAS_NO_LINKS.fill()
    device = device_of(choice.site)
    if device:
        return known(device, _product_precision(choice)) or device
    name = choice.site.hardware.device
    return PlanningMessage.DEVICE_NOT_IN_TABLE.fill(
        device=name,
        site=choice.site.site,
        names=", ".join(nearest_accelerators(name)),
    )

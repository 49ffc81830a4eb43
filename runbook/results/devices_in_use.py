"""Determines how many devices were used for each step.

After losing nodes, a job may continue with fewer devices.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from runbook.core import quantities
from runbook.core.checks import counted
from runbook.core.table import Row, Table
from runbook.results.history import History, Step
from runbook.results.messages import ResultMessage


@dataclass(frozen=True)
class DeviceSpan:
    """Consecutive steps on the same number of devices."""

    steps: Sequence[Step]

    @property
    def devices(self) -> int:
        """Return the number of devices these steps ran on."""
        return self.steps[0].world_size

    @property
    def first(self) -> int:
        """Return the first iteration in the span."""
        return self.steps[0].iteration

    @property
    def last(self) -> int:
        """Return the last iteration in the span."""
        return self.steps[-1].iteration

    @property
    def device_seconds(self) -> float:
        """Return the device-seconds spent on steps in the span."""
        return device_seconds(self.steps)


def device_seconds(steps: Iterable[Step]) -> float:
    """Return the device-seconds spent on these steps, not counting waits for data."""
    return sum((step.seconds - step.data_wait_seconds) * step.world_size for step in steps)


def usual_devices(steps: Sequence[Step]) -> int:
    """Return the number of devices most of these steps ran on.

    Return 0 if there are no steps. If two numbers of devices are equally frequent, return the
    number that occurs later.

    >>> usual_devices([Step(1, 0.5, world_size=8), Step(2, 0.5, world_size=4)])
    4
    """
    counts = Counter(step.world_size for step in reversed(steps))
    most = counts.most_common(1)
    return most[0][0] if most else 0


def device_spans(history: History) -> list[DeviceSpan]:
    """Return the device spans in a training run, in order.

    If the number of devices never changed, there is only one span.
    """
    groups = groupby(history.steps, key=lambda step: step.world_size)
    return [DeviceSpan([*steps]) for _, steps in groups]


def spans_text(history: History) -> str:
    """Return text about which steps ran on how many devices; empty if the number never changed.

    >>> steps = (Step(1, 0.5, world_size=8), Step(2, 0.5, world_size=4), Step(3, 0.5, world_size=4))
    >>> spans_text(History(steps))
    'step 1 on 8 devices, steps 2 to 3 on 4 devices'
    """
    spans = device_spans(history)
    if len(spans) < 2:
        return ""
    texts = []
    for span in spans:
        devices = counted(span.devices, "device")
        texts.append(ResultMessage.STEPS_ON_DEVICES.fill(steps=_steps_text(span), devices=devices))
    return ", ".join(texts)


def _steps_text(span: DeviceSpan) -> str:
    if span.first == span.last:
        return ResultMessage.ONE_STEP.fill(step=span.first)
    return ResultMessage.STEPS.fill(first=span.first, last=span.last)


def devices_table(history: History, *, sequence_length: int) -> Table:
    """Return a table with the speed and device-hours for each span."""
    rows: list[Row] = []
    for span in device_spans(history):
        seconds = statistics.median(step.seconds for step in span.steps)
        tflops = []
        for step in span.steps:
            if step.tflops_per_device:
                tflops.append(step.tflops_per_device)

        sequences = span.steps[-1].global_batch
        rows.append(
            {
                "steps": _steps_text(span),
                "devices": span.devices,
                quantities.STEP_TIME: seconds,
                quantities.THROUGHPUT: sequences * sequence_length / seconds if seconds else None,
                quantities.SPEED: statistics.median(tflops) if tflops else None,
                quantities.DEVICE_HOURS_IN_STEPS: span.device_seconds / 3600,
            }
        )

    note = (
        "fewer devices: there were fewer healthy nodes, and fewer replicas shared the same global "
        "batch"
    )
    return Table(rows, "Devices in use", (note,), source=history.source)

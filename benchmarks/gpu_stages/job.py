"""A job in the benchmark: one process, its deadline, and what it needs on the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TORCH = ("torch",)
TRAINER = ("torch", "benchmarks.gpu_stages.programs", "runbook.training.loop")
PLAIN = ("torch", "benchmarks.gpu_stages.programs", "benchmarks.plain_training")
DEEPSPEED = (*TRAINER, "benchmarks.gpu_stages.deepspeed_import")


@dataclass(frozen=True)
class Job:
    """A process that measures something and prints a JSON row for each result."""

    stage: str
    name: str
    function: str
    """`module:function` below benchmarks.gpu_stages.

    It takes the arguments and a function that emits a row.
    """
    seconds: float
    """Seconds from the start signal to the deadline, at which the process group is killed."""
    least_seconds: float
    """The job is not started if less time than this remains."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    imports: tuple[str, ...] = TRAINER
    """Modules that the process imports while it waits for its start signal."""
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""
    """The probe of the environment stage that must succeed for this job: `triton` or `compile`."""

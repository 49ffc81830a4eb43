"""Reports in the job log which operations run slower because they could not be compiled.

A missing compiler or an old driver does not change the loss: `training.kernels: auto` falls back to
megatron-core kernels, and a function that torch cannot compile is computed operation by operation.
Users should know about either case, since steps take longer.
"""

import logging

from runbook.plan_file.schema import PhasePlan
from runbook.training.kernels.kernel_choice import triton_fault
from runbook.training.ranks import on_gpu

DYNAMO_LOGGER = "torch._dynamo"
NOT_COMPILED = "WON'T CONVERT"
"""Beginning of the torch warning about a function it cannot compile (torch 2.6 to 2.13)."""
DUE_TO = "due to:"
ADVICE = "Set TORCHDYNAMO_VERBOSE"


def slower_kernels(spec: PhasePlan) -> str:
    """Return why `auto` does not use our own kernels on this GPU.

    The text is empty if `auto` uses these kernels.
    """
    if spec.tuning.kernels != "auto" or not on_gpu():
        return ""
    fault = triton_fault()
    return f"training.kernels auto: plain kernels make a step longer: {fault}" if fault else ""


def is_said_by(rank: int, reason: str, first_reason: str) -> bool:
    """Return whether a rank reports the reason returned by `slower_kernels`.

    The first rank reports for all ranks with the same reason, and a rank with a different reason
    reports its own.
    """
    return bool(reason) and (rank == 0 or reason != first_reason)


class CompilerFaults(logging.Handler):
    """Collects functions torch could not compile as a whole."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect the function and the error a warning names.

        In the warning, a stack trace separates the function from the error.
        """
        message = record.getMessage()
        if not message.startswith(NOT_COMPILED):
            return
        function, _, stack = message.removeprefix(NOT_COMPILED).partition(DUE_TO)
        errors = [line for line in stack.partition(ADVICE)[0].splitlines() if line.strip()]
        function_name = " ".join(function.split())
        reason = errors[-1].strip() if errors else "it gives no reason"
        self._messages.append(f"torch could not compile {function_name}: {reason}")

    def take(self) -> list[str]:
        """Return each function collected since the last call, without duplicates."""
        messages = list(dict.fromkeys(self._messages))
        self._messages.clear()
        return messages


def watch_compiler() -> CompilerFaults:
    """Start collecting functions torch fails to compile, and return the collector."""
    faults = CompilerFaults()
    logging.getLogger(DYNAMO_LOGGER).addHandler(faults)
    return faults

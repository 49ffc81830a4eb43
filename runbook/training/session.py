"""One run of one rank from joining the others to leaving them."""

from __future__ import annotations

import logging
import os
import warnings

from runbook.training import faults
from runbook.training.errors import TrainingError
from runbook.training.pulse import Pulse
from runbook.training.ranks import Ranks
from runbook.training.spec import Spec
from runbook.training.stopping import Stopping
from runbook.training.watching import watch_over


def train(spec: Spec, ranks: Ranks, stopping: Stopping) -> int:
    """Train; the exit code. Errors are in events.jsonl before they come out."""
    stopping.limit(spec.limits.exit_duration_seconds)
    # megatron-core tells at import that Apex and Transformer Engine are absent: known, and answered by attention.py.
    warnings.filterwarnings("ignore", module=r"megatron\..*")
    # 0.16 also warns that the CPU's random state changed while the GPU's was forked (here they are one), and 0.19 of
    # its own future.
    logging.getLogger("megatron.core").setLevel(logging.ERROR)
    # torch 2.13 has newer names for what megatron-core 0.16 uses.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    warnings.filterwarnings("ignore", "Please use DTensor instead", FutureWarning)
    import torch

    from runbook.training import cpu, distributed, rules
    from runbook.training.report import Report

    faults.arm(os.environ, ranks.rank)
    rules.check(spec, ranks.world_size, cuda=torch.cuda.is_available())
    cpu.answer_for_cpu()
    report = Report(spec, ranks)
    watch = watch_over(spec, ranks, os.environ)
    try:
        if watch:
            watch.start()
        distributed.begin(ranks, spec.limits.process_group_timeout_seconds)
        pulse = watch.pulse if watch else Pulse(ranks.rank, None)
        pulse.stage = distributed.cut(spec)
        from runbook.training import padding
        from runbook.training.loop import Run

        spec = report.spec = padding.kept(spec)
        code = Run(spec, report, stopping, pulse).train()
    except Exception as error:
        report.event("failed", message=f"{type(error).__name__}: {error}")
        if isinstance(error, RuntimeError) and "gloo" in str(error):
            raise TrainingError(f"another rank is gone, or has not answered in time: {error}") from None
        raise
    finally:
        if watch:
            watch.stop()
        report.close()
    distributed.end()
    return code

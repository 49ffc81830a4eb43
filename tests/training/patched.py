"""The program of a forked rank in tests: a patch, if there is one, and then the trainer.

DeepSpeed is imported before.
"""

import atexit
import importlib
import os

from runbook.training import __main__ as trainer
from runbook.training.engines.deepspeed_start import import_deepspeed

from .group import PATCH

import_deepspeed()
for engine in ("deepspeed_engine", "deepspeed_pipeline"):
    importlib.import_module(f"runbook.training.engines.{engine}")


def main():
    """Return the exit code from the patch (module:function) if it has one; otherwise run the
    trainer.
    """
    atexit.register(trainer.leave, 1)  # A patch that fails may have joined a process group.
    module, _, name = os.environ.pop(PATCH, "").partition(":")
    code = getattr(importlib.import_module(module), name)() if module else None
    return trainer.main() if code is None else code


def little_memory():
    """Act like a machine with 100 MB left, with levels of two steps, so that a short run shows a
    leak.
    """
    from runbook.plan_file.alarms import GrowthWatch
    from runbook.training.health import memory_and_disk

    memory_and_disk.GrowthWatch = lambda metric, show: GrowthWatch(metric, 2, show=show)
    memory_and_disk.host_bytes_left = lambda: 100_000_000

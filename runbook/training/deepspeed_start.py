"""DeepSpeed as a library: imported and begun without its chatter, its compiling and its questions to the machine."""

from __future__ import annotations

import contextlib
import copy
import datetime
import io
import logging
import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import torch
from torch.distributed import distributed_c10d

from runbook.training.errors import RefusedError

LEAST = (0, 19)
"""The oldest DeepSpeed that the engine was tried with; much of what it does is not in its documentation."""


def load() -> Any:
    """The `deepspeed` module; on a machine without a GPU it is told so, and compiles nothing."""
    _check_version()
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with quiet():
        import deepspeed
    logger = logging.getLogger("DeepSpeed")
    logger.setLevel(logging.ERROR)
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)  # standard output is the training log
    # DeepSpeed would compile a C++ extension for sums over shared memory in every process; gloo makes them as well.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def _check_version() -> None:
    """`RefusedError` where DeepSpeed is missing, or older than what the engine was tried with."""
    try:
        found = metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        raise RefusedError(
            "training.engine deepspeed: the package deepspeed is not installed here. Install gpt3-runbook[train], or "
            "set training.engine to megatron-core"
        ) from None
    least = ".".join(map(str, LEAST))
    if is_older(found):
        raise RefusedError(
            f"training.engine deepspeed: deepspeed {found} is installed, and the engine needs {least} or newer. Update "
            f"it, or set training.engine to megatron-core"
        )


def is_older(version: str) -> bool:
    """Whether a version comes before the least one.

    >>> is_older("0.18.2"), is_older("0.19.0+cu128"), is_older("1.0")
    (True, False, False)
    """
    numbers = [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:2]]
    return tuple(numbers) < LEAST


def join() -> None:
    """Let DeepSpeed use the process groups that are there; those of an earlier run in this process are gone."""
    deepspeed = load()
    deepspeed.comm.comm.cdb = None
    deepspeed.utils.groups._release_process_group_references()
    with quiet(), local_rank():
        deepspeed.init_distributed()


def initialize(model: torch.nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any], mpu: Any) -> Any:
    """DeepSpeed's engine around `model`; `mpu` is None for a pipeline, which has its own."""
    with quiet(), local_rank():
        engine, *_ = load().initialize(model=model, optimizer=optimizer, mpu=mpu, config=copy.deepcopy(config))
    return engine


def limit_waits(seconds: int) -> None:
    """Let every wait in DeepSpeed's own process groups end after so long; torch's answer is half an hour."""
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds), group)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let nothing through to standard output: DeepSpeed prints there without asking."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def local_rank() -> Iterator[None]:
    """Name the GPU of this rank as DeepSpeed asks for it.

    It reads LOCAL_RANK as a number of a GPU, which is wrong where each rank sees one GPU alone, and wants Open MPI's
    word for it to be the same; without a launcher neither is there.
    """
    before = dict(os.environ)
    os.environ["LOCAL_RANK"] = str(torch.cuda.current_device() if torch.cuda.is_available() else 0)
    os.environ.pop("OMPI_COMM_WORLD_LOCAL_RANK", None)
    try:
        yield
    finally:
        for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]

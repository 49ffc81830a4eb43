"""Imports and starts DeepSpeed as a library.

DeepSpeed output, compilation and machine probing are switched off.
"""

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

from runbook.plan_file.deepspeed import own_config
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.schema import PhasePlan
from runbook.training.messages import TrainingMessage
from runbook.training.ranks import on_gpu

# The oldest DeepSpeed version the engine was tested with; the engine relies on undocumented
# behavior
OLDEST_VERSION = (
    0,
    19,
)
OTHER_ENGINE = "megatron-core"
"""The engine (a value for training.engine) that does not need DeepSpeed."""


def import_deepspeed() -> Any:
    """Return the `deepspeed` module, set up for a CPU if there is no GPU.

    Raise `RefusedError` if it is missing or too old.
    """
    try:
        version = metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        raise RefusedError(TrainingMessage.DEEPSPEED_MISSING, other_engine=OTHER_ENGINE) from None

    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_VERSION:
        raise RefusedError(
            TrainingMessage.DEEPSPEED_TOO_OLD,
            version=version,
            oldest=".".join(map(str, OLDEST_VERSION)),
            other_engine=OTHER_ENGINE,
        )

    if not on_gpu():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    with quiet_stdout():
        import deepspeed
    logger = logging.getLogger("DeepSpeed")
    logger.setLevel(logging.ERROR)
    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler):
            # Standard output is the training log, so DeepSpeed must not write to it
            handler.setStream(sys.stderr)

    # DeepSpeed would compile a C++ extension in every process to sum over shared memory, although
    # gloo can do that too.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def join_deepspeed() -> None:
    """Make DeepSpeed use the current process groups instead of those from an earlier run."""
    deepspeed = import_deepspeed()
    deepspeed.comm.comm.cdb = None
    deepspeed.utils.groups._release_process_group_references()
    with quiet_stdout(), local_rank_variable():
        deepspeed.init_distributed()


def initialize_engine(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    spec: PhasePlan,
    mpu: Any,
) -> Any:
    """Return a DeepSpeed engine that wraps `model`.

    `mpu` is None for a pipeline, which creates its own.
    """
    # A handwritten plan may have no DeepSpeed configuration
    config = copy.deepcopy(spec.deepspeed or own_config(spec))
    with quiet_stdout(), local_rank_variable():
        engine, *_ = import_deepspeed().initialize(
            model=model,
            optimizer=optimizer,
            mpu=mpu,
            config=config,
        )

    # DeepSpeed gives its own process groups the torch default timeout of half an hour.
    timeout = datetime.timedelta(seconds=spec.limits.process_group_timeout_seconds)
    for group in list(distributed_c10d._world.pg_map):
        distributed_c10d._set_pg_timeout(timeout, group)
    return engine


def quiet_stdout() -> contextlib.AbstractContextManager[Any]:
    """Discard standard output in this block, since DeepSpeed prints to it."""
    return contextlib.redirect_stdout(io.StringIO())


@contextlib.contextmanager
def local_rank_variable() -> Iterator[None]:
    """Set the variable used to tell DeepSpeed which GPU belongs to this rank.

    DeepSpeed uses LOCAL_RANK as the GPU number. This is wrong if each rank sees only one GPU, and
    srun does not set the variable at all. LOCAL_RANK stays set, since ZeRO 3 reads it again in the
    first forward pass. DeepSpeed also requires the variable set by Open MPI to have the same value,
    so that variable is removed and restored afterwards.
    """
    os.environ["LOCAL_RANK"] = str(torch.cuda.current_device() if on_gpu() else 0)
    open_mpi = os.environ.pop("OMPI_COMM_WORLD_LOCAL_RANK", None)
    try:
        yield
    finally:
        os.environ.pop("OMPI_COMM_WORLD_LOCAL_RANK", None)
        if open_mpi is not None:
            os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] = open_mpi

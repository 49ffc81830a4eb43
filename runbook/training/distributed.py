"""Process groups: begin, agree, end."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._C._distributed_c10d import HashStore

from runbook.training.errors import RefusedError, TrainingError
from runbook.training.meeting import meeting
from runbook.training.ranks import Ranks
from runbook.training.spec import Spec

T = TypeVar("T")


def begin(ranks: Ranks, timeout_seconds: int) -> None:
    """Join the other ranks over nccl (GPU) or gloo (CPU); every wait ends after `timeout_seconds`."""
    cuda = torch.cuda.is_available()
    timeout = datetime.timedelta(seconds=timeout_seconds)
    if cuda:
        torch.cuda.set_device(_own_gpu(ranks.local_rank, torch.cuda.device_count()))
    elif ranks.master_address in ("127.0.0.1", "localhost"):
        # gloo otherwise listens on what the host name resolves to, which on a laptop or in a container may be nothing.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if ranks.world_size == 1:
        how: dict[str, Any] = {"store": HashStore()}
    else:
        how = {"init_method": f"tcp://{ranks.master_address}:{ranks.master_port}"}
        if ranks.launcher == "torchrun":
            how = {"init_method": "env://"}
    with meeting(ranks, timeout_seconds):
        torch.distributed.init_process_group(
            "nccl" if cuda else "gloo", rank=ranks.rank, world_size=ranks.world_size, timeout=timeout, **how
        )


def _own_gpu(local_rank: int, visible: int) -> int:
    """Which of the visible GPUs is this rank's; a launcher that shows each rank its own one has numbered it 0."""
    if visible == 1:
        return 0
    if local_rank >= visible:
        raise RefusedError(f"local rank {local_rank} has no GPU: torch sees {visible} of them on this node")
    return local_rank


def cut(spec: Spec) -> int:
    """Make the groups of tensor, pipeline and data parallel ranks, seed this rank's random numbers; its stage."""
    from megatron.core import parallel_state

    parallel = spec.parallel
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline if parallel.virtual_pipeline > 1 else None,
        distributed_timeout_minutes=spec.limits.process_group_timeout_seconds / 60,
        create_gloo_process_groups=False,
    )
    seed_ranks(spec.seed)
    return int(parallel_state.get_pipeline_model_parallel_rank())


def seed_ranks(seed: int) -> None:
    """Dropout masks: alike on the ranks that compute the same activations, different on all others."""
    from megatron.core import parallel_state, tensor_parallel

    stage = parallel_state.get_pipeline_model_parallel_rank()
    copy = parallel_state.get_data_parallel_rank()
    own = seed + 10_000 * (stage * parallel_state.get_data_parallel_world_size() + copy)
    torch.manual_seed(own)
    tensor_parallel.model_parallel_cuda_manual_seed(own, force_reset_rng=True)


def end() -> None:
    """Leave all groups; what a run began can be begun again in the same process."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def device() -> torch.device:
    """Where this rank computes."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def share(value: T, source: int = 0) -> T:
    """The value that rank `source` has."""
    box = [value]
    torch.distributed.broadcast_object_list(box, src=source)
    return box[0]


def together(action: Callable[[], T]) -> T:
    """Do something on every rank; where it fails on one, every rank gets that error instead of waiting for ever."""
    result, error = None, None
    try:
        result = action()
    except (TrainingError, OSError, RuntimeError) as caught:
        error = caught if isinstance(caught, TrainingError) else TrainingError(f"{type(caught).__name__}: {caught}")
    errors: list[TrainingError | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(errors, error)
    for found in errors:
        if found is not None:
            found.on_all_ranks = True
            raise found
    return result  # type: ignore[return-value]


def on_first(action: Callable[[], T]) -> T:
    """Do something on rank 0 alone and give its result to all."""
    first = torch.distributed.get_rank() == 0
    return share(together(lambda: action() if first else None))  # type: ignore[return-value]

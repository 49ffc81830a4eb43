"""Joins ranks in process groups, lets them exchange values and agree, and leaves the groups."""

import contextlib
import datetime
import itertools
import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d

from runbook.plan_file.errors import FAILED, TrainingError
from runbook.plan_file.rendezvous_causes import RendezvousCause
from runbook.plan_file.schema import PhasePlan
from runbook.training.job_output import say
from runbook.training.messages import TrainingMessage
from runbook.training.ranks import Ranks, claim_gpu, on_gpu, own_gpu

T = TypeVar("T")


LOOPBACK = ("127.0.0.1", "localhost")
LISTENER_SECONDS = 1.0
"""Longest time a rank waits for rank 0 to listen on the same machine.

A rank that connects too early is refused, and torch tries again only after half a second or more.
"""
LISTENER_POLL_SECONDS = 0.005
TCP_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
TCP_LISTENS = "0A"
"""State of a listening socket in the kernel tables."""


def join_process_group(ranks: Ranks, timeout_seconds: int) -> None:
    """Join the other ranks through nccl (GPU) or gloo (CPU).

    Every wait ends after `timeout_seconds`.
    """
    cuda = on_gpu()
    timeout = datetime.timedelta(seconds=timeout_seconds)
    if cuda:
        number = own_gpu(ranks.local_rank, torch.cuda.device_count())
        torch.cuda.set_device(number)
    elif ranks.master_address in LOOPBACK:
        # Otherwise gloo would listen on the address the host name resolves to, which may not
        # resolve on a laptop or in a container.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    if ranks.launcher == "torchrun":
        address = "env://"
    else:
        address = f"tcp://{ranks.master_address}:{ranks.master_port}"

    meeting_point: dict[str, Any] = (
        {"init_method": address} if ranks.world_size > 1 else {"store": HashStore()}
    )
    if ranks.rank > 0 and ranks.master_address in LOOPBACK:
        wait_for_listener(ranks.master_port, LISTENER_SECONDS)
    with rendezvous(ranks, timeout_seconds):
        torch.distributed.init_process_group(
            "nccl" if cuda else "gloo",
            rank=ranks.rank,
            world_size=ranks.world_size,
            timeout=timeout,
            **meeting_point,
        )

    if cuda and ranks.world_size > 1:
        claim_gpu(distributed_c10d._get_default_store(), ranks.rank, number)


def wait_for_listener(port: int, seconds: float) -> None:
    """Wait until a process on this machine listens on a TCP port, but not longer than `seconds`."""
    if not any(table.exists() for table in TCP_TABLES):
        return  # this system does not show whether a process is listening
    end = time.monotonic() + seconds
    while not has_listener(port) and time.monotonic() < end:
        time.sleep(LISTENER_POLL_SECONDS)


def has_listener(port: int) -> bool:
    """Return whether a process on this machine listens on a TCP port."""
    suffix = f":{port:04X}"
    for table in TCP_TABLES:
        if not table.exists():  # no IPv6
            continue
        for line in table.read_text().splitlines()[1:]:
            _, local_address, _, state, *_ = line.split()
            if state == TCP_LISTENS and local_address.endswith(suffix):
                return True
    return False


def make_parallel_groups(spec: PhasePlan) -> int:
    """Create the tensor, pipeline and data-parallel groups, and seed this rank's random numbers.

    Return the pipeline stage for this rank.
    """
    from megatron.core import parallel_state

    parallel = spec.parallel
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline
        if parallel.virtual_pipeline > 1
        else None,
        context_parallel_size=parallel.context,
        distributed_timeout_minutes=spec.limits.process_group_timeout_seconds / 60,
        create_gloo_process_groups=False,
    )
    seed_ranks(spec.seed, graphs=spec.tuning.cuda_graphs)
    return int(parallel_state.get_pipeline_model_parallel_rank())


def seed_ranks(seed: int, *, graphs: bool = False) -> None:
    """Seed dropout, so that exactly the ranks that compute the same activations get the same masks.

    With `graphs`, use a generator CUDA graphs can advance.
    """
    from megatron.core import parallel_state, tensor_parallel

    stage = parallel_state.get_pipeline_model_parallel_rank()
    copies = parallel_state.get_data_parallel_group(with_context_parallel=True)
    own_seed = seed + 10_000 * (stage * copies.size() + copies.rank())
    torch.manual_seed(own_seed)
    tensor_parallel.model_parallel_cuda_manual_seed(
        own_seed, use_cudagraphable_rng=graphs and on_gpu(), force_reset_rng=True
    )


def leave_process_groups() -> None:
    """Leave all groups, to let another run start in the same process."""
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def device() -> torch.device:
    """Return the device this rank computes on."""
    if on_gpu():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def wait_for_gpu() -> None:
    """Wait until the GPU used by this rank, if any, has finished all queued work."""
    if on_gpu():
        torch.cuda.synchronize()


def sum_speed(num_bytes: int, rounds: int) -> tuple[float, float]:
    """Return how long an all-reduce over all ranks takes (median seconds), and the bus bandwidth.

    As in nccl-tests, the bus bandwidth is 2 (n - 1) / n x bytes / s.
    """
    ranks = torch.distributed.get_world_size()
    message = torch.zeros(num_bytes // 4, dtype=torch.float32, device=device())
    seconds = []
    # The first all-reduce opens the connections
    for _ in range(rounds + 1):
        torch.distributed.barrier()
        wait_for_gpu()
        start = time.monotonic()
        torch.distributed.all_reduce(message)
        wait_for_gpu()
        seconds.append(time.monotonic() - start)

    median = statistics.median(seconds[1:])
    return median, 2 * (ranks - 1) / ranks * num_bytes / median if median else 0.0


def share_value(value: T, source: int = 0) -> T:
    """Return, on all ranks, the value that rank `source` passed."""
    box = [value]
    torch.distributed.broadcast_object_list(box, src=source)
    return box[0]


def reduce_number(number: int, operation: Any = torch.distributed.ReduceOp.SUM) -> int:
    """Reduce a whole number over all ranks, by default to its sum."""
    total = torch.tensor([number], dtype=torch.int64, device=device())
    torch.distributed.all_reduce(total, op=operation)
    return int(total)


def gather_on_first_rank(value: T) -> list[T]:
    """Return the values from all ranks on rank 0, and an empty list on other ranks."""
    if torch.distributed.get_rank() == 0:
        values = [value] * torch.distributed.get_world_size()
    else:
        values = None

    torch.distributed.gather_object(value, values)
    return values or []


def run_on_all_ranks(action: Callable[[], T]) -> T:
    """Run an action on every rank.

    If it fails on one rank, every rank raises that error instead of waiting forever.
    """
    result = None
    error = None
    try:
        result = action()
    except (TrainingError, OSError, RuntimeError) as caught:
        if isinstance(caught, TrainingError):
            error = caught
        else:
            error = TrainingError(f"{type(caught).__name__}: {caught}")

    errors: list[TrainingError | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(errors, error)
    for first_error in filter(None, errors):
        first_error.on_all_ranks = True
        raise first_error

    return result  # type: ignore[return-value]


def run_on_first_rank(action: Callable[[], T]) -> T:
    """Run an action on rank 0 only, and return its result on all ranks."""
    first = torch.distributed.get_rank() == 0
    return share_value(run_on_all_ranks(lambda: action() if first else None))  # type: ignore[return-value]


# Interval in seconds at which rank 0 reports that it is alive while it works alone
SIGN_SECONDS = 5.0
PROGRESS_SECONDS = 60.0
# How many times per second all ranks together check the store on rank 0
CHECKS_PER_SECOND = 200.0
_long_actions = itertools.count()


def run_long_on_first_rank(action: Callable[[], T], description: str, silence_seconds: float) -> T:
    """Run an action on the first rank, even if it takes longer than the process group timeout.

    The other ranks poll the store instead of waiting in a collective. They give up if rank 0 has
    not reported for `silence_seconds`.
    """
    number = next(_long_actions)
    first = torch.distributed.get_rank() == 0
    if torch.distributed.get_world_size() == 1:
        return run_on_first_rank(action)
    sign = f"runbook {number} sign"
    end = f"runbook {number} end"
    wait = partial(
        _wait_for_first,
        description,
        silence_seconds,
        sign,
        end,
    )
    work = partial(_work_alone, action, description, sign, end) if first else wait
    return share_value(run_on_all_ranks(work))  # type: ignore[return-value]


def _work_alone(
    action: Callable[[], T],
    description: str,
    sign: str,
    end: str,
) -> T:
    store = distributed_c10d._get_default_store()
    ended = threading.Event()
    start = time.monotonic()

    def give_signs() -> None:
        for count in itertools.count(1):
            store.set(sign, str(count))
            if ended.wait(SIGN_SECONDS):
                return
            if count % (PROGRESS_SECONDS // SIGN_SECONDS) == 0:
                say(
                    f"rank 0 is {description}, for {time.monotonic() - start:.0f} s so far; the "
                    "others are waiting for it"
                )

    thread = threading.Thread(
        target=give_signs,
        name="signs",
        daemon=True,
    )
    thread.start()
    try:
        return action()
    finally:
        ended.set()
        thread.join()
        store.set(end, "")


def _wait_for_first(
    description: str,
    silence_seconds: float,
    sign: str,
    end: str,
) -> None:
    store = distributed_c10d._get_default_store()
    last = b""
    start = time.monotonic()
    heard = start
    longest = 1 + torch.distributed.get_world_size() / CHECKS_PER_SECOND
    while not store.check([end]):
        moment = time.monotonic()
        newest = store.get(sign) if store.check([sign]) else b""
        if newest != last:
            last = newest
            heard = moment

        if moment - heard > silence_seconds:
            raise TrainingError(
                TrainingMessage.RANK_SILENT,
                silence_seconds=silence_seconds,
                description=description,
            )

        time.sleep(min(max(0.02, (moment - start) / 10), longest))


RENDEZVOUS_MARGIN_SECONDS = 5
"""Extra seconds after the torch timeout.

That timeout does not cover servers that accept a connection and never answer.
"""

_RENDEZVOUS_CAUSES = {
    "eaddrinuse|address already in use": RendezvousCause.PORT_IN_USE,
    "clients joined": RendezvousCause.MISSING_RANK,
    "gaierror|could not be resolved": RendezvousCause.ADDRESS_NOT_RESOLVED,
    "failed to listen": RendezvousCause.CANNOT_LISTEN,
    "timed out": RendezvousCause.RANK_0_SILENT,
    "connection refused": RendezvousCause.NOTHING_LISTENS,
}
"""The cause for each pattern in a message from torch. The first pattern that matches applies."""


@contextlib.contextmanager
def rendezvous(ranks: Ranks, timeout_seconds: int) -> Iterator[None]:
    """Guard the block where this rank joins the others.

    Raise `TrainingError` with the cause if joining fails, and end the process if the body hangs.
    """
    where = f"{ranks.master_address}:{ranks.master_port}"
    text = f"rank {ranks.rank} of {ranks.world_size} did not meet the others at {where}"

    def end_process() -> None:
        """End this process immediately, since its main thread is blocked in torch."""
        cause = "Cause: something other than rank 0 listens at that port, or rank 0 hangs"
        sys.stderr.write(f"{text} within {timeout_seconds} s: no answer. {cause}\n")
        sys.stderr.flush()
        os._exit(FAILED)

    late = threading.Timer(timeout_seconds + RENDEZVOUS_MARGIN_SECONDS, end_process)
    late.daemon = True
    late.start()
    try:
        yield
    except (RuntimeError, ValueError, OSError) as error:
        message = str(error)
        cause = RendezvousCause.UNKNOWN
        for signs, known_cause in _RENDEZVOUS_CAUSES.items():
            if re.search(signs, message.lower()):
                cause = known_cause
                break

        reason = repr(message.splitlines()[0]) if message else repr(error)
        raise TrainingError(
            TrainingMessage.RENDEZVOUS_FAILED, text=text, reason=reason, cause=cause
        ) from None
    finally:
        late.cancel()

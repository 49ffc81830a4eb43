"""What a smoke test proves beyond its steps: that its checkpoint loads again, and how fast its ranks talk."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from runbook.training import loading
from runbook.training.distributed import device

if TYPE_CHECKING:
    from runbook.training.loop import Run

SMOKE = "03-smoke-test"
MESSAGE_BYTES = 32 * 2**20
ROUNDS = 3


def prove(run: Run, train: Any) -> None:
    """Measure the network, then reload: events `network` and `reloaded` tell what came out; the gate judges them."""
    if run.spec.phase != SMOKE or run.saved_iteration != run.progress.iteration:
        return
    run.report.event("network", **network())
    with run.pulse.during("proving"):
        run.report.event("reloaded", **reload(run, train))


def network() -> dict[str, float]:
    """Bus bandwidth of a sum over all ranks, as nccl-tests counts it: 2 (n - 1) / n x bytes / seconds, median."""
    ranks = torch.distributed.get_world_size()
    if ranks == 1:
        return {"ranks": 1, "bytes": 0, "seconds": 0.0, "bytes_per_second": 0.0}
    message = torch.zeros(MESSAGE_BYTES // 4, dtype=torch.float32, device=device())
    seconds = []
    for _ in range(ROUNDS + 1):  # the first one opens connections
        torch.distributed.barrier()
        _wait()
        begun = time.monotonic()
        torch.distributed.all_reduce(message)
        _wait()
        seconds.append(time.monotonic() - begun)
    middle = statistics.median(seconds[1:])
    speed = 2 * (ranks - 1) / ranks * MESSAGE_BYTES / middle if middle else 0.0
    return {"ranks": ranks, "bytes": MESSAGE_BYTES, "seconds": middle, "bytes_per_second": speed}


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def reload(run: Run, train: Any) -> dict[str, Any]:
    """Spoil the weights by a step that is not counted, load the last checkpoint, and compare the loss of one batch."""
    saved_at, begun = run.progress.iteration, time.monotonic()
    before = _loss(run, train)
    _spoil(run, train)
    between = _loss(run, train)
    loaded = loading.load(run.spec, run.engine)
    after = _loss(run, train)
    return {
        "iteration": loaded.progress.iteration if loaded else None,
        "saved_iteration": saved_at,
        "folder": str(loaded.folder.relative_to(run.spec.root)) if loaded else None,
        "seconds": time.monotonic() - begun,
        "loss_before": before,
        "loss_between": between,
        "loss_after": after,
    }


def _spoil(run: Run, train: Any) -> None:
    count = run.spec.batch.num_microbatches
    run.engine.compute(run.stepper.reader.step(train, 0, count), count)
    run.engine.update(run.spec.learning_rate.peak)


def _loss(run: Run, train: Any) -> float:
    own = run.engine.evaluate(run.stepper.reader.step(train, 0, 1), 1)
    value = torch.tensor([own if run.engine.holds_loss() else 0.0], dtype=torch.float64, device=device())
    torch.distributed.all_reduce(value)
    return float(value) / run.spec.parallel.data

"""Runs in a forked rank instead of training (see zygote.py): counts a real step, or rehearses one."""

import dataclasses
import itertools
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from runbook.plan_file.schema import read_plan


def _given():
    path = Path(sys.argv[1])
    return path.parent, read_plan(path, "04-training")


def measured():
    """Run as ranks in a job. Each rank counts the work in its own step."""
    import torch

    from runbook.plan_file.rehearsed_work import BACKWARD, FORWARD, MATRIX
    from runbook.training import cpu, process_groups
    from runbook.training.ranks import ranks_from
    from runbook.training.rehearsal.counter import OperatorCounter
    from runbook.training.rehearsal.rank import _Rehearsal, group_names

    folder, plan = _given()
    ranks = ranks_from(os.environ)
    cpu.answer_for_cpu()
    process_groups.join_process_group(ranks, 60)
    counter = OperatorCounter(fake=False, device_type="cpu")
    passes = []
    add = counter._add

    def note(kind, number):
        if kind == MATRIX and number:
            passes.append(
                (FORWARD if torch._C._current_graph_task_id() == -1 else BACKWARD, counter.chunk)
            )
        add(kind, number)

    counter._add = note
    _count_one_copy_of_gloo(counter)
    with counter:
        process_groups.make_parallel_groups(plan)
        counter.groups = group_names()
        rehearsal = _Rehearsal(plan, counter)
        rehearsal.step(plan.batch.num_microbatches)
        counter.reset()
        rehearsal.step(plan.batch.num_microbatches)
        counts = counter.reset()
    collectives = [
        [*key, count, counts.collective_bytes[key]]
        for key, count in sorted(counts.collectives.items())
    ]
    found = {
        "largest": [vars(t) for t in counts.largest],
        "moment": counts.peak_moment,
        "peak_bytes": counts.peak_bytes,
        "flops": counts.flops,
        "collectives": collectives,
        "work": _sums((part, kind, number) for (part, _, kind), number in counts.work.items()),
        "passes": [key for key, _ in itertools.groupby(passes[len(passes) // 2 :])],
    }
    (folder / f"measured-{ranks.rank}.json").write_text(json.dumps(found))
    process_groups.leave_process_groups()
    return 0


GLOO_COPY = "aten.split.Tensor"
"""The first operator in which the counter sees gloo's copy for summing gradients. The counter does
not see the copy's creation, but it sees the split that follows.
"""


def _count_one_copy_of_gloo(counter):
    """Wait until gloo's copy is freed before the next one is counted, because a rehearsal counts
    each copy alone.

    Gloo's worker thread still holds the copy for a moment after the rank continues. On a busy
    machine it kept the copy for the tied embedding (65,536 B, 3.6 % of the peak) until the next
    bucket was summed.
    """
    allocated = counter._allocated

    def without_earlier_copies(tensor, operator):
        is_new = tensor.untyped_storage()._cdata not in counter._alive
        if is_new and str(operator) == GLOO_COPY:
            end = time.monotonic() + 10
            while _holds_copy(counter) and time.monotonic() < end:
                time.sleep(0.001)
        allocated(tensor, operator)

    counter._allocated = without_earlier_copies


def _holds_copy(counter):
    return any(made.operator == GLOO_COPY for _, made, _ in list(counter._alive.values()))


def _sums(amounts):
    """Return the amounts of a complete step by kind: in the optimizer, and before it."""
    sums = Counter()
    for part, kind, number in amounts:
        sums[f"{'optimizer' if part == 'optimizer' else 'before'} {kind}"] += number
    return {kind: number for kind, number in sums.items() if number}


def rehearsed():
    """Run one process that acts as each rank in the job in turn."""
    from runbook.training.rehearsal.rank import rehearse

    folder, plan = _given()
    for rank in range(plan.parallel.world_size):
        found = dataclasses.asdict(rehearse(plan, rank))
        found["collectives"] = [list(kind.values()) for kind in found["collectives"]]
        times = {"forward": plan.batch.num_microbatches, "backward": plan.batch.num_microbatches}
        found["work"] = _sums(
            (work["part"], kind, number * times.get(work["part"], 1))
            for work in found["work"]
            for kind, number in work["amounts"].items()
        )
        (folder / f"rehearsed-{rank}.json").write_text(json.dumps(found))
    return 0


def resumed():
    """Let a resuming rank write down what it reads from the checkpoint, and its peak memory in
    addition to the training state.
    """
    from runbook.training.checkpoints import state, torch_dist
    from runbook.training.engines import gpt_model
    from runbook.training.rehearsal.counter import OperatorCounter
    from runbook.training.rehearsal.rank import _Rehearsal

    load = state._load_candidate
    read_bytes = torch_dist.read_bytes
    sizes = []

    def counted_read(stream, into):
        sizes.append(into.nbytes)
        read_bytes(stream, into)

    def counted_load(spec, engine, *arguments):
        with OperatorCounter(fake=False, device_type="cpu") as counter:
            for weight in engine.models[
                0
            ].parameters():  # existing memory is counted when it is first touched
                for there in (weight, getattr(weight, "main_grad", None)):
                    _ = there if there is None else there.detach()
            loaded = load(spec, engine, *arguments)
            parts = _Rehearsal.parts(SimpleNamespace(engine=engine, counter=counter))
        found = {
            "read": sum(sizes),
            "state": sum(parts.values()),
            "peak": counter.counts.peak_bytes,
        }
        spec.path(f"resumed-{os.environ['RANK']}.json").write_text(json.dumps(found))
        return loaded

    state._load_candidate = counted_load
    torch_dist.read_bytes = counted_read
    gpt_model._normal_numbers = None  # if a checkpoint is loaded, no initial weights are drawn

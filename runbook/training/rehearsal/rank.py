"""Rehearses a rank in a job. The engine and the step run at full size on fake tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from runbook.plan_file import trainer_requirements
from runbook.plan_file.batch import Batch
from runbook.plan_file.rehearsed_work import ONCE, OPTIMIZER, Collective, RehearsedRank, Work
from runbook.plan_file.schema import PhasePlan
from runbook.training import cpu, process_groups
from runbook.training.host_copies import HostCopies
from runbook.training.rehearsal import gpu_stand_in
from runbook.training.rehearsal.counter import (
    FORWARD_BACKWARD,
    OperatorCounter,
    StepCounts,
    thinned,
)

EVALUATION = "evaluation"
SAVE = "save"
RESUME = "resume"
Answers: TypeAlias = dict[tuple[Any, str], Any]
"""The replacement for each attribute, by owner and attribute name."""


def rehearse(spec: PhasePlan, rank: int) -> RehearsedRank:
    """Build one rank, and run a step with enough micro-batches to reach the memory peak."""
    start = time.monotonic()
    trainer_requirements.check(
        spec, spec.parallel.world_size, fp16=spec.device != "cpu"
    )  # The trainer does the same
    for_gpu = spec.device != "cpu"
    # The DeepSpeed accelerator layer knows only the devices in its own list.
    if spec.engine == "deepspeed":
        spec = dataclasses.replace(spec, device="cpu")
    on_gpu = spec.device != "cpu"
    with _quiet(), _job_of(spec, rank, for_gpu=for_gpu):
        device_type = gpu_stand_in.NAME if on_gpu else "cpu"
        counter = OperatorCounter(fake=True, device_type=device_type)
        with (
            gpu_stand_in.StandIn(on_gpu=on_gpu),
            FakeTensorMode(allow_non_fake_inputs=True),
            counter,
        ):
            stage = process_groups.make_parallel_groups(spec)
            counter.groups = group_names()
            rehearsal = _Rehearsal(spec, counter)
            with _replaced(_fused_kernels(counter) if on_gpu else {}):
                return _rehearsed(rehearsal, rank, stage, start)


def _rehearsed(
    rehearsal: _Rehearsal,
    rank: int,
    stage: int,
    start: float,
) -> RehearsedRank:
    spec = rehearsal.spec
    counter = rehearsal.counter
    counter.reset()
    whole = spec.batch.num_microbatches
    smallest, once = rehearsal.smallest_step()
    run = min(whole, max(2 * smallest, microbatches_to_the_peak(spec, stage)))
    rehearsal.step(run)
    step = counter.reset()
    parts = rehearsal.parts()
    rehearsal.evaluate(spec.parallel.pipeline if spec.parallel.virtual_pipeline > 1 else 1)
    evaluation = counter.reset()
    saved_bytes = rehearsal.save()
    save = counter.reset()
    resume_bytes = rehearsal.resume()
    resume = counter.reset()
    peak_bytes = step.peak_bytes
    peak_moment = step.peak_moment
    if evaluation.peak_bytes > step.peak_bytes:
        peak_bytes = evaluation.peak_bytes
        peak_moment = EVALUATION

    # Memory at the peak, except weights, gradients and optimizer state
    parts["activations"] = peak_bytes - sum(parts.values())
    moments = {}
    for moment in (FORWARD_BACKWARD, OPTIMIZER):
        moments[moment] = max(size for name, size in step.timeline if name == moment)
    moments[EVALUATION] = evaluation.peak_bytes
    grown = _Grown(
        once,
        step,
        smallest,
        run,
        whole,
    )
    return RehearsedRank(
        rank=rank,
        stage=stage,
        peak_bytes=peak_bytes,
        peak_moment=peak_moment,
        parts=parts,
        moments=moments,
        flops=grown.number(once.flops, step.flops),
        operators=grown.number(once.operators, step.operators),
        collectives=tuple(grown.collectives()),
        work=tuple(grown.work()),
        synchronizations=grown.synchronizations(),
        saved_bytes=saved_bytes,
        save_host_bytes=save.host_peak_bytes,
        resume_bytes=resume_bytes,
        resume_peak_bytes=resume.peak_bytes + resume.host_peak_bytes,
        largest=tuple(step.largest),
        timeline=tuple(thinned(step.timeline)),
        microbatches=run,
        seconds=time.monotonic() - start,
    )


@dataclass(frozen=True)
class _Grown:
    """Counts for the whole batch, extrapolated from two smaller batches.

    Every micro-batch adds the same amount.
    """

    once: StepCounts
    step: StepCounts
    once_microbatches: int
    run: int
    whole: int

    def number(self, in_once: int, in_step: int) -> int:
        """Extrapolate a count for the whole batch from the counts in the two smaller batches."""
        return in_step + round(self._per_microbatch(in_once, in_step) * (self.whole - self.run))

    def _per_microbatch(self, in_once: int, in_step: int) -> float:
        if self.run > self.once_microbatches:
            return (in_step - in_once) / (self.run - self.once_microbatches)
        return in_step / self.run

    def collectives(self) -> Iterator[Collective]:
        """Yield the collectives for the whole batch by group and operation."""
        for key, count in sorted(self.step.collectives.items()):
            group, operation = key
            yield Collective(
                group,
                operation,
                self.number(self.once.collectives[key], count),
                self.number(self.once.collective_bytes[key], self.step.collective_bytes[key]),
            )

    def synchronizations(self) -> dict[str, int]:
        """Return how often the step waits for the device by source line, in descending order."""
        numbers = {}
        for line, count in self.step.synchronizations.most_common():
            numbers[line] = self.number(self.once.synchronizations[line], count)
        return numbers

    def work(self) -> list[Work]:
        """Return the work per micro-batch, and the work a step does only once."""
        amounts: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        for (part, chunk, kind), number in self.step.work.items():
            if part == OPTIMIZER:
                amounts[part, 0][kind] += number
                continue

            in_once = self.once.work[part, chunk, kind]
            per_microbatch = 0
            if not self._does_not_grow(kind):
                per_microbatch = round(self._per_microbatch(in_once, number))
            amounts[part, chunk][kind] += per_microbatch
            amounts[ONCE, 0][kind] += number - per_microbatch * self.run

        works = []
        for (part, chunk), counts in sorted(amounts.items()):
            # Adding two Counters would drop counts of zero.
            works.append(Work(part, chunk, dict(+counts)))

        return works

    def _does_not_grow(self, kind: str) -> bool:
        """Return whether there is as much work of this type with fewer micro-batches.

        The work may belong to a different pass in the smaller batch.
        """
        if self.run <= self.once_microbatches:
            return False
        return _outside_optimizer(self.once, kind) == _outside_optimizer(self.step, kind)


def _outside_optimizer(counts: StepCounts, kind: str) -> int:
    """Return how much work of a type there is in all passes in a step, without the optimizer."""
    total = 0
    for (part, _, name), number in counts.work.items():
        if name == kind and part != OPTIMIZER:
            total += number

    return total


def microbatches_to_the_peak(spec: PhasePlan, stage: int) -> int:
    """Return a number of micro-batches large enough to reach the memory peak in a step.

    This is the number of micro-batches in flight on this stage, plus a few.

    >>> from types import SimpleNamespace as N
    >>> cuts = [N(pipeline=stages, virtual_pipeline=chunks) for stages, chunks in ((1, 1), (16, 1),
    ... (4, 2))]
    >>> [microbatches_to_the_peak(N(parallel=cut), 0) for cut in cuts]
    [2, 18, 8]
    """
    stages = spec.parallel.pipeline
    chunks = spec.parallel.virtual_pipeline
    after = stages - stage - 1
    if chunks == 1:
        return after + (3 if stages > 1 else 2)
    return stages * -(-(2 * after + (chunks - 1) * stages + 2) // (stages * chunks))


class _Rehearsal:
    """The engine on this rank, and what the training loop does with it."""

    def __init__(self, spec: PhasePlan, counter: OperatorCounter) -> None:
        from runbook.training.health.stopping import StopConditions
        from runbook.training.loop import make_engine

        self.spec = spec
        self.counter = counter
        self.engine = make_engine(spec, draw=not counter.fake)
        if counter.fake:
            # Fake tensors are never in pinned memory.
            self.engine.host_copies = HostCopies()

        self.stopping = StopConditions()
        self._mark("compute", FORWARD_BACKWARD)
        self._mark("update", OPTIMIZER)
        for index, chunk in enumerate(self.engine.models):
            self._mark_chunk(index, chunk)

    def _mark(self, name: str, moment: str) -> None:
        call = getattr(self.engine, name)

        def marked(*arguments: Any) -> Any:
            self.counter.moment = moment
            return call(*arguments)

        setattr(self.engine, name, marked)

    def _mark_chunk(self, index: int, chunk: Any) -> None:
        def enter(*_: Any) -> None:
            self.counter.chunk = index

        def leave(_chunk: Any, _arguments: Any, output: Any) -> None:
            if output.requires_grad:
                output.register_hook(enter)  # The backward pass begins at this point.

        chunk.register_forward_pre_hook(enter)
        chunk.register_forward_hook(leave)

    def step(self, microbatches: int) -> None:
        """Run one iteration as the training loop does."""
        from runbook.training.checkpoints.state import TrainingProgress

        self.counter.moment = FORWARD_BACKWARD
        micro = self.spec.batch.micro
        batch = Batch(micro, micro * self.spec.parallel.data * microbatches, microbatches)
        stepper = self._stepper(dataclasses.replace(self.spec, batch=batch))
        stepper.step(_Samples(self.spec.model.shape.sequence_length), TrainingProgress())

    def _stepper(self, spec: PhasePlan) -> Any:
        from runbook.training.loop import Stepper

        return Stepper(spec, self.engine, self.stopping)

    def smallest_step(self) -> tuple[int, StepCounts]:
        """Run the smallest possible step, to allocate memory for later steps.

        Return the number of micro-batches in this step and the counts.
        """
        smallest = 1
        if self.spec.parallel.virtual_pipeline > 1:
            # Interleaved stages need as many micro-batches at a time as there are stages.
            smallest = self.spec.parallel.pipeline

        if self.spec.engine == "deepspeed":
            # The first step tells the next stage the shapes of the inputs.
            self.step(1)
        else:
            self.engine.update(0.0)  # This step creates the Adam moments

        self.counter.reset()
        self.step(smallest)
        return smallest, self.counter.reset()

    def evaluate(self, microbatches: int) -> None:
        """Run one evaluation with this many micro-batches."""
        self.counter.moment = EVALUATION
        reader = self._stepper(self.spec).reader
        self.engine.evaluate(
            reader.step(_Samples(self.spec.model.shape.sequence_length), 0, microbatches),
            microbatches,
        )

    def save(self) -> int:
        """Return the number of bytes this rank writes to a checkpoint."""
        from megatron.core.dist_checkpointing.mapping import ShardedTensor, is_main_replica

        from runbook.training.engines.engine import each_shard

        self.counter.moment = SAVE
        own_parts = []
        for shard in each_shard(self.engine.sharded_state()):
            if isinstance(shard, ShardedTensor) and is_main_replica(shard.replica_id):
                own_parts.append(shard.data)

        on_device = [data for data in own_parts if data.device.type not in ("cpu", "meta")]
        copies = [
            self.engine.host_copies.copy(data) for data in on_device
        ]  # all alive at the same time
        assert len(copies) == len(on_device)
        return sum(data.nbytes for data in own_parts if not data.is_meta)

    def resume(self) -> int:
        """Return the number of bytes this rank reads to resume from a checkpoint."""
        from runbook.training.checkpoints.torch_dist import PIECE_BYTES
        from runbook.training.engines.engine import CommonState

        self.counter.moment = RESUME
        sizes = []

        def read(_shard: Any, _start: int, into: torch.Tensor) -> None:
            sizes.append(into.nbytes)
            torch.empty(min(into.nbytes, PIECE_BYTES), dtype=torch.uint8)

        self.engine.restore(read, CommonState(1), with_optimizer=True)
        return sum(sizes)

    def parts(self) -> dict[str, int]:
        """Return the bytes used for weights, gradients and optimizer state."""
        engine = self.engine
        alive = self.counter.bytes_of
        owned = engine._owned()
        weights = list(owned.parts)
        mains = [part.main for part in owned.parts.values()]
        gradients = []
        for tensor in (*weights, *mains):
            for gradient in (getattr(tensor, "main_grad", None), tensor.grad):
                if gradient is not None:
                    gradients.append(gradient)

        moments = []
        for part in owned.parts.values():
            for value in part.adam.state[part.main].values():
                if isinstance(value, torch.Tensor):
                    moments.append(value)

        live_weights = alive(weights)
        return {
            "weights": live_weights,
            "gradients": alive(gradients),
            "optimizer": alive([*weights, *mains, *moments]) - live_weights,
        }


class _Samples:
    """A dataset of synthetic samples."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        numbers = torch.zeros(self.length, dtype=torch.int64)
        return {
            "tokens": numbers,
            "labels": numbers,
            "loss_mask": torch.ones(self.length),
            "position_ids": torch.arange(self.length),
        }


@contextlib.contextmanager
def _job_of(spec: PhasePlan, rank: int, *, for_gpu: bool) -> Iterator[None]:
    """Set up the process groups for the whole job, although only this rank exists."""
    if spec.device == "cpu":
        cpu.answer_for_cpu()
        gpu_stand_in.know_onednn()
    else:
        # Fused kernels are computed operation by operation.
        torch._dynamo.config.disable = True
        backend: Any = torch.distributed.Backend
        if gpu_stand_in.NAME not in backend.backend_capability["fake"]:
            gpu_stand_in.install()
            backend.backend_capability["fake"].append(gpu_stand_in.NAME)
            backend.default_device_backend_map[gpu_stand_in.NAME] = "fake"

    # DeepSpeed needs this variable even without a launcher.
    os.environ.setdefault("LOCAL_RANK", "0")
    if spec.device == "cpu":
        devices = "cpu:fake"
    else:
        devices = f"cpu:fake,{gpu_stand_in.NAME}:fake"

    distributed: Any = torch.distributed
    answers: Answers = {
        (torch.nn.Module, "_apply"): gpu_stand_in.move_module,
        (FakeTensor, "tolist"): gpu_stand_in.list_of_zeros,
        (torch.nn.functional, "scaled_dot_product_attention"): gpu_stand_in.attention(
            for_gpu=for_gpu
        ),
        (distributed, "all_gather_object"): _gather_own,
        (distributed, "broadcast_object_list"): lambda *_, **__: None,
    }
    if for_gpu:
        answers[cpu, "onednn_is_faster"] = lambda: False
    if spec.engine == "deepspeed":
        answers |= _answers_for_deepspeed(spec)
    with _replaced(answers):
        distributed.init_process_group(
            devices,
            rank=rank,
            world_size=spec.parallel.world_size,
            store=FakeStore(),
        )
        try:
            yield
        finally:
            process_groups.leave_process_groups()


@contextlib.contextmanager
def _replaced(answers: Answers) -> Iterator[None]:
    """Replace attributes until the block ends."""
    before = {attribute: getattr(*attribute) for attribute in answers}
    for (owner, name), function in answers.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name), original in before.items():
            setattr(owner, name, original)


def _fused_kernels(counter: OperatorCounter) -> Answers:
    """Return replacements for megatron-core functions that torch compiles on a GPU.

    Each replacement is counted as one kernel.
    """
    answers: Answers = {}
    for title, module in list(sys.modules.items()):
        if not title.startswith("megatron.core."):
            continue
        for name, call in list(vars(module).items()):
            # torch.compile attaches the original to the result.
            if hasattr(call, "_torchdynamo_orig_callable"):
                answers[module, name] = counter.as_one_kernel(call)

    return answers


def _answers_for_deepspeed(spec: PhasePlan) -> Answers:
    """Return replacements for the functions with which DeepSpeed receives other ranks' messages.

    The replacements return the content these messages would have.
    """
    from runbook.training.engines.deepspeed_start import import_deepspeed
    from runbook.training.engines.gpt_model import DTYPES

    import_deepspeed()
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.pipe import engine as pipeline
    from deepspeed.runtime.zero import utils

    shape = [spec.model.shape.sequence_length, spec.batch.micro, spec.model.shape.hidden]
    ask = utils.get_lst_from_rank0

    def hidden_states(engine: Any, source: int) -> Any:
        pipeline.p2p.recv(
            torch.empty(pipeline.TENSOR_META_SIZE, dtype=torch.int32, device=engine.device), source
        )
        return engine._allocate_or_extend_buffers(0, shape, DTYPES[spec.precision.format])

    def agree_on_length(_: list[int]) -> None:
        utils.dist.broadcast(
            torch.zeros((), dtype=torch.int64, device=process_groups.device()), src=0
        )

    def own_numbers(numbers: list[int]) -> list[int]:
        ask(numbers)
        return numbers

    return {
        (type(get_accelerator()), "is_fp16_supported"): lambda _: True,
        (pipeline.PipelineEngine, "_recv_tensor_meta"): hidden_states,
        (utils, "assert_lst_len_same_as_other_ranks"): agree_on_length,
        (utils, "get_lst_from_rank0"): own_numbers,
    }


def _gather_own(objects: list[Any], own_object: Any, group: Any = None) -> None:
    objects[:] = [own_object] * len(objects)


def group_names() -> dict[str, str]:
    """Return readable names for the process groups on this rank, keyed by the names in torch."""
    from megatron.core import parallel_state

    named = {
        "everyone": torch.distributed.group.WORLD,
        "data": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "context": parallel_state.get_context_parallel_group(),
        "pipeline": parallel_state.get_pipeline_model_parallel_group(),
        "tensor and pipeline": parallel_state.get_model_parallel_group(),
        "tensor": parallel_state.get_tensor_model_parallel_group(),
        "embeddings": parallel_state.get_embedding_group(check_initialized=False),
    }
    names: dict[str, str] = {}
    for name, group in named.items():
        if hasattr(group, "group_name"):
            names[group.group_name] = name

    return names


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logging.getLogger("megatron.core").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

"""The class used for both the smoke test and the full training run.

A choice contains the requested values, and the layout and batch that follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property

from runbook.core.checks import Check, check_of
from runbook.params.schema.entries import Model
from runbook.params.schema.run_file import Parallel, Training
from runbook.params.schema.site import Site
from runbook.params.settings import Settings
from runbook.plan_file.diagnostics import RuleResult
from runbook.plan_file.phase_names import FULL, SMOKE
from runbook.plan_file.rules.phase_keys import DEEPSPEED, FULL_KEYS, Keys
from runbook.plan_file.schema import Layout, ModelShape, Tuning
from runbook.planning.sizes import shape_of

SMOKE_DECAY = 100
"""A smoke test decays the learning rate over its own length times this factor.

So the rate is still at 99 % of the peak when the test ends.
"""
_NOT_IN_SMOKE = (
    *("samples", "tokens", "rampup_start", "rampup_increment", "rampup_samples"),
    *("warmup_samples", "warmup_tokens", "warmup_fraction", "decay_samples", "decay_tokens"),
)
"""Keys below `training` that set the length and the schedule; they are 0 in a smoke test."""


@dataclass(frozen=True)
class Machine:
    """Facts about the local machine.

    Planning itself reads nothing from the machine, so the caller collects these facts.
    """

    cores: int
    """Number of physical cores."""
    flags: frozenset[str] = frozenset()
    """CPU instruction sets as named by Linux (avx512_bf16, amx_bf16 ...); empty if unknown."""
    memory_bytes: int = 0
    """Main memory in bytes; 0 if unknown."""
    core_flops: float = 0.0
    """FLOP/s one core reaches in a matrix product with this run's precision; 0 if not measured."""


SMOKE_KEYS = Keys(
    **{
        member.name: f"training.smoke.{member.name}"
        for member in fields(Keys)
        if member.name != "job"
    },
    job="jobs.smoke",
)


@dataclass(frozen=True)
class Choice:
    """The requested values of one training phase, and the layout that follows from them.

    A choice is valid only if `check_layout` passes.
    """

    phase: str
    keys: Keys
    model_name: str
    model: Model
    layout: Layout
    devices_per_node: int
    micro_batch: int
    global_batch: int
    sequence_length: int
    training: Training
    site: Site

    @property
    def smoke(self) -> bool:
        """Return whether this is the smoke test, not the full training."""
        return self.phase == SMOKE

    @property
    def on_cpu(self) -> bool:
        """Return whether the site has no accelerator."""
        return self.site.hardware.device == "cpu"

    @property
    def nodes(self) -> int:
        """Return the number of nodes the layout fills."""
        return self.layout.world_size // self.devices_per_node

    def on_nodes(self, nodes: int) -> Choice:
        """Return the same run on more or fewer nodes, with the number of replicas adjusted."""
        return replace(self, layout=self.layout.over(nodes * self.devices_per_node))

    def in_layout(self, layout: Layout) -> Choice:
        """Return the same training run with a different layout over the same devices."""
        return replace(self, layout=layout.over(self.layout.world_size))

    @property
    def node_multiple(self) -> int:
        """Return the smallest number of nodes that can hold whole model replicas.

        Only multiples of this number can be used. For example, a model that is split 8 x 16 over
        nodes of 8 devices needs 16, 32, 48 ... nodes.
        """
        devices = math.lcm(self.layout.ranks_per_replica, self.devices_per_node)
        return devices // self.devices_per_node

    @cached_property
    def stage_layers(self) -> tuple[int, ...]:
        """Return the number of layers in each stage.

        If the layers do not divide evenly, the numbers are rounded down.
        """
        stages = self.layout.pipeline
        even = (self.shape.layers // stages,) * stages
        return self.layout.stage_layers(self.shape.layers) or even

    @cached_property
    def tuning(self) -> Tuning:
        """Return the options that determine how a step is computed.

        A smoke test sets `recompute_num_layers` to 1, because the value for the full training may
        not divide the number of layers in the smoke test.
        """
        training = self.training
        tuning = Tuning(
            overlap_gradients=training.overlap_gradients,
            overlap_weights=training.overlap_weights,
            overlap_pipeline=training.overlap_pipeline,
            fuse_gradients=training.fuse_gradients,
            kernels=training.kernels,
            overlap_tensor=training.overlap_tensor,
            cuda_graphs=training.cuda_graphs,
            recompute_method=training.recompute_method,
            recompute_num_layers=training.recompute_num_layers,
            gc_interval=training.gc_interval,
            broadcast_batches=training.broadcast_batches,
        )
        overlaps = tuning.overlap_tensor and self.layout.sequence
        if self.smoke:
            return replace(tuning, recompute_num_layers=1, overlap_tensor=overlaps)
        return tuning

    @property
    def recomputed(self) -> float:
        """Return the fraction of layers in a stage that full recomputation recomputes."""
        return self.tuning.recomputed(
            max(1, max(self.stage_layers) // self.layout.virtual_pipeline)
        )

    @property
    def shown_data(self) -> float:
        """Return what share of the data-parallel communication our trainer cannot hide."""
        if not self.own_trainer or self.tuning.overlap_weights:
            return 0.0
        if not self.tuning.overlap_gradients:
            return 1.0
        if self.deepspeed:
            return 0.0
        return 1 / 3 if self.layout.zero_stage else 0.0

    @property
    def compiles_kernels(self) -> bool:
        """Return whether our trainer uses its Triton kernels: on a GPU, unless disabled."""
        return self.own_trainer and not self.on_cpu and self.tuning.kernels != "plain"

    @property
    def has_half_sums(self) -> bool:
        """Return whether Megatron-LM sums and reduces gradients in bf16 instead of fp32."""
        training = self.training
        is_asked_for = training.reduce_in_bf16 and training.precision == "bf16"
        return is_asked_for and self.program == "megatron-lm"

    @property
    def hides_sends(self) -> bool:
        """Return whether stages send while they compute.

        If the run leaves this to the framework, the step model assumes that stages do not.
        """
        return self.layout.virtual_pipeline > 1 and self.tuning.overlap_pipeline == "always"

    @cached_property
    def num_microbatches(self) -> int:
        """Return the number of micro-batches each replica processes in a step."""
        return max(1, self.global_batch // (self.micro_batch * self.layout.data))

    @property
    def bubble(self) -> float:
        """Return the pipeline bubble: the idle time in a step relative to the time spent working.

        The bubble is (p - 1) / (micro-batches x chunks per stage).
        """
        layout = self.layout
        return (layout.pipeline - 1) / (self.num_microbatches * layout.virtual_pipeline)

    @cached_property
    def shape(self) -> ModelShape:
        """Return the model shape, with this phase's sequence length and padded vocabulary."""
        length = self.sequence_length
        return shape_of(
            self.model,
            tensor=self.layout.tensor,
            sequence_length=length,
            own=self.own_trainer,
        )

    @property
    def own_trainer(self) -> bool:
        """Return whether our own trainer is used, rather than a framework from the documents."""
        return self.training.framework == "runbook"

    @property
    def program(self) -> str:
        """Return the training program: the engine of our own trainer, or else the framework."""
        if self.own_trainer:
            return self.training.engine
        return self.training.framework

    @property
    def deepspeed(self) -> bool:
        """Return whether DeepSpeed manages gradients and optimizer states."""
        return self.program in DEEPSPEED

    def checks_of(self, results: Iterable[RuleResult]) -> Iterator[Check]:
        """Convert results from the trainer's rules to checks for this phase."""
        for result in results:
            yield check_of(result, self.phase)


def full_choice(settings: Settings) -> Choice:
    """Return the choice for the full training."""
    run = settings.run
    job = settings.job(FULL)
    site = settings.site
    price = settings.run.jobs.price_per_device_hour
    if price:
        site = site.model_copy(update={"price_per_device_hour": price})
    return Choice(
        phase=FULL,
        keys=FULL_KEYS,
        model_name=run.model,
        model=settings.model,
        layout=_layout(run.parallel).over(job.nodes * job.devices_per_node),
        devices_per_node=job.devices_per_node,
        micro_batch=run.training.micro_batch,
        global_batch=run.training.global_batch,
        sequence_length=run.training.sequence_length or settings.model.sequence_length,
        training=run.training,
        site=site,
    )


def _layout(parallel: Parallel) -> Layout:
    """Return the layout a run file requests, for the ranks in one replica."""
    return Layout(
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        virtual_pipeline=parallel.virtual_pipeline,
        context=parallel.context,
        sequence=parallel.sequence,
        zero_stage=parallel.zero_stage,
        first_stage_layers=parallel.first_stage_layers,
        last_stage_layers=parallel.last_stage_layers,
    )


def smoke_choice(settings: Settings) -> Choice:
    """Return the choice for the smoke test.

    The smoke test has no interleaving and no context parallelism, uses the run's ZeRO stage, and
    has its own tensor and pipeline sizes. A global batch of 0 means two micro-batches per replica,
    or one per stage if there are more stages. The peak learning rate is the same as in the full
    training; it is reached early and then hardly decays. If the full training run has evaluations,
    the smoke test has one evaluation, after its last step.
    """
    run = settings.run
    smoke = settings.run.training.smoke
    job = settings.job(SMOKE)
    evaluates = run.training.eval_interval > 0 and run.training.eval_iterations > 0
    changed = dict.fromkeys(_NOT_IN_SMOKE, 0) | {
        "iterations": smoke.iterations,
        "warmup_iterations": smoke.warmup_iterations,
        "decay_iterations": SMOKE_DECAY * smoke.iterations,
        "eval_interval": smoke.iterations if evaluates else 0,
        "eval_iterations": int(evaluates),
    }
    layout = Layout(
        tensor=smoke.tensor,
        pipeline=smoke.pipeline,
        sequence=run.parallel.sequence and smoke.tensor > 1,
        zero_stage=run.parallel.zero_stage,
    )
    choice = replace(
        full_choice(settings),
        phase=SMOKE,
        keys=SMOKE_KEYS,
        model_name=settings.smoke_model_name,
        model=settings.smoke_model,
        layout=layout.over(job.nodes * job.devices_per_node),
        devices_per_node=job.devices_per_node,
        micro_batch=smoke.micro_batch,
        global_batch=smoke.global_batch,
        sequence_length=smoke.sequence_length or settings.smoke_model.sequence_length,
        training=run.training.model_copy(update=changed),
    )
    smallest = max(2, choice.layout.pipeline) * choice.layout.data * choice.micro_batch
    return replace(choice, global_batch=smoke.global_batch or smallest)

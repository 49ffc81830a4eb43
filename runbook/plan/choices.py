"""The smoke test and the full training in the same words, whatever section their values were chosen in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from runbook.params.catalogue import Model, Site
from runbook.params.dataset import Dataset, Text
from runbook.params.schema import Engine, Framework, Job, Run, Training
from runbook.plan.sizes import Shape, shape_of

SMOKE = "03-smoke-test"
FULL = "04-training"


class Chosen(Protocol):
    """What a plan needs of `runbook.params.Settings`."""

    @property
    def run(self) -> Run:
        """The run file."""

    @property
    def site(self) -> Site:
        """The machine."""

    @property
    def model(self) -> Model:
        """The model of the full training."""

    @property
    def smoke_model(self) -> Model:
        """The model of the smoke test."""

    @property
    def smoke_model_name(self) -> str:
        """Its name in the catalogue."""

    @property
    def dataset(self) -> Dataset:
        """The text."""

    @property
    def texts(self) -> tuple[Text, ...]:
        """That text, or several with weights."""

    @property
    def variant(self) -> str:
        """The named set of overrides, or an empty word."""

    @property
    def name(self) -> str:
        """Name of the run's folder."""


@dataclass(frozen=True)
class Keys:
    """Where a phase's values are chosen, for the remedies."""

    tensor: str
    pipeline: str
    micro_batch: str
    global_batch: str
    sequence_length: str
    iterations: str
    warmup: str
    model: str
    job: str


SMOKE_KEYS = Keys(
    tensor="training.smoke.tensor",
    pipeline="training.smoke.pipeline",
    micro_batch="training.smoke.micro_batch",
    global_batch="training.smoke.global_batch",
    sequence_length="training.smoke.sequence_length",
    iterations="training.smoke.iterations",
    warmup="training.smoke.warmup_iterations",
    model="training.smoke.model",
    job="jobs.smoke",
)
FULL_KEYS = Keys(
    tensor="parallel.tensor",
    pipeline="parallel.pipeline",
    micro_batch="training.micro_batch",
    global_batch="training.global_batch",
    sequence_length="training.sequence_length",
    iterations="training.iterations",
    warmup="training.warmup_iterations",
    model="model",
    job="jobs.training",
)


@dataclass(frozen=True)
class Choice:
    """What one training phase was asked for; a global batch of 0 is still to be filled in."""

    phase: str
    keys: Keys
    model_name: str
    model: Model
    tensor: int
    pipeline: int
    virtual_pipeline: int
    context: int
    sequence: bool
    zero_stage: int
    nodes: int
    devices_per_node: int
    micro_batch: int
    global_batch: int
    sequence_length: int
    training: Training
    site: Site

    @property
    def smoke(self) -> bool:
        """Whether this is the short run before the long one."""
        return self.phase == SMOKE

    @property
    def on_cpu(self) -> bool:
        """Whether the site has no accelerator."""
        return self.site.hardware.device == "cpu"

    @property
    def shape(self) -> Shape:
        """The model padded for its tensor size, at its sequence length."""
        length = self.sequence_length
        return shape_of(self.model, tensor=self.tensor, sequence_length=length, own=self.own_trainer)

    @property
    def own_trainer(self) -> bool:
        """Whether our own trainer runs, not one of the documents' frameworks."""
        return self.training.framework is Framework.RUNBOOK

    @property
    def deepspeed(self) -> bool:
        """Whether DeepSpeed keeps gradients and optimizer states."""
        if self.own_trainer:
            return self.training.engine is Engine.DEEPSPEED
        return self.training.framework is Framework.MEGATRON_DEEPSPEED


def smoke_choice(chosen: Chosen) -> Choice:
    """The smoke test: no interleaving and no context parallel, the run's ZeRO stage, its own tensor and pipeline."""
    training, smoke, job = chosen.run.training, chosen.run.training.smoke, chosen.run.jobs.smoke
    model = chosen.smoke_model
    return Choice(
        phase=SMOKE,
        keys=SMOKE_KEYS,
        model_name=chosen.smoke_model_name,
        model=model,
        tensor=smoke.tensor,
        pipeline=smoke.pipeline,
        virtual_pipeline=1,
        context=1,
        sequence=chosen.run.parallel.sequence and smoke.tensor > 1,
        zero_stage=chosen.run.parallel.zero_stage,
        nodes=job.nodes,
        devices_per_node=_devices(job, chosen.site),
        micro_batch=smoke.micro_batch,
        global_batch=smoke.global_batch,
        sequence_length=smoke.sequence_length or model.sequence_length,
        training=training,
        site=_priced(chosen),
    )


def full_choice(chosen: Chosen) -> Choice:
    """The training itself."""
    training, parallel, job = chosen.run.training, chosen.run.parallel, chosen.run.jobs.training
    return Choice(
        phase=FULL,
        keys=FULL_KEYS,
        model_name=chosen.run.model,
        model=chosen.model,
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        virtual_pipeline=parallel.virtual_pipeline,
        context=parallel.context,
        sequence=parallel.sequence,
        zero_stage=parallel.zero_stage,
        nodes=job.nodes,
        devices_per_node=_devices(job, chosen.site),
        micro_batch=training.micro_batch,
        global_batch=training.global_batch,
        sequence_length=training.sequence_length or chosen.model.sequence_length,
        training=training,
        site=_priced(chosen),
    )


def _priced(chosen: Chosen) -> Site:
    """The site, with the price that the run gives."""
    price = chosen.run.jobs.price_per_device_hour
    return chosen.site.model_copy(update={"price_per_device_hour": price}) if price else chosen.site


def _devices(job: Job, site: Site) -> int:
    return job.devices_per_node or site.hardware.devices_per_node

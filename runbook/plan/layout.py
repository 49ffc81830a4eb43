"""How the devices and the batch are cut: dimensions, copies, micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

from runbook.plan.choices import Choice


@dataclass(frozen=True)
class Layout:
    """Devices by dimension, and the batch over them; `world_size` = tensor x pipeline x context x data."""

    tensor: int
    pipeline: int
    virtual_pipeline: int
    context: int
    sequence: bool
    data: int
    world_size: int
    zero_stage: int
    micro_batch: int
    global_batch: int
    num_microbatches: int

    @property
    def bubble(self) -> float:
        """Idle share of a step beside the work: (p - 1) / (micro-batches x chunks a stage)."""
        return (self.pipeline - 1) / (self.num_microbatches * self.virtual_pipeline)


def lay_out(choice: Choice) -> Layout:
    """Data-parallel copies and micro-batches of a choice; meaningful where `check_layout` finds no failure.

    A smoke test's global batch of 0 becomes two micro-batches for each copy, or one a stage where there are more.
    """
    world = choice.nodes * choice.devices_per_node
    data = max(1, world // (choice.tensor * choice.pipeline * choice.context))
    global_batch = choice.global_batch or max(2, choice.pipeline) * data * choice.micro_batch
    return Layout(
        tensor=choice.tensor,
        pipeline=choice.pipeline,
        virtual_pipeline=choice.virtual_pipeline,
        context=choice.context,
        sequence=choice.sequence,
        data=data,
        world_size=world,
        zero_stage=choice.zero_stage,
        micro_batch=choice.micro_batch,
        global_batch=global_batch,
        num_microbatches=max(1, global_batch // (choice.micro_batch * data)),
    )

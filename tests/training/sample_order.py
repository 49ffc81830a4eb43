"""Runs in a forked rank (see patched.py) to write the tokens in all samples, in reading order."""

import os
import sys
from pathlib import Path

import numpy


def write():
    """Write train.npy and, with evaluation, validation.npy next to plan.json: one row per sample."""
    from runbook.plan_file.schema import read_plan
    from runbook.training import cpu, datasets, process_groups
    from runbook.training.ranks import ranks_from

    plan = Path(sys.argv[1])
    spec = read_plan(plan, "04-training")
    cpu.answer_for_cpu()
    process_groups.join_process_group(ranks_from(os.environ), 60)
    made = datasets.make_datasets(spec, {})
    train = made.train
    validation = made.validation
    numpy.save(plan.parent / "train.npy", _rows(train, spec.duration.samples))
    if validation is not None:
        count = spec.evaluation.iterations * spec.batch.global_
        numpy.save(plan.parent / "validation.npy", _rows(validation, count))
    return 0


def write_megatron():
    """Write the same with megatron-core's own dataset class."""
    from megatron.core.datasets.gpt_dataset import GPTDataset

    from runbook.training import datasets

    datasets.EpochDataset = GPTDataset
    return write()


def _rows(dataset, samples):
    return numpy.stack(
        [
            numpy.append(dataset[index]["tokens"], dataset[index]["labels"][-1])
            for index in range(samples)
        ]
    )

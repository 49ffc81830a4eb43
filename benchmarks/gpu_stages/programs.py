"""The programs that are timed: the engines in the trainer, and a plain PyTorch GPT."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import math
import os
import tempfile
import typing
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from benchmarks import training_vs_plain
from benchmarks.gpu_stages.device import device, device_name
from runbook.plan_file import schema


def _load_specs() -> Any:
    """Load tests/training/specs.py by its path: another package may be installed as `tests`."""
    path = Path(__file__).parents[2] / "tests" / "training" / "specs.py"
    source = importlib.util.spec_from_file_location("gpu_benchmark_specs", path)
    assert source and source.loader
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    return module


specs = _load_specs()
SHAPES: dict[str, dict[str, int]] = training_vs_plain.SHAPES | {
    "rehearsal": {"layers": 2, "hidden": 64, "heads": 4, "sequence": 16},
    "small-256": {"layers": 4, "hidden": 256, "heads": 4, "sequence": 256},
    "small-512": {"layers": 4, "hidden": 512, "heads": 8, "sequence": 256},
}
SMALL_SHAPES = ("rehearsal", "small-256", "small-512")
"""Shapes with a small vocabulary, for CPUs and for rehearsals, which may interpret kernels.
"""
VOCABULARY = (50257, 50304)
"""GPT-2 vocabulary size, without and with padding to a multiple of 128."""
SMALL_VOCABULARY = (1000, 1024)
"""The same sizes for the shapes in `SMALL_SHAPES`."""
LEARNING_RATE = 1e-4
SEED = 1234


class Program(Protocol):
    """A program that can take a training step."""

    def step(self, micro_batches: list[Any]) -> float:
        """Take a step over some micro-batches and return their summed or mean loss."""

    def micro_batches(self, sequences: int, count: int) -> list[Any]:
        """Return random micro-batches on the device."""


@dataclasses.dataclass(frozen=True)
class ProgramOptions:
    """The program to build, and its options. A program ignores options that do not apply to it."""

    program: str
    shape: str
    precision: str = "bf16"
    micro_batch: int = 4
    num_micro_batches: int = 8
    engine: str = "megatron-core"
    zero_stage: int = 1
    recompute: str = "none"
    fp8: str = "none"
    kernels: str = ""
    """Value of `tuning.kernels`, if the plan has that field. An empty value leaves it unchanged."""


def make_program(options: ProgramOptions) -> Program:
    """Build the program on the device."""
    if options.program == "ours":
        return OurProgram(options)
    return PlainProgram(options)


def vocabulary_of(shape: str) -> tuple[int, int]:
    """Return the vocabulary size for a shape, without and with padding."""
    return SMALL_VOCABULARY if shape in SMALL_SHAPES else VOCABULARY


def random_tokens(shape: str, sequences: int, count: int) -> list[tuple[torch.Tensor, ...]]:
    """Return pairs of token ids and labels on the device, with the same numbers for every program."""
    generator = torch.Generator().manual_seed(SEED)
    size = (sequences, SHAPES[shape]["sequence"])
    vocabulary = vocabulary_of(shape)[0]
    pairs = []
    for _ in range(count):
        ids = torch.randint(0, vocabulary, size, generator=generator)
        labels = torch.randint(0, vocabulary, size, generator=generator)
        pairs.append((ids.to(device()), labels.to(device())))
    return pairs


def phase_content(options: ProgramOptions, **sections: Any) -> dict[str, Any]:
    """Return one phase of plan.json for a shape, on mock data."""
    shape = SHAPES[options.shape]
    model = {
        "name": options.shape,
        "label": options.shape,
        "layers": shape["layers"],
        "hidden": shape["hidden"],
        "heads": shape["heads"],
        "kv_heads": shape["heads"],
        "ffn_hidden": 4 * shape["hidden"],
        "sequence_length": shape["sequence"],
        "positions": shape["sequence"],
        "vocabulary": vocabulary_of(options.shape)[0],
        "padded_vocabulary": vocabulary_of(options.shape)[1],
    }
    content: dict[str, Any] = specs.spec(
        model=model,
        micro=options.micro_batch,
        global_batch=options.micro_batch * options.num_micro_batches,
        iterations=1000,
        precision=options.precision,
        zero_stage=options.zero_stage,
        mock=True,
        seed=SEED,
        peak=LEARNING_RATE,
        **sections,
    )
    content["engine"] = options.engine
    content["device"] = device_name()
    content["recompute"] = options.recompute
    if options.fp8 != "none":
        content["precision"]["fp8"] = options.fp8
    set_kernels(content, options.kernels)
    return content


def set_kernels(content: dict[str, Any], wanted: str) -> None:
    """Set `tuning.kernels` if this plan version has that field and value and Triton is installed."""
    can_run = torch.cuda.is_available() or "TRITON_INTERPRET" in os.environ
    if not can_run or importlib.util.find_spec("triton") is None:
        return
    values = typing.get_args(typing.get_type_hints(schema.Tuning).get("kernels"))
    if wanted and wanted in values:
        content["tuning"] = dict(content.get("tuning", {})) | {"kernels": wanted}


def prepare_trainer(spec: schema.PhasePlan) -> None:
    """Initialize everything that the trainer initializes before it builds an engine."""
    from runbook.training import cpu, process_groups
    from runbook.training.ranks import ranks_from, use_planned_device

    warnings.filterwarnings("ignore")
    logging.getLogger("megatron.core").setLevel(logging.ERROR)
    use_planned_device(spec.device)
    cpu.answer_for_cpu()
    process_groups.join_process_group(ranks_from({}), 600)
    process_groups.make_parallel_groups(spec)


def draw_weights_on_device() -> None:
    """Generate initial weights on the device, with a random generator other than the trainer's.

    The distribution is the same.

    The generator in the trainer runs on the host, generates 1e9 numbers in about 8 s, and gives
    every layout the same weights.
    """
    from runbook.training.engines import gpt_model

    gpt_model.fill_first_weights = _fill_on_device  # type: ignore[assignment]


def _fill_on_device(shards: Mapping[str, Any], model: schema.PlannedModel, seed: int) -> None:
    """Write initial weights according to the GPT-2 rule.

    They are normally distributed, and smaller with depth where they add to the residual stream.
    """
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    from runbook.training.engines.engine import each_shard

    generator = torch.Generator(device()).manual_seed(seed)
    deep_std = model.init_std / math.sqrt(2 * model.shape.layers)
    with torch.no_grad():
        for shard in each_shard(dict(shards)):
            if not isinstance(shard, ShardedTensor):
                continue
            if shard.key.endswith("bias"):
                shard.data.zero_()
            elif "norm" in shard.key:
                shard.data.fill_(1.0)
            else:
                is_deep = shard.key.endswith(("linear_proj.weight", "linear_fc2.weight"))
                std = deep_std if is_deep else model.init_std
                shard.data.normal_(0.0, std, generator=generator)


class OurProgram:
    """An engine of the trainer: compute and update, as the training loop calls them."""

    def __init__(self, options: ProgramOptions) -> None:
        from runbook.training.loop import make_engine

        self.shape = options.shape
        spec = schema.parse(phase_content(options), Path(tempfile.gettempdir()))
        prepare_trainer(spec)
        draw_weights_on_device()
        self.engine = make_engine(spec)
        self.update: Any = None
        """Gradient norm and loss scale of the last optimizer step, and whether it was skipped."""

    def micro_batches(self, sequences: int, count: int) -> list[dict[str, torch.Tensor]]:
        """Return micro-batches with the four tensors that an engine reads."""
        length = SHAPES[self.shape]["sequence"]
        places = torch.arange(length, device=device()).expand(sequences, -1)
        mask = torch.ones(sequences, length, device=device())
        return [
            {"tokens": ids, "labels": labels, "loss_mask": mask, "position_ids": places}
            for ids, labels in random_tokens(self.shape, sequences, count)
        ]

    def step(self, micro_batches: list[dict[str, torch.Tensor]]) -> float:
        """Take a step and return the mean loss."""
        loss = self.engine.compute(iter(micro_batches), len(micro_batches))
        self.update = self.engine.update(LEARNING_RATE)
        return float(loss) / len(micro_batches)


class PlainProgram:
    """The plain PyTorch GPT; `compiled` uses torch.compile, `even` the trainer's number formats."""

    def __init__(self, options: ProgramOptions) -> None:
        from benchmarks.plain_training import Plain, Shape

        torch.manual_seed(SEED)
        self.shape = options.shape
        self.plain = Plain(
            Shape(**SHAPES[options.shape], vocabulary=vocabulary_of(options.shape)[1]),
            options.precision,
            compiled="compiled" in options.program,
            even="even" in options.program,
        )

    def micro_batches(self, sequences: int, count: int) -> list[tuple[torch.Tensor, ...]]:
        """Return pairs of ids and labels."""
        return random_tokens(self.shape, sequences, count)

    def step(self, micro_batches: list[tuple[torch.Tensor, ...]]) -> float:
        """Take a step and return the mean loss."""
        return self.plain.step(micro_batches)  # type: ignore[arg-type]

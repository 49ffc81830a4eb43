"""Real training runs in which one thing went wrong, and what `runbook replay` must report about
each.

The cases are a rank that computes the same wrong number twice, a token that differed when the run
read it, and a trainer line that was changed since. They are drawn by seed.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy

import runbook

from . import specs

ITERATIONS = 6
SAVE_INTERVAL = 2
GLOBAL_BATCH = 4
RESUMED_AT = 3
"""The step where a run stops before it resumes."""
LAYERS = 4
LAYOUTS = {
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2},
    "replicas": {"copies": 2},
    "tensor and pipeline": {"tensor": 2, "pipeline": 2},
    "tensor and replicas": {"tensor": 2, "copies": 2},
    "pipeline and replicas": {"pipeline": 2, "copies": 2},
}
ACTIVATION, ACTIVATION_GRADIENT, WEIGHT_GRADIENT = ("forward", "backward", "gradient")
TOKENS, CODE = ("tokens", "code")
KINDS = (ACTIVATION, WEIGHT_GRADIENT, TOKENS, ACTIVATION_GRADIENT, CODE)


@dataclass(frozen=True)
class ChangedLine:
    """A trainer line that was changed after the run, and where the change shows first."""

    file: str
    before: str
    after: str
    part: str
    layer: int
    is_seen_one_step_later: bool = False


CHANGED_LINES = (
    ChangedLine(
        file="training/engines/gpt_model.py",
        before="self.scale = 1.0 / math.sqrt(config.kv_channels)",
        after="self.scale = 1.01 / math.sqrt(config.kv_channels)",
        part=ACTIVATION,
        layer=1,
    ),
    ChangedLine(
        file="training/engines/megatron_engine.py",
        before="return mean / pieces, reported",
        after="return mean * 1.001 / pieces, reported",
        part=ACTIVATION_GRADIENT,
        layer=LAYERS + 1,
    ),
    ChangedLine(
        file="training/engines/megatron_engine.py",
        before='group["lr"] = learning_rate',
        after='group["lr"] = learning_rate * 1.001',
        part=ACTIVATION,
        layer=0,
        is_seen_one_step_later=True,
    ),
)


@dataclass(frozen=True)
class ReplayCase:
    """A training run, what goes wrong in it, and the step that is replayed."""

    number: int
    kind: str
    layout: str
    step: int
    rank: int
    """The rank that computes something wrong, or whose replica reads the token."""
    layer: int
    is_resumed: bool
    bit: int
    element: int
    changed_line: ChangedLine
    micro_batch: int
    position: int
    """The position of the token in its sample."""

    @property
    def options(self) -> dict[str, int]:
        """Return the layout in the form that `specs.spec` accepts."""
        return LAYOUTS[self.layout]

    @property
    def faults(self) -> str:
        """Return the fault that the trainer must make in both computations."""
        if self.kind in (TOKENS, CODE):
            return ""
        return (
            f"flip:rank={self.rank},step={self.step},part={self.kind},layer={self.layer},"
            f"bit={self.bit},element={self.element}"
        )

    @property
    def replica(self) -> int:
        """Return the rank's replica.

        Tensor-parallel ranks come first, then replicas, then stages.
        """
        return self.rank // self.options.get("tensor", 1) % self.options.get("copies", 1)

    def ranks_of_replica(self) -> tuple[int, ...]:
        """Return the ranks that read the same samples as this rank."""
        tensor = self.options.get("tensor", 1)
        copies = self.options.get("copies", 1)
        ranks = range(num_ranks(self.layout))
        return tuple(rank for rank in ranks if rank // tensor % copies == self.replica)

    @property
    def sample(self) -> int:
        """Return the number of the sample with the changed token, in training order."""
        copies = self.options.get("copies", 1)
        return (self.step - 1) * GLOBAL_BATCH + self.micro_batch * copies + self.replica

    def spec(self) -> dict[str, object]:
        """Return the plan of the run."""
        content = specs.spec(
            iterations=ITERATIONS,
            global_batch=GLOBAL_BATCH,
            model={"dropout": 0.1},
            checkpoint={"interval": SAVE_INTERVAL, "keep": 4},
            **self.options,
        )
        content["limits"]["replay_interval"] = 1
        return content


def num_ranks(layout: str) -> int:
    """Return the number of processes that a layout needs."""
    count = 1
    for size in LAYOUTS[layout].values():
        count *= size
    return count


def layers_of_rank(layout: str, rank: int) -> list[int]:
    """Return the layers that a rank computes: the last half of the ranks has the second stage."""
    layers = list(range(1, LAYERS + 1))
    if "pipeline" not in LAYOUTS[layout]:
        return layers
    half = LAYERS // 2
    return layers[half:] if rank >= num_ranks(layout) // 2 else layers[:half]


def draw_cases(count: int, seed: int) -> list[ReplayCase]:
    """Return cases of every kind in turn, including the first and the last step."""
    dice = random.Random(seed)
    return [_draw_case(number, dice) for number in range(count)]


def _draw_case(number: int, dice: random.Random) -> ReplayCase:
    kind = KINDS[number % len(KINDS)]
    layout = list(LAYOUTS)[number % len(LAYOUTS)]
    step = dice.choice([1, ITERATIONS, *range(1, ITERATIONS + 1)])
    changed_line = CHANGED_LINES[number // len(KINDS) % len(CHANGED_LINES)]
    if kind == CODE and changed_line.is_seen_one_step_later:
        # Steps are compared from the first step after a checkpoint, because its weights are the
        # run's.
        step = dice.choice(range(2, ITERATIONS + 1, SAVE_INTERVAL))
    elif kind == CODE:
        step = dice.choice(range(1, ITERATIONS, SAVE_INTERVAL))
    rank = dice.randrange(num_ranks(layout))
    return ReplayCase(
        number=number,
        kind=kind,
        layout=layout,
        step=step,
        rank=rank,
        layer=dice.choice(layers_of_rank(layout, rank)),
        is_resumed=step > RESUMED_AT and dice.random() < 0.5,
        bit=dice.randrange(32),
        element=dice.randrange(10_000),
        changed_line=changed_line,
        micro_batch=dice.randrange(GLOBAL_BATCH // LAYOUTS[layout].get("copies", 1)),
        position=dice.randrange(1, specs.TINY["sequence_length"] + 1),
    )


def change_token(tokens: Path, sample: Sequence[int], position: int) -> None:
    """Flip the lowest bit in a token of a sample, in a separate copy that replaces the token file."""
    content = numpy.fromfile(tokens, "<u2")
    index = _find(content, sample, position)
    content[index] ^= 1
    tokens.unlink()
    tokens.write_bytes(content.tobytes())


def _find(content: numpy.ndarray, sample: Sequence[int], position: int) -> int:
    """Find a sample's token in a token file: the only place with the same tokens around it."""
    around = 8
    first = min(max(0, position - around // 2), len(sample) - around)
    text = numpy.asarray(sample[first : first + around], content.dtype)
    windows = numpy.lib.stride_tricks.sliding_window_view(content, around)
    (places,) = numpy.nonzero((windows == text).all(axis=1))
    assert len(places) == 1, f"{len(places)} places hold these tokens"
    return int(places[0]) + position - first


def changed_package(folder: Path, line: ChangedLine) -> Path:
    """Return a folder from which to import `runbook` with a changed line in the trainer."""
    package = folder / "runbook"
    shutil.copytree(
        Path(runbook.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__")
    )
    path = package / line.file
    text = path.read_text(encoding="utf-8")
    assert text.count(line.before) == 1, line
    path.write_text(text.replace(line.before, line.after), encoding="utf-8")
    return folder

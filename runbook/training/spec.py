"""What to train: one phase of plan.json as strict dataclasses, every problem found in one go."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from runbook.training.errors import RefusedError


@dataclass(frozen=True)
class Model:
    """Shape of the network."""

    name: str
    label: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    sequence_length: int
    positions: int
    vocabulary: int
    padded_vocabulary: int
    tied_embeddings: bool
    position_embedding: str
    normalization: str
    activation: str
    biases: bool
    init_std: float
    dropout: float
    parameters: int


@dataclass(frozen=True)
class Parallel:
    """How the network is cut over the ranks."""

    tensor: int
    pipeline: int
    virtual_pipeline: int
    context: int
    sequence: bool
    data: int
    world_size: int
    zero_stage: int


@dataclass(frozen=True)
class Ramp:
    """A global batch that begins at `start` and grows by `increment` over the first `samples`; start 0: it does not."""

    start: int = 0
    increment: int = 0
    samples: int = 0


@dataclass(frozen=True)
class Batch:
    """Sequences of one step; where the batch ramps up, of a step after the ramp."""

    micro: int
    global_: int
    num_microbatches: int
    ramp: Ramp = Ramp()


@dataclass(frozen=True)
class Duration:
    """How long the whole training is, over all its segments."""

    iterations: int
    samples: int
    tokens: int


@dataclass(frozen=True)
class LearningRate:
    """The learning rate as a function of the samples seen."""

    peak: float
    minimum: float
    schedule: str
    warmup_samples: int
    decay_samples: int


@dataclass(frozen=True)
class Optimizer:
    """Adam with decoupled weight decay."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_gradient: float


@dataclass(frozen=True)
class Precision:
    """Number format of the matrix products."""

    format: str
    initial_loss_scale: float
    loss_scale_window: int
    hysteresis: int = 2
    """Overflows in a row before the scale halves."""
    static_loss_scale: float = 0.0
    """Keep this scale whatever happens; 0: dynamic."""
    minimum_loss_scale: float = 1.0
    """The dynamic scale does not fall below; an overflow there is a collapse."""


@dataclass(frozen=True)
class Source:
    """One .bin/.idx pair and its share of the samples."""

    weight: float
    prefix: str


@dataclass(frozen=True)
class Data:
    """Where the tokens are."""

    mock: bool
    train: list[Source]
    validation: list[Source]
    test: list[Source]
    split: str
    cache: str


@dataclass(frozen=True)
class Evaluation:
    """When the held-out loss is measured, and over how many batches."""

    interval: int
    iterations: int


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often the state is saved."""

    folder: str
    interval: int
    keep: int
    keep_every: int = 0
    """Keep each checkpoint whose iteration this divides as well; 0: only the newest."""
    asynchronous: bool = False
    """Write beside the training instead of between two steps."""
    resume_changed: bool = False
    """Go on from a checkpoint that was trained with other values than these."""


@dataclass(frozen=True)
class Log:
    """Files the run tells its progress in."""

    interval: int
    metrics: str
    validation: str
    samples: str
    events: str
    tensorboard: str
    peak_tflops: float = 0.0
    """A device's peak by its datasheet in this number format; 0: not known."""
    measured_tflops: float = 0.0
    """What the longest matrix product reached on this machine; 0: not measured."""


@dataclass(frozen=True)
class Limits:
    """When to stop waiting or working."""

    exit_duration_seconds: int
    process_group_timeout_seconds: int
    exit_interval: int = 0
    """Save and stop each time this many steps of the whole training are done; 0: never."""
    nan_policy: str = "stop"
    """What follows a loss or gradient that is no number, or a collapsed loss scale: stop, skip, rollback."""
    nan_limit: int = 3
    """So many such steps in a row, or rollbacks in a segment, end the training all the same."""


@dataclass(frozen=True)
class Sampling:
    """The text that the model continues before and after training."""

    prompt_ids: list[int]
    tokens: int
    end_of_document: int
    prompt: str = ""


@dataclass(frozen=True)
class Spec:
    """One phase of plan.json; `root` is the folder that its relative paths start from."""

    phase: str
    engine: str
    seed: int
    device: str
    model: Model
    parallel: Parallel
    batch: Batch
    duration: Duration
    learning_rate: LearningRate
    optimizer: Optimizer
    precision: Precision
    recompute: str
    data: Data
    evaluation: Evaluation
    checkpoint: Checkpoint
    log: Log
    limits: Limits
    sampling: Sampling
    fingerprint: str
    deepspeed: dict[str, Any] = field(default_factory=dict)
    """DeepSpeed's own configuration, handed to it word for word; empty: made from the other values."""
    root: Path = Path()

    def path(self, relative: str) -> Path:
        """The file or folder that plan.json means by this path."""
        return self.root / relative


def read_plan(plan: Path, phase: str) -> Spec:
    """The phase's part of plan.json; `RefusedError` names everything that is wrong with it."""
    try:
        content = json.loads(plan.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RefusedError(f"{plan} does not exist; `runbook plan RUN` writes it") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError(f"{plan} is not readable as JSON: {error}") from None
    phases = content.get("phases") if isinstance(content, dict) else None
    if not isinstance(phases, dict) or phase not in phases:
        known = ", ".join(sorted(phases)) if isinstance(phases, dict) and phases else "none"
        raise RefusedError(f"{plan} has no phase {phase!r} under 'phases' (it has: {known})")
    return parse(phases[phase], plan.resolve().parent)


def parse(content: Any, root: Path) -> Spec:
    """A `Spec` from what JSON gave; `RefusedError` lists every unknown key, missing key and ill-typed value."""
    problems: list[str] = []
    spec: Spec = _record(Spec, content, "", problems)
    if problems:
        raise RefusedError("plan.json cannot be trained from:\n" + "\n".join(f"  {problem}" for problem in problems))
    return dataclasses.replace(spec, root=root)


def _record(kind: type, content: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(content, dict):
        problems.append(f"{where.rstrip('.') or 'the phase'}: {_shown(content)} is not a mapping")
        return None
    hints = get_type_hints(kind)
    fields = {member.name.rstrip("_"): member for member in dataclasses.fields(kind) if member.name != "root"}
    values = {}
    for key in content:
        if key not in fields:
            problems.append(f"{where}{key}: unknown key; known are {', '.join(fields)}")
    for key, member in fields.items():
        if key in content:
            values[member.name] = _value(hints[member.name], content[key], f"{where}{key}", problems)
        elif member.default is dataclasses.MISSING and member.default_factory is dataclasses.MISSING:
            problems.append(f"{where}{key}: missing")
    return None if problems else kind(**values)


def _value(kind: Any, content: Any, where: str, problems: list[str]) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record(kind, content, f"{where}.", problems)
    if get_origin(kind) is dict:
        if not isinstance(content, dict):
            problems.append(f"{where}: {_shown(content)} is not a mapping")
        return content
    if get_origin(kind) is list:
        if not isinstance(content, list):
            problems.append(f"{where}: {_shown(content)} is not a list")
            return None
        (member,) = get_args(kind)
        return [_value(member, item, f"{where}[{index}]", problems) for index, item in enumerate(content)]
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(content, accepted) or (isinstance(content, bool) and kind is not bool):
        problems.append(f"{where}: {_shown(content)} is not {_NAMES[kind]}")
        return None
    return kind(content)


_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _shown(content: Any) -> str:
    text = json.dumps(content)
    return text if len(text) <= 60 else text[:57] + "..."

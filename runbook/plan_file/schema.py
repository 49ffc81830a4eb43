"""Types for the training phases in plan.json, with formulas for parameters, layout and FLOPs."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from runbook.plan_file.alarms import AlarmSettings
from runbook.plan_file.batch import Batch
from runbook.plan_file.errors import RefusedError
from runbook.plan_file.json_records import FLAT, NOT_IN_JSON, OMIT_DEFAULT, OPTIONAL, from_json
from runbook.plan_file.learning_rate import LearningRate
from runbook.plan_file.messages import PlanFileMessage
from runbook.plan_file.ranges import BELOW_ONE, NOT_NEGATIVE, POSITIVE, within

FLOPS_CONVENTION = "megatron-full"
"""Convention used for all TFLOP/s in the trainer and the plan; see `ModelShape.flops_per_sequence`.
"""
RANK_TIMES = "rank_times.jsonl"
REPLAY = "replay.jsonl"
NEAR_FOLDER = "/dev/shm"
RANKS_PER_STEP = 128
"""Times are recorded for every step if there are at most this many ranks.

With 1,024 ranks, only every 8th step is recorded.
"""

Precision = Literal["fp32", "fp16", "bf16"]
"""Number format used for matrix products."""
Recompute = Literal["none", "selective", "full"]
"""Which activations are recomputed in the backward pass instead of being kept."""
Engine = Literal["megatron-core", "deepspeed"]
"""Library that manages gradients and optimizer states in our own trainer."""
Fp8 = Literal["none", "delayed", "tensorwise", "blockwise", "mxfp8"]
"""How Transformer Engine scales 8-bit matrix products."""
RecomputeMethod = Literal["uniform", "block"]
"""How the layers to recompute are chosen."""
Switch = Literal["auto", "always", "never"]
"""Whether to use a feature; each framework has its own default."""
Kernels = Literal["auto", "compiled", "plain"]
"""The GPU kernels used to compute a step: those compiled by the trainer, or the megatron-core ones.
"""
TRACKERS = ("mlflow", "trackio", "wandb")
"""Trackers the trainer can report to; TensorBoard files are always written."""
NanPolicy = Literal["stop", "skip", "rollback"]
"""What to do after a step with a NaN or infinite loss or gradient."""
SpikePolicy = Literal["note", "skip", "rollback"]
"""The action after a loss spike: a finite loss far above the recent ones."""


@dataclass(frozen=True)
class ModelShape:
    """A GPT with all defaults filled in and the vocabulary padded for one tensor-parallel size."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    sequence_length: int
    positions: int
    vocabulary: int
    padded_vocabulary: int
    tied_embeddings: bool = True
    position_embedding: Literal["learned", "rope"] = "learned"
    normalization: Literal["layernorm", "rmsnorm"] = "layernorm"
    activation: Literal["gelu", "swiglu"] = "gelu"
    biases: bool = True
    qkv_biases: bool = field(default=False, metadata=OMIT_DEFAULT)
    """Whether queries, keys and values have biases even if the other matrices do not."""
    norm_epsilon: float = field(default=1e-5, metadata=OMIT_DEFAULT)
    rope_base: float = field(default=10_000.0, metadata=OMIT_DEFAULT)
    head_width: int = field(default=0, metadata=OMIT_DEFAULT)
    """Width of each attention head, if it is not hidden / heads; set only for published models."""

    @property
    def head_size(self) -> int:
        """Return the width of each attention head."""
        return self.head_width or self.hidden // self.heads

    @property
    def gated(self) -> bool:
        """Whether the feed-forward block has a second input matrix (SwiGLU)."""
        return self.activation == "swiglu"

    def flops_per_sequence(self, *, attended: float = 1.0) -> float:
        """Return the FLOPs in the forward and backward pass over one sequence.

        For a GPT-3 shape, the number of FLOPs is 72 s l h^2 (1 + s/6h + V/12lh).

        This is the Megatron-LM formula. `attended` is the share of token pairs for which attention
        scores are counted. Recomputed activations are not counted.
        """
        s = self.sequence_length
        h = self.hidden
        layers = self.layers
        width_ratio = self.heads * self.head_size / h
        attention = (1 + self.kv_heads / self.heads + attended * s / h) * width_ratio
        feed_forward = self.ffn_hidden / h * (1.5 if self.gated else 1)
        return (
            12
            * s
            * layers
            * h**2
            * (attention + feed_forward + self.padded_vocabulary / (2 * layers * h))
        )


SHAPE_FIELDS = frozenset(field.name for field in dataclasses.fields(ModelShape))


class HasShape:
    """Gives access to the sizes in a model's shape without naming the shape.

    `runbook.open(RUN).plan.plan.model.layers` is for display only. Our own code uses the shape,
    which mypy enforces.
    """

    shape: ModelShape

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a value from the shape."""
            if name in SHAPE_FIELDS:
                return getattr(self.shape, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@dataclass(frozen=True, kw_only=True)
class PlannedModel(HasShape):
    """The model a phase trains: shape, initialization, and exact parameter count."""

    shape: ModelShape = field(metadata=FLAT)
    name: str
    label: str
    init_std: float
    dropout: float
    parameters: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the model is divided over the ranks.

    `over` sets how many replicas there are on a number of ranks.
    """

    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1
    context: int = 1
    sequence: bool = False
    data: int = 1
    world_size: int = 1
    zero_stage: int = 1
    first_stage_layers: int = field(default=0, metadata=OMIT_DEFAULT)
    """Number of layers in the first stage; 0 means the same number as in a middle stage."""
    last_stage_layers: int = field(default=0, metadata=OMIT_DEFAULT)

    @property
    def ranks_per_replica(self) -> int:
        """Return the number of ranks that form one model replica."""
        return self.tensor * self.pipeline * self.context

    def over(self, world_size: int) -> "Layout":
        """Return the layout for this many ranks, with as many replicas as fit, and at least one.

        >>> Layout(tensor=4, pipeline=2).over(64).data, Layout(tensor=4).over(2).data
        (8, 1)
        """
        replicas = max(1, world_size // self.ranks_per_replica)
        return dataclasses.replace(self, data=replicas, world_size=world_size)

    def stage_layers(self, layers: int) -> tuple[int, ...]:
        """Return the number of layers per stage, or an empty tuple if they do not divide evenly.

        >>> four = Layout(pipeline=4, last_stage_layers=6)
        >>> four.stage_layers(30), four.stage_layers(32)
        ((8, 8, 8, 6), ())
        """
        end_stages = {0: self.first_stage_layers, self.pipeline - 1: self.last_stage_layers}
        if self.pipeline == 1 and (self.first_stage_layers or self.last_stage_layers):
            return ()
        chosen = {stage: count for stage, count in end_stages.items() if count}
        layers_to_share = layers - sum(chosen.values())
        others = self.pipeline - len(chosen)
        if others:
            layers_each, layers_over = divmod(layers_to_share, others)
        else:
            layers_each = 0
            layers_over = layers_to_share

        if layers_over:
            return ()
        stages = tuple(chosen.get(stage, layers_each) for stage in range(self.pipeline))
        if all(count > 0 and count % self.virtual_pipeline == 0 for count in stages):
            return stages
        return ()


@dataclass(frozen=True)
class Tuning:
    """How a step is computed.

    These values do not change the training result, apart from rounding.
    """

    overlap_gradients: bool = field(default=False, metadata=OMIT_DEFAULT)
    overlap_weights: bool = field(default=False, metadata=OMIT_DEFAULT)
    overlap_pipeline: Switch = field(default="auto", metadata=OMIT_DEFAULT)
    fuse_gradients: Switch = field(default="auto", metadata=OMIT_DEFAULT)
    kernels: Kernels = field(default="auto", metadata=OMIT_DEFAULT)
    overlap_tensor: bool = field(default=False, metadata=OMIT_DEFAULT)
    cuda_graphs: bool = field(default=False, metadata=OMIT_DEFAULT)
    recompute_method: RecomputeMethod = field(default="uniform", metadata=OMIT_DEFAULT)
    recompute_num_layers: int = field(default=1, metadata=OMIT_DEFAULT)
    gc_interval: int = field(default=0, metadata=OMIT_DEFAULT)
    broadcast_batches: bool = field(default=False, metadata=OMIT_DEFAULT)

    def recomputed(self, layers: int) -> float:
        """Return the share of layers in a stage (or chunk) that is recomputed."""
        if self.recompute_method == "block":
            return min(1.0, self.recompute_num_layers / layers)
        return 1.0


@dataclass(frozen=True)
class Duration:
    """Length of the training run over all segments, in the three usual units."""

    iterations: int
    samples: int
    tokens: int


ADAM_MOMENTS = ("exp_avg", "exp_avg_sq")
"""Float32 tensors that Adam keeps for each weight, as they are named in the torch Adam state."""


@dataclass(frozen=True)
class Optimizer:
    """Adam with decoupled weight decay."""

    beta1: float = field(metadata=within(BELOW_ONE))
    beta2: float = field(metadata=within(BELOW_ONE))
    epsilon: float = field(metadata=within(POSITIVE))
    weight_decay: float = field(metadata=within(NOT_NEGATIVE))
    clip_gradient: float = field(metadata=within(NOT_NEGATIVE))

    @property
    def moments(self) -> tuple[str, ...]:
        """Return the names of the float32 tensors the optimizer keeps for each weight.

        The trainer saves these tensors; their number determines memory, checkpoint size and step
        time.
        """
        return ADAM_MOMENTS


@dataclass(frozen=True)
class PlannedPrecision:
    """Number format used for matrix products, and the loss scale for fp16."""

    format: Precision
    initial_loss_scale: float
    loss_scale_window: int
    hysteresis: int = field(default=2, metadata=OMIT_DEFAULT)
    """The scale is halved after this many consecutive overflows."""
    static_loss_scale: float = field(default=0.0, metadata=OMIT_DEFAULT)
    """Constant scale; 0 means a dynamic scale."""
    minimum_loss_scale: float = field(default=1.0, metadata=OMIT_DEFAULT)
    """Lower limit for the dynamic scale; an overflow at this scale counts as a collapse."""
    fp8: Fp8 = field(default="none", metadata=OMIT_DEFAULT)
    """How 8-bit matrix products are scaled."""


@dataclass(frozen=True)
class Source:
    """A .bin/.idx pair, with the share of samples read from it."""

    weight: float
    prefix: str
    text: str = field(default="", metadata=OMIT_DEFAULT)
    """Name of the text, if the text has more than one file.

    The weight of the text is shared among the files in proportion to their tokens, which are
    counted when the text is read.
    """


@dataclass(frozen=True)
class PlannedData:
    """Token files by use. The split is used only if no file is held out."""

    mock: bool
    train: tuple[Source, ...]
    validation: tuple[Source, ...]
    test: tuple[Source, ...]
    split: str
    cache: str

    @property
    def held_out(self) -> bool:
        """Whether whole files are reserved for validation and test."""
        return bool(self.validation or self.test)


@dataclass(frozen=True)
class Evaluation:
    """Steps between two evaluations on held-out text, and batches per evaluation; 0 means none."""

    interval: int
    iterations: int


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often the state is saved."""

    folder: str
    interval: int
    keep: int
    keep_every: int = field(default=0, metadata=OMIT_DEFAULT)
    """Also keep every checkpoint at a multiple of this many iterations; 0 means only the newest."""
    asynchronous: bool = field(default=False, metadata=OMIT_DEFAULT)
    """Write while training continues, instead of between two steps."""
    resume_changed: bool = field(default=False, metadata=OMIT_DEFAULT)
    """Allow a resume from a checkpoint trained with different values."""
    saves: bool = field(default=True, metadata=OMIT_DEFAULT)
    """Whether anything is saved; False only for frameworks other than our own trainer."""
    near_interval: int = field(default=0, metadata=OMIT_DEFAULT)
    """Each rank copies its state to node memory after this many steps; 0 means no copies."""
    near_folder: str = field(default=NEAR_FOLDER, metadata=OMIT_DEFAULT)
    """Folder in node memory for these copies. The path may contain environment variables, which are
    read on the node.
    """


@dataclass(frozen=True)
class Log:
    """Where a run reports progress: log files, receivers of alarms, and trackers."""

    interval: int
    metrics: str
    validation: str
    samples: str
    events: str
    tensorboard: str
    peak_tflops: float = field(default=0.0, metadata=OMIT_DEFAULT)
    """Datasheet peak per device in this number format; 0 if unknown."""
    measured_tflops: float = field(default=0.0, metadata=OMIT_DEFAULT)
    """TFLOP/s measured in a large matrix product on this machine; 0 if not measured."""
    alarm_webhook: str = field(default="", metadata=OMIT_DEFAULT)
    """Reference (env:NAME or file:PATH) to the web address that alarms are posted to."""
    alarm_command: str = field(default="", metadata=OMIT_DEFAULT)
    alarms: AlarmSettings = field(default=AlarmSettings(), metadata=FLAT)
    trackers: tuple[str, ...] = field(default=(), metadata=OMIT_DEFAULT)
    """Names from `TRACKERS` that receive the metrics while this phase trains."""
    tracker_project: str = field(default="", metadata=OMIT_DEFAULT)
    """Project or experiment for the runs; if empty, the tracker uses its own environment variable.
    """

    @property
    def rank_times(self) -> str:
        """Return the path to the file with step times by rank, next to the metrics."""
        return str(PurePosixPath(self.metrics).with_name(RANK_TIMES))

    @property
    def replay(self) -> str:
        """Return the path to the file with fingerprints from recomputed micro-batches."""
        return str(PurePosixPath(self.metrics).with_name(REPLAY))


def exchange_interval(world_size: int) -> int:
    """Return the number of steps between two exchanges of rank times.

    With this interval, a record contains at most `RANKS_PER_STEP` ranks per step.

    >>> exchange_interval(8), exchange_interval(1024), exchange_interval(10_000)
    (1, 8, 79)
    """
    return -(-world_size // RANKS_PER_STEP)


@dataclass(frozen=True)
class Limits:
    """Limits on how long to wait and how long to train."""

    exit_duration_seconds: int
    process_group_timeout_seconds: int
    exit_interval: int = field(default=0, metadata=OMIT_DEFAULT)
    """Save and stop after every multiple of this many steps, counted over all jobs; 0 means never.
    """
    nan_policy: NanPolicy = field(default="stop", metadata=OMIT_DEFAULT)
    """The action after a NaN loss or gradient, or a collapsed loss scale."""
    nan_limit: int = field(default=3, metadata=OMIT_DEFAULT)
    """This many bad steps in a row, or rollbacks in a segment, end the training under any policy.
    """
    spike_policy: SpikePolicy = field(default="note", metadata=OMIT_DEFAULT)
    """The action after a loss spike: a finite loss far above the recent ones."""
    replay_interval: int = field(default=0, metadata=OMIT_DEFAULT)
    """Steps between two checks, which recompute the first micro-batch to compare the results; 0
    means never.
    """
    fewer_replicas: tuple[int, ...] = field(default=(), metadata=OMIT_DEFAULT)
    """Smaller numbers of data-parallel replicas that training may continue with if nodes are lost,
    in descending order.
    """


@dataclass(frozen=True)
class Sampling:
    """The text the model continues before and after training."""

    prompt_ids: tuple[int, ...]
    tokens: int
    end_of_document: int
    prompt: str = field(default="", metadata=OPTIONAL)


@dataclass(frozen=True)
class PhasePlan:
    """A training phase in plan.json."""

    phase: str
    engine: Engine
    seed: int
    device: str
    model: PlannedModel
    parallel: Layout
    batch: Batch
    duration: Duration
    learning_rate: LearningRate
    optimizer: Optimizer
    precision: PlannedPrecision
    recompute: Recompute
    data: PlannedData
    evaluation: Evaluation
    checkpoint: Checkpoint
    log: Log
    limits: Limits
    sampling: Sampling
    fingerprint: str
    deepspeed: dict[str, Any] = field(default_factory=dict, metadata=OMIT_DEFAULT)
    """DeepSpeed configuration, passed on unchanged; if empty, it is derived from the other values.
    """
    tuning: Tuning = field(default=Tuning(), metadata=OMIT_DEFAULT)
    planned_replicas: int = field(default=0, metadata=NOT_IN_JSON)
    """Number of data-parallel replicas in plan.json if this attempt has fewer; 0 if it has all."""
    root: Path = field(default=Path(), metadata=NOT_IN_JSON)
    """The folder with plan.json. Relative paths in the plan start there."""

    def path(self, relative: str) -> Path:
        """Return the location a path in plan.json refers to."""
        return self.root / relative


def read_plan(plan: Path, phase: str) -> PhasePlan:
    """Read one phase from plan.json. Raise `RefusedError` with all errors in it."""
    try:
        content = json.loads(plan.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RefusedError(PlanFileMessage.PLAN_MISSING, plan=plan) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RefusedError(PlanFileMessage.PLAN_NOT_JSON, plan=plan, error=error) from None

    phases = content.get("phases") if isinstance(content, dict) else None
    if not isinstance(phases, dict) or phase not in phases:
        if isinstance(phases, dict) and phases:
            phase_names = ", ".join(sorted(phases))
        else:
            phase_names = "none"

        raise RefusedError(
            PlanFileMessage.PLAN_WITHOUT_PHASE, plan=plan, phase=phase, phase_names=phase_names
        )

    return parse(phases[phase], plan.resolve().parent)


def parse(content: Any, root: Path = Path()) -> PhasePlan:
    """Build a phase from JSON.

    Raise `RefusedError` with every unknown key, missing key and value of the wrong type.
    """
    phase = from_json(
        PhasePlan,
        content,
        name="the phase",
        failure="plan.json cannot be used for training:",
    )
    return dataclasses.replace(phase, root=root)

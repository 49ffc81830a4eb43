"""What a person chooses of a training: its length, batch, rate, number format, saving."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool

from runbook.params.kinds import (
    Attention,
    BelowOne,
    Count,
    Engine,
    Fraction,
    Framework,
    Known,
    NanPolicy,
    NonNegative,
    Positive,
    Precision,
    Recompute,
    Schedule,
    Seconds,
    Strict,
    Whole,
    WholeOrZero,
)
from runbook.params.own_shape import OwnShape


class Smoke(Strict):
    """The short run before the long one: same machine, same trainer, a model that fails cheaply."""

    model: str = ""
    """A name in params/models.yaml; empty: the documents' 12 x 512 ("375M"), or the run's own where that is smaller."""

    iterations: Whole = 12
    """Steps; the first ones warm up and are left out of the throughput."""

    global_batch: WholeOrZero = 0
    """Sequences a step; 0: two micro-batches for each data-parallel copy, or one for each stage if those are more."""

    micro_batch: Whole = 1
    """Sequences a device computes at once."""

    sequence_length: WholeOrZero = 0
    """Tokens in a sequence; 0: the model's own."""

    warmup_iterations: WholeOrZero = 3
    """Steps until the peak learning rate."""

    tensor: Whole = 1
    """Tensor-parallel size of the smoke test."""

    pipeline: Whole = 1
    """Pipeline size of the smoke test."""

    waived_by: str = ""
    """Who decided to train although the smoke test failed or was not made; the name is recorded. Empty: nobody."""


class Training(Strict):
    """What is trained for how long, in which steps."""

    engine: Engine = Engine.MEGATRON_CORE
    """megatron-core or deepspeed; both train the same model to the same losses."""

    framework: Framework = Framework.RUNBOOK
    """Our own trainer, or the document's: megatron-lm, megatron-deepspeed, nemo."""

    precision: Precision = Precision.BF16
    """fp32, fp16 or bf16."""

    iterations: Annotated[Count, Known("NUMBER_OF_ITERATIONS", "train_iters", "MAX_STEPS", "max_steps")] = 0
    """Optimizer steps; give exactly one of iterations, samples, tokens."""

    samples: Annotated[Count, Known("train_samples")] = 0
    """Sequences to train on, instead of iterations."""

    tokens: Annotated[Count, Known("TRAIN_TOKENS", "train_tokens")] = 0
    """Tokens to train on (300B), instead of iterations."""

    micro_batch: Annotated[Whole, Known("MICRO_BATCH", "micro_batch_size", "MICRO_BATCH_SIZE")] = 1
    """Sequences a device computes at once; raise it until the memory is used."""

    global_batch: Annotated[Whole, Known("GLOBAL_BATCH_SIZE", "global_batch_size", "GLOBAL_BATCH")] = 512
    """Sequences in one optimizer step; divides by micro_batch x data parallel."""

    rampup_start: Annotated[WholeOrZero, Known("rampup_batch_size")] = 0
    """Sequences in the first steps, where the batch ramps up to global_batch; 0: it does not."""

    rampup_increment: WholeOrZero = 0
    """Sequences by which the batch grows at a time; rampup_start + a multiple of it is global_batch."""

    rampup_samples: Count = 0
    """Sequences after which global_batch is reached."""

    sequence_length: Annotated[WholeOrZero, Known("SEQ_LENGTH", "SEQ_LEN", "seq_length")] = 0
    """Tokens in a sequence; 0: the model's own."""

    learning_rate: Annotated[Positive, Known("lr", "LR")] = 6.0e-4
    """Peak learning rate."""

    min_learning_rate: Annotated[NonNegative, Known("min_lr", "MIN_LR")] = 6.0e-5
    """Learning rate at the end of the decay."""

    schedule: Annotated[Schedule, Known("lr_decay_style")] = Schedule.COSINE
    """cosine, linear or constant after the warm-up."""

    warmup_iterations: Annotated[Count, Known("lr_warmup_iters")] = 0
    """Steps until the peak learning rate; give at most one of the four warm-up keys."""

    warmup_samples: Annotated[Count, Known("lr_warmup_samples")] = 0
    """Sequences until the peak, instead of warmup_iterations."""

    warmup_tokens: Annotated[Count, Known("lr_warmup_tokens")] = 0
    """Tokens until the peak, instead of warmup_iterations."""

    warmup_fraction: Annotated[Fraction, Known("lr_warmup_fraction")] = 0.0
    """Share of the decay length until the peak, instead of warmup_iterations."""

    decay_iterations: Annotated[Count, Known("lr_decay_iters")] = 0
    """Steps until the minimum; 0: the training's own length."""

    decay_samples: Annotated[Count, Known("lr_decay_samples")] = 0
    """Sequences until the minimum, instead of decay_iterations."""

    decay_tokens: Annotated[Count, Known("lr_decay_tokens")] = 0
    """Tokens until the minimum, instead of decay_iterations."""

    adam_beta1: BelowOne = 0.9
    """Adam's decay of the mean gradient."""

    adam_beta2: BelowOne = 0.95
    """Adam's decay of the mean squared gradient."""

    adam_epsilon: Positive = 1.0e-8
    """Adam's guard against division by zero."""

    weight_decay: NonNegative = 0.1
    """Pull of the weights towards zero, decoupled from the gradient."""

    clip_gradient: Annotated[NonNegative, Known("clip_grad", "gradient_clipping")] = 1.0
    """Largest norm of the whole gradient; 0: no clipping."""

    dropout: BelowOne = 0.0
    """Share of activations and attention weights zeroed; GPT-3 and the documents' Megatron default say 0.1."""

    init_std: Annotated[Positive, Known("init_method_std")] = 0.02
    """Spread of the initial weights."""

    recompute: Annotated[Recompute, Known("activation_checkpoint", "checkpoint_activations")] = Recompute.NONE
    """none, selective or full: less memory for up to a third more computing."""

    attention: Attention = Attention.AUTO
    """auto, or one kernel by name: flash1, flash2, flash-triton, plain; auto takes what the framework takes."""

    offload: Annotated[StrictBool, Known("cpu_optimizer", "OFFLOAD_DEVICE")] = False
    """Optimizer states in the node's memory, not the device's: slower, and only where nothing else fits."""

    initial_loss_scale: Positive = 65536.0
    """fp16 only: first loss scale; every overflow halves it and skips the step, so 2^32 skips the first 16 or so."""

    loss_scale_window: Whole = 1000
    """fp16 only: steps without overflow before the scale doubles."""

    loss_scale_hysteresis: Annotated[Whole, Known("hysteresis")] = 2
    """fp16 only: overflows in a row before the scale halves."""

    static_loss_scale: Annotated[NonNegative, Known("loss_scale")] = 0.0
    """fp16 only: keep this scale, whatever overflows; 0: dynamic, by the three keys above."""

    min_loss_scale: Positive = 1.0
    """fp16 only: the dynamic scale falls no lower; an overflow there is answered by nan_policy."""

    nan_policy: NanPolicy = NanPolicy.STOP
    """A loss or gradient that is no number: stop, skip the step, or rollback to the last save and pass it over."""

    nan_limit: Whole = 3
    """So many such steps in a row (or rollbacks in one job) stop the training all the same."""

    log_interval: Whole = 1
    """Steps between log lines."""

    save_interval: Annotated[WholeOrZero, Known("SAVE_INTERVAL")] = 1000
    """Steps between checkpoints; 0: only at the end."""

    keep_checkpoints: Whole = 2
    """Newest checkpoints that are kept."""

    keep_every: WholeOrZero = 0
    """Keep for ever each checkpoint at a multiple of this many steps as well; 0: only the newest."""

    async_save: StrictBool = False
    """Write checkpoints beside the training: it goes on once the state is copied. Needs that much memory again."""

    resume_changed: StrictBool = False
    """Go on from a checkpoint that was trained with other values (rate, data, seed, batch); else it is refused."""

    eval_interval: Annotated[WholeOrZero, Known("EVAL_INTERVAL")] = 1000
    """Steps between evaluations; 0: never."""

    eval_iterations: Annotated[WholeOrZero, Known("eval_iters")] = 10
    """Batches of one evaluation."""

    exit_duration: Annotated[Seconds, Known("exit_duration_in_mins", "max_time")] = 0
    """Save and stop after this time (00:55:00); 0: never."""

    exit_interval: WholeOrZero = 0
    """Save and stop whenever the step is a multiple of this; 0: never. The same command goes on."""

    process_group_timeout: Annotated[Seconds, Known("distributed_timeout_minutes")] = 600
    """A rank that waits longer for the others ends the job."""

    rehearse_stop: WholeOrZero = 0
    """Stop the job once at this step by SIGTERM and resume it, to prove that resuming works; 0: do not."""

    sample_prompt: str = ""
    """Text the model continues before and after training; empty: no sample."""

    sample_tokens: Whole = 40
    """Tokens of that continuation."""

    seed: Annotated[WholeOrZero, Field(le=2**32 - 1), Known("SEED")] = 1234
    """Seed of weights and data order, up to 4294967295: numpy takes no larger one."""

    shape: OwnShape = OwnShape()
    """Depth, width and heads other than those of the model that is named."""

    smoke: Smoke = Smoke()
    """The short run before the long one."""

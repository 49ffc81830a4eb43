"""The keys in a run file: everything that the user chooses. The plan computes the rest."""

from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool

from runbook.params.messages import ParamsMessage
from runbook.params.schema.value_types import (
    Aliases,
    Attention,
    BadRecords,
    BelowOne,
    Count,
    DatasetName,
    FixText,
    Fraction,
    Framework,
    LauncherChoice,
    LossFusion,
    Name,
    NonNegative,
    OnlyOwnTrainer,
    Positive,
    Seconds,
    SecretReference,
    Strict,
    Whole,
    WholeOrZero,
    blend_text,
    names_text,
    node_folder_text,
    tracker_names_text,
)
from runbook.plan_file.learning_rate import Schedule, WsdDecay
from runbook.plan_file.phase_names import DATA, ENVIRONMENT, FULL, PHASES, SMOKE
from runbook.plan_file.schema import (
    NEAR_FOLDER,
    Engine,
    Fp8,
    Kernels,
    Limits,
    NanPolicy,
    Optimizer,
    Precision,
    Recompute,
    RecomputeMethod,
    SpikePolicy,
    Switch,
)


class ShapeOverrides(Strict):
    """Changes to the shape of the named model; 0: no change.

    The documents' scripts have variables for these values.
    """

    layers: Annotated[WholeOrZero, Aliases("NUM_LAYERS", "num_layers", "NLAYERS", "LAYERS")] = 0
    """Transformer layers."""
    hidden: Annotated[WholeOrZero, Aliases("HIDDEN_SIZE", "hidden_size", "HIDDEN")] = 0
    """Width of the residual stream; it also sets the feed-forward block, unless ffn_hidden is
    given.
    """
    heads: Annotated[
        WholeOrZero, Aliases("NUM_ATTENTION_HEADS", "num_attention_heads", "num_attn_heads")
    ] = 0
    """Attention heads; hidden / heads is the head size."""
    kv_heads: Annotated[WholeOrZero, Aliases("num_query_groups", "num_key_value_heads")] = 0
    """Heads of keys and values."""
    ffn_hidden: Annotated[WholeOrZero, Aliases("FFN_HIDDEN_SIZE", "ffn_hidden_size")] = 0
    """Width inside the feed-forward block."""
    positions: Annotated[WholeOrZero, Aliases("max_position_embeddings")] = 0
    """Learned position embeddings."""


SHAPE_FIELDS = tuple(ShapeOverrides.model_fields)


class Smoke(Strict):
    """The short run before the long one, with the same trainer and a model that is cheap to train."""

    model: str = ""
    """A name in params/models.yaml; empty: the documents' 12 x 512 ("375M"), or the model of the
    run if that is smaller.
    """
    iterations: Whole = 12
    """Number of steps; the first few are warm-up and are left out of the throughput."""
    global_batch: WholeOrZero = 0
    """Sequences in a step; 0: two micro-batches for each data-parallel replica, or one for each
    pipeline stage if that is more.
    """
    micro_batch: Whole = 1
    """Sequences that a device processes at once."""
    sequence_length: WholeOrZero = 0
    """Tokens in a sequence; 0: the model's sequence length."""
    warmup_iterations: WholeOrZero = 3
    """Steps until the peak learning rate."""
    tensor: Whole = 1
    """Tensor-parallel size for the smoke test."""
    pipeline: Whole = 1
    """Pipeline size for the smoke test."""
    waived_by: str = ""
    """Name of the person who decided to train although the smoke test failed or was not run; it is
    recorded.

    Empty: nobody.
    """


class Training(Strict):
    """The length of training, its steps and its options."""

    engine: Engine = "megatron-core"
    """megatron-core or deepspeed; both train the same model to the same losses."""
    framework: Framework = "runbook"
    """runbook is our own trainer; megatron-lm, megatron-deepspeed and nemo are the programs from
    the documents.
    """
    precision: Precision = "bf16"
    """fp32, fp16 or bf16."""
    fp8: Annotated[Fp8, Aliases("fp8_recipe", "fp8_format")] = "none"
    """Matrix products of the layers in 8 bits, with bf16: none, or the scaling (delayed,
    tensorwise, blockwise, mxfp8). All but tensorwise need Transformer Engine.
    """
    iterations: Annotated[
        Count, Aliases("NUMBER_OF_ITERATIONS", "train_iters", "MAX_STEPS", "max_steps")
    ] = 0
    """Optimizer steps; give exactly one of iterations, samples, tokens."""
    samples: Annotated[Count, Aliases("train_samples")] = 0
    """Sequences to train on, instead of iterations."""
    tokens: Annotated[Count, Aliases("TRAIN_TOKENS", "train_tokens")] = 0
    """Tokens to train on (300B), instead of iterations."""
    micro_batch: Annotated[
        Whole, Aliases("MICRO_BATCH", "micro_batch_size", "MICRO_BATCH_SIZE")
    ] = 1
    """Sequences that a device processes at once; increase it until memory is full."""
    global_batch: Annotated[
        Whole, Aliases("GLOBAL_BATCH_SIZE", "global_batch_size", "GLOBAL_BATCH")
    ] = 512
    """Sequences in one optimizer step; a multiple of micro_batch x data-parallel replicas."""
    rampup_start: Annotated[WholeOrZero, Aliases("rampup_batch_size")] = 0
    """Sequences in the first steps of a batch that ramps up to global_batch; 0: no ramp-up."""
    rampup_increment: WholeOrZero = 0
    """Sequences added at each increase; global_batch must be rampup_start plus a multiple of this.
    """
    rampup_samples: Count = 0
    """Sequences until global_batch is reached."""
    sequence_length: Annotated[WholeOrZero, Aliases("SEQ_LENGTH", "SEQ_LEN", "seq_length")] = 0
    """Tokens in a sequence; 0: the model's sequence length."""
    learning_rate: Annotated[Positive, Aliases("lr", "LR")] = 6.0e-4
    """Peak learning rate."""
    min_learning_rate: Annotated[NonNegative, Aliases("min_lr", "MIN_LR")] = 6.0e-5
    """Learning rate at the end of the decay."""
    schedule: Annotated[Schedule, Aliases("lr_decay_style")] = "cosine"
    """After the warm-up: cosine, linear, constant, or wsd (stays at the peak and falls at the end)."""
    wsd_decay_fraction: Fraction = 0.1
    """With schedule wsd: the last share of the decay length, during which the rate falls."""
    wsd_decay_style: Annotated[WsdDecay, Aliases("lr_wsd_decay_style")] = "exponential"
    """With schedule wsd: how the rate falls (exponential, linear or cosine)."""
    warmup_iterations: Annotated[Count, Aliases("lr_warmup_iters")] = 0
    """Steps until the peak learning rate; give at most one of the four warm-up keys."""
    warmup_samples: Annotated[Count, Aliases("lr_warmup_samples")] = 0
    """Sequences until the peak, instead of warmup_iterations."""
    warmup_tokens: Annotated[Count, Aliases("lr_warmup_tokens")] = 0
    """Tokens until the peak, instead of warmup_iterations."""
    warmup_fraction: Annotated[Fraction, Aliases("lr_warmup_fraction")] = 0.0
    """Share of the decay length until the peak, instead of warmup_iterations."""
    decay_iterations: Annotated[Count, Aliases("lr_decay_iters")] = 0
    """Steps until the rate reaches its minimum; 0: all steps of the training run."""
    decay_samples: Annotated[Count, Aliases("lr_decay_samples")] = 0
    """Sequences until the minimum, instead of decay_iterations."""
    decay_tokens: Annotated[Count, Aliases("lr_decay_tokens")] = 0
    """Tokens until the minimum, instead of decay_iterations."""
    adam_beta1: BelowOne = 0.9
    """Decay rate for the mean gradient in Adam."""
    adam_beta2: BelowOne = 0.95
    """Decay rate for the mean squared gradient in Adam."""
    adam_epsilon: Positive = 1.0e-8
    """Term used in Adam to prevent division by zero."""
    weight_decay: NonNegative = 0.1
    """Weight decay, decoupled from the gradient (AdamW)."""
    clip_gradient: Annotated[NonNegative, Aliases("clip_grad", "gradient_clipping")] = 1.0
    """Clip the gradient norm, over all weights, to this value; 0: no clipping."""
    dropout: BelowOne = 0.0
    """Share of activations and attention weights set to zero.

    GPT-3 used 0.1, which is also the default in Megatron as the documents use it.
    """
    init_std: Annotated[Positive, Aliases("init_method_std")] = 0.02
    """Standard deviation used to initialize weights."""
    recompute: Annotated[Recompute, Aliases("activation_checkpoint", "checkpoint_activations")] = (
        "none"
    )
    """Recompute activations in the backward pass: none, selective or full.

    This saves memory for up to a third more compute.
    """
    recompute_method: RecomputeMethod = "uniform"
    """With recompute full: uniform keeps the input of each group of layers; block recomputes only
    the first layers of a stage.
    """
    recompute_num_layers: Annotated[
        Whole, Aliases("checkpoint_num_layers", "activations_checkpoint_num_layers")
    ] = 1
    """With recompute full: layers in a group (uniform), or layers to recompute (block)."""
    overlap_gradients: Annotated[StrictBool, Aliases("overlap_grad_reduce", "overlap_comm")] = False
    """Reduce gradients over the data-parallel replicas while earlier layers are still in their
    backward pass.
    """
    overlap_weights: Annotated[
        StrictBool, Aliases("overlap_param_gather", "overlap_param_sync")
    ] = False
    """Gather updated weights while the next forward pass begins; needs overlap_gradients and
    parallel.zero_stage 1.
    """
    overlap_pipeline: Annotated[
        Switch, Aliases("overlap_p2p_comm", "overlap_p2p_communication")
    ] = "auto"
    """Send and compute at the same time between interleaved pipeline stages: always, never, or auto
    (the framework's default).
    """
    fuse_gradients: Annotated[Switch, Aliases("gradient_accumulation_fusion")] = "auto"
    """Accumulate gradients inside the matrix products: always (our own trainer needs Transformer
    Engine and Apex), never, or auto (the framework's default).
    """
    reduce_in_bf16: Annotated[StrictBool, Aliases("grad_reduce_in_bf16")] = False
    """Megatron-LM only: sum and reduce gradients in bf16 instead of fp32.

    bf16 halves the memory and traffic of gradients, at lower precision.
    """
    loss_fusion: Annotated[LossFusion, Aliases("cross_entropy_fusion_impl")] = "auto"
    """Megatron-LM only: fused kernels for the loss: native, te (from Transformer Engine, which
    writes the gradient over the logits), or auto (none).
    """
    kernels: Kernels = "auto"
    """Kernels that our own trainer uses on a GPU: compiled (its Triton kernels), plain (from
    megatron-core), or auto (compiled if they can run).
    """
    overlap_tensor: Annotated[StrictBool, Aliases("tp_comm_overlap", "ub_tp_comm_overlap")] = False
    """Overlap tensor-parallel communication with matrix products, by Transformer Engine; needs
    parallel.sequence.
    """
    cuda_graphs: Annotated[StrictBool, Aliases("enable_cuda_graph")] = False
    """Launch the kernels in a layer as one CUDA graph; needs Transformer Engine, and is not
    possible with recompute full.
    """
    gc_interval: Annotated[WholeOrZero, Aliases("manual_gc_interval", "manual_gc")] = 0
    """Steps between garbage collections in Python, on all ranks at the same time; 0: each rank
    collects whenever Python decides.
    """
    broadcast_batches: StrictBool = False
    """The first rank of each tensor-parallel group reads the batches and sends them to the others."""
    attention: Attention = "auto"
    """Attention kernel: flash1, flash2, flash-triton, plain, or auto (the framework's default)."""
    offload: Annotated[StrictBool, Aliases("cpu_optimizer", "OFFLOAD_DEVICE")] = False
    """Keep optimizer states in node memory instead of device memory.

    Slow; use it only if nothing else fits.
    """
    initial_loss_scale: Positive = 65536.0
    """fp16 only: initial loss scale.

    Every overflow halves it and skips the step, so 2^32 skips about the first 16 steps.
    """
    loss_scale_window: Whole = 1000
    """fp16 only: steps without overflow before the scale doubles."""
    loss_scale_hysteresis: Annotated[Whole, Aliases("hysteresis")] = 2
    """fp16 only: overflows in a row before the scale halves."""
    static_loss_scale: Annotated[NonNegative, Aliases("loss_scale")] = 0.0
    """fp16 only: constant loss scale, even after an overflow; 0: dynamic, set by the three keys
    above."""
    min_loss_scale: Positive = 1.0
    """fp16 only: lower limit of the dynamic scale; nan_policy handles an overflow at the limit."""
    nan_policy: Annotated[NanPolicy, OnlyOwnTrainer()] = "stop"
    """On a NaN or infinite loss or gradient: stop, skip the step, or rollback to the last save and
    then skip it.
    """
    nan_limit: Annotated[Whole, OnlyOwnTrainer()] = 3
    """This many bad steps in a row (or rollbacks in one job) stop the training run under any
    policy.
    """
    spike_policy: Annotated[SpikePolicy, OnlyOwnTrainer()] = "note"
    """On a finite loss that jumps: note it, skip each such batch, or rollback to the last save if
    the jump lasts.
    """
    replay_interval: Annotated[WholeOrZero, OnlyOwnTrainer()] = 0
    """Steps between two checks of the hardware, in which the first micro-batch is computed twice
    and all numbers are compared (own trainer); 0: never.
    """
    alarms_after: Annotated[WholeOrZero, OnlyOwnTrainer()] = 0
    """How many iterations at the start raise no alarms about loss and gradient norm, such as a
    noisy warm-up; a NaN or a loss of 0 is always reported. spike_policy does not act in these
    iterations either.
    """
    alarm_webhook: Annotated[SecretReference, OnlyOwnTrainer()] = ""
    """Where to post alarms as JSON: env:NAME or file:PATH that holds the address; empty: nowhere.
    """
    alarm_command: Annotated[str, OnlyOwnTrainer()] = ""
    """A command that gets each alarm on standard input (mail -s alarm ada@example.org).

    The command starts only if you allowed it (docs/security.md).
    """
    trackers: Annotated[str, AfterValidator(tracker_names_text), OnlyOwnTrainer()] = ""
    """Trackers that receive the numbers while 04-training runs: wandb, mlflow, trackio,
    separated by commas (docs/trackers.md).
    """
    tracker_project: Annotated[str, OnlyOwnTrainer()] = ""
    """Project (MLflow: experiment) at the trackers; empty: their own environment variable, else
    gpt3-runbook.
    """
    log_interval: Whole = 1
    """Steps between log lines."""
    save_interval: Annotated[WholeOrZero, Aliases("SAVE_INTERVAL")] = 1000
    """Steps between checkpoints; 0: only at the end (with a framework from the documents: none at
    all).
    """
    keep_checkpoints: Whole = 2
    """How many of the newest checkpoints to keep. Megatron-LM and Megatron-DeepSpeed delete none.
    """
    keep_every: Annotated[WholeOrZero, OnlyOwnTrainer()] = 0
    """Also keep every checkpoint at a multiple of this many steps; 0: only the newest."""
    async_save: Annotated[StrictBool, OnlyOwnTrainer()] = False
    """Write checkpoints in the background: training continues once the state is copied, which
    needs memory for the copy.
    """
    near_interval: Annotated[WholeOrZero, OnlyOwnTrainer()] = 0
    """Steps between copies of the state to the memory on each node and on a partner node (own
    trainer, docs/unattended.md); 0: none.
    """
    near_folder: Annotated[str, OnlyOwnTrainer()] = NEAR_FOLDER
    """Folder in node memory for these copies; $NAME is an environment variable on the node."""
    resume_changed: Annotated[StrictBool, OnlyOwnTrainer()] = False
    """Continue from a checkpoint trained with other values (rate, data, seed, batch);
    by default, such a checkpoint is refused.
    """
    eval_interval: Annotated[WholeOrZero, Aliases("EVAL_INTERVAL")] = 1000
    """Steps between evaluations; 0: never."""
    eval_iterations: Annotated[WholeOrZero, Aliases("eval_iters")] = 10
    """Batches in one evaluation."""
    exit_duration: Annotated[Seconds, Aliases("exit_duration_in_mins", "max_time")] = 0
    """Save and stop after this time (00:55:00); 0: never."""
    exit_interval: WholeOrZero = 0
    """Save and stop whenever the step is a multiple of this; 0: never.

    The same command continues.
    """
    process_group_timeout: Annotated[Seconds, Aliases("distributed_timeout_minutes")] = 600
    """Timeout of a collective: a rank that waits longer for the others ends the job."""
    rehearse_stop: WholeOrZero = 0
    """Stop the job once at this step by SIGTERM and resume it, to prove that resuming works; 0: no
    planned stop.
    """
    rehearsal_waived_by: str = ""
    """Name of the person who decided to submit on a cluster although the rehearsal did not fit
    or was not run; it is recorded. Empty: nobody.
    """
    sample_prompt: str = ""
    """Text that the model continues before and after training; empty: no sample."""
    sample_tokens: Whole = 40
    """Tokens in that continuation."""
    seed: Annotated[WholeOrZero, Field(le=2**32 - 1), Aliases("SEED")] = 1234
    """Seed for weights and data order, at most 4294967295 (the limit in numpy)."""
    shape: ShapeOverrides = ShapeOverrides()
    """Depth, width and heads, if they differ from the named model."""
    smoke: Smoke = Smoke()
    """The short run before the long one: the same trainer, and a model that fails cheaply."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer values, in the form that the plan uses."""
        return Optimizer(
            beta1=self.adam_beta1,
            beta2=self.adam_beta2,
            epsilon=self.adam_epsilon,
            weight_decay=self.weight_decay,
            clip_gradient=self.clip_gradient,
        )

    @property
    def limits(self) -> Limits:
        """The limits on waiting and working, and the reactions to bad steps, as in the plan."""
        return Limits(
            exit_duration_seconds=self.exit_duration,
            process_group_timeout_seconds=self.process_group_timeout,
            exit_interval=self.exit_interval,
            nan_policy=self.nan_policy,
            nan_limit=self.nan_limit,
            spike_policy=self.spike_policy,
            replay_interval=self.replay_interval,
        )


OPTIMIZER_KEYS = (
    "training.weight_decay",
    "training.clip_gradient",
    "training.adam_beta1",
    "training.adam_beta2",
    "training.adam_epsilon",
)
"""The keys that make up `Training.optimizer`.

A framework that has no option for a key refuses its value.
"""


class Data(Strict):
    """The text to train on, and how it becomes tokens."""

    dataset: Annotated[DatasetName, Aliases("DATASET_FOLDER_NAME")] = "corpus"
    """A name in params/datasets.yaml."""
    blend: Annotated[str, AfterValidator(blend_text)] = ""
    """Several datasets with weights (corpus 0.7, articles 0.3), including data.dataset; empty:
    data.dataset alone.
    """
    folder: Annotated[str, Aliases("DATA_PATH", "BASE_DATA_PATH", "DATA_DIR")] = ""
    """Folder with the text.

    Missing files from the dataset source are downloaded to it; other text in it is used unchanged.
    For token files, the prefix of one pair is also possible (/data/my_text_document). Empty: the
    site's folder for data, or the folder of the dataset.
    """
    bucket: Annotated[str, Aliases("S3_BUCKET", "BUCKET")] = ""
    """Bucket and prefix (s3://name/folder) that finished token files are copied from, if the site
    copies them.
    """
    text_key: str = "text"
    """Key with the text in each JSON record, or column in a Parquet file."""
    keep_sources: Annotated[str, AfterValidator(names_text), Aliases("approved_sources")] = ""
    """Use only documents from these sources (RedPajamaC4, RedPajamaArXiv), as each record names
    them; empty: all.
    """
    drop_sources: Annotated[str, AfterValidator(names_text)] = ""
    """Leave out documents from these sources (RedPajamaBook); empty: none."""
    source_key: str = "auto"
    """Key in which a record names its source (meta.redpajama_set_name); auto: a known key that the
    first record has.
    """
    fix_text: Annotated[FixText, Aliases("apply_ftfy")] = "none"
    """none, or ftfy, which first repairs wrongly decoded characters as the data preparation in NeMo
    does (pip install 'gpt3-runbook[ftfy]').
    """
    append_eod: StrictBool = True
    """Add the end-of-document token after each document. Without it, documents run into each other.
    """
    tokenizer: str = "gpt2"
    """`gpt2` (shipped), or a path to a Hugging Face tokenizer.json or SentencePiece model; a
    relative path begins at the project folder.
    """
    special_tokens: StrictBool = False
    """Encode a literal <|endoftext|> inside a text as the special token (as Megatron with
    Hugging Face does), not as plain text.
    """
    split: Annotated[str, Field(pattern=r"^\d+(\.\d+)?,\d+(\.\d+)?,\d+(\.\d+)?$")] = "949,50,1"
    """Shares of train, validation and test inside every file; used if held_out is 0."""
    held_out: Annotated[WholeOrZero, Aliases("CHUNKS")] = 0
    """Number of files to hold out for validation, and again for test; the text must have more than
    twice as many files. 0: use split.
    """
    max_record_bytes: Whole = 268_435_456
    """Longest record in bytes; a longer record counts as unreadable (bad_records) and takes no
    memory.
    """
    bad_records: BadRecords = "stop"
    """On an unreadable record: stop, skip (and count), or quarantine (and keep it in a file)."""
    workers: WholeOrZero = 0
    """Tokenizing processes per node; 0: one per core."""


class Parallel(Strict):
    """How the model is partitioned over the devices; the remaining factor is data parallel."""

    tensor: Annotated[
        Whole,
        Aliases(
            "TENSOR_MODEL_PARALLEL_SIZE",
            "tensor_model_parallel_size",
            "mp_size",
            "MPSIZE",
            "MP_SIZE",
            "TP",
            "tp",
        ),
    ] = 1
    """Tensor-parallel size: devices that share every matrix of a layer; keep them inside one node."""
    pipeline: Annotated[
        Whole,
        Aliases(
            "PIPELINE_MODEL_PARALLEL_SIZE",
            "pipeline_model_parallel_size",
            "pp_size",
            "PPSIZE",
            "PP_SIZE",
            "PP",
            "pp",
        ),
    ] = 1
    """Number of pipeline stages; it must divide the number of layers."""
    first_stage_layers: Annotated[WholeOrZero, Aliases("decoder_first_pipeline_num_layers")] = 0
    """Layers in the first stage, which also has the embedding; 0: the same number as other
    stages."""
    last_stage_layers: Annotated[WholeOrZero, Aliases("decoder_last_pipeline_num_layers")] = 0
    """Layers in the last stage, which also has the output layer; 0: the same number as other
    stages."""
    virtual_pipeline: Annotated[Whole, Aliases("virtual_pipeline_model_parallel_size", "VPP")] = 1
    """Chunks of layers in each stage; more than 1 interleaves them, which shortens the bubble."""
    sequence: Annotated[StrictBool, Aliases("sequence_parallel", "USE_SEQUENCE_PARALLEL")] = False
    """Sequence parallelism: divide the work that tensor parallelism does not divide along the
    sequence.

    This saves activation memory if tensor > 1.
    """
    context: Annotated[Whole, Aliases("SPSIZE", "context_parallel_size")] = 1
    """Context-parallel size: devices that share one sequence (DeepSpeed: Ulysses)."""
    zero_stage: Annotated[int, Field(ge=0, le=3), Aliases("ZERO_STAGE", "zero_stage")] = 1
    """What is partitioned over data-parallel replicas: 0 nothing, 1 optimizer states (distributed
    optimizer), 2 also gradients, 3 also weights.
    """


class Job(Strict):
    """Resources that one phase requests from the scheduler; empty or 0: the site's value."""

    nodes: Annotated[Whole, Aliases("NNODES", "num_node", "NODES", "num_nodes")] = 1
    """Number of nodes; in jobs.data each node tokenizes its share."""
    devices_per_node: Annotated[
        WholeOrZero, Aliases("num_gpus_pernode", "N_GPUS", "gpus_per_node", "gpus-per-node")
    ] = 0
    """GPUs (GCDs on MI250X; processes on a CPU site) to use on each node; 0: all."""
    tasks_per_node: Annotated[
        WholeOrZero, Aliases("TASKS_PER_NODE", "ntasks_per_node", "ntasks-per-node")
    ] = 0
    """Tasks that the scheduler starts on each node; 0: the number that the site's launcher
    needs, and one for jobs.data.
    """
    cpus_per_task: Annotated[WholeOrZero, Aliases("cpus-per-task")] = 0
    """Cores for each task; 0: the site's value."""
    memory: str = ""
    """Memory per node as the scheduler writes it (480G; 0 is all); empty: the site's value."""
    walltime: Annotated[Seconds, Aliases("time")] = 0
    """Time limit (01:00:00); 0: the site's value."""
    partition: Annotated[str, Aliases("PARTITION", "queue")] = ""
    """Slurm partition or PBS queue."""
    account: Annotated[str, Aliases("project")] = ""
    """Account or project that is charged."""
    qos: str = ""
    """Slurm quality of service."""
    reservation: str = ""
    """Name of a reservation."""
    array: WholeOrZero = 0
    """Elements of an array job; 0: a single job.

    In jobs.data, array x nodes x tasks_per_node tasks share the text.
    """
    restarts: WholeOrZero = 3
    """Jobs in a row that may end without a new step before a person must intervene; a new step
    resets the count.
    """
    chain: Whole = 1
    """Number of jobs to queue at once. Each begins when the previous one ends, so that nobody has to
    resubmit; 1: no chain.
    """
    spares: WholeOrZero = 0
    """Additional nodes to request: after a failure a spare replaces a bad node, and training
    continues in the same job.
    """
    min_nodes: WholeOrZero = 0
    """Smallest number of nodes to continue on if too few healthy nodes are left (with fewer
    data-parallel replicas and the same global batch); 0: never continue.
    """


class Jobs(Strict):
    """Values for the jobs of every phase, and one section for each phase that submits a job."""

    account: Annotated[str, Aliases("PROJECT", "project_id")] = ""
    """Account or project charged for every phase without its own account."""
    price_per_device_hour: NonNegative = 0.0
    """Price of one device per hour; 0: the site's price, or no cost is shown."""
    stage: Annotated[
        str,
        Aliases(
            "STAGE_PATH",
            "FSX_MOUNT",
            "SHARED_FS",
            "WORKSPACE",
            "home_dir",
        ),
    ] = ""
    """Folder on the shared file system for images, checkouts, data and checkpoints; site files
    write {stage} for it.
    """
    image: Annotated[
        str,
        Aliases("IMAGE", "CONTAINER_IMAGE", "SIF", "SQUASHED_PYTORCH_IMAGE"),
    ] = ""
    """Container image (file or registry reference) to use instead of the site's."""
    storage: Annotated[str, Aliases("AMLFS_SKU")] = ""
    """Tier of shared storage on the site (AMLFS 250), if it is sold in tiers; empty: the site's
    first.
    """
    image_copy: Annotated[str, Aliases("NVME_PATH")] = ""
    """Folder on the node disks (/mnt/nvme) that the image file is copied to before training; empty:
    no copy.
    """
    environment_copy: Annotated[str, AfterValidator(node_folder_text)] = ""
    """Folder on the node disks (/tmp, $TMPDIR) that the Python environment for 03 and 04 is
    unpacked to before the first rank starts (docs/local-environment.md); empty: no copy.
    """
    environment_keep: StrictBool = False
    """Leave that copy on the nodes at the end of a job, for the next job."""
    launcher: LauncherChoice = "site"
    """Program that starts the processes: torchrun, srun, mpiexec, deepspeed (one node), or site
    (the site's value).
    """
    switch: Annotated[str, Aliases("USE_SHARP")] = ""
    """Groups in the site environment to switch on or off, such as "+sharp -debug"."""
    environment: Job = Job()
    """01-environment: images, environments, checks."""
    data: Job = Job()
    """02-data: download and tokenize."""
    smoke: Job = Job()
    """03-smoke-test."""
    training: Job = Job()
    """04-training."""


class Run(Strict):
    """A run file: the values that a person chose."""

    run: Annotated[Name, Aliases("JOB_NAME")]
    """Run name: the name of the run file without .yaml. The run folder is runs/<run>."""
    site: Name = "local"
    """A name in params/sites."""
    model: Annotated[Name, Aliases("MODEL_SIZE_KEY", "MODEL_SIZE", "model_size")]
    """A name in params/models.yaml."""
    data: Data = Data()
    """The text to train on, and how it becomes tokens."""
    parallel: Parallel = Parallel()
    """How the model is partitioned over the devices; the remaining factor is data parallel."""
    training: Training = Training()
    """The length of training, its steps and its options."""
    jobs: Jobs = Jobs()
    """Resources that each phase requests from the scheduler."""


JOB_SECTIONS = {
    ENVIRONMENT: "environment",
    DATA: "data",
    SMOKE: "smoke",
    FULL: "training",
}
"""For each phase, its key under `jobs`."""


def phase_name(word: str) -> str:
    """Return the phase that `03-smoke-test`, `smoke-test`, `smoke`, `3` or `03` refers to.

    Raise `ValueError` that lists the valid names.

    >>> phase_name("smoke"), phase_name("3"), phase_name("training")
    ('03-smoke-test', '03-smoke-test', '04-training')
    """
    plain_word = str(word).strip().lower()
    for phase in PHASES:
        number, _, title = phase.partition("-")
        if plain_word in (phase, title, title.partition("-")[0], number, str(int(number))):
            return phase

    raise ValueError(ParamsMessage.NOT_A_PHASE.fill(word=word, phases=", ".join(PHASES)))

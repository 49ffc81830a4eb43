"""The one list of keys a person chooses from; everything else is computed by the plan."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool

from runbook.params.blend import blend_text
from runbook.params.kinds import (
    Attention,
    BadRecords,
    Count,
    Engine,
    Fraction,
    Framework,
    Known,
    Name,
    NonNegative,
    Positive,
    Precision,
    Recompute,
    Schedule,
    Seconds,
    StartedBy,
    Strict,
    Whole,
    WholeOrZero,
    is_name,
)
from runbook.params.training_keys import Smoke, Training

__all__ = [
    "JOB_SECTIONS",
    "PHASES",
    "Attention",
    "BadRecords",
    "Count",
    "Data",
    "Engine",
    "Fraction",
    "Framework",
    "Job",
    "Jobs",
    "Known",
    "Name",
    "NonNegative",
    "Parallel",
    "Positive",
    "Precision",
    "Recompute",
    "Run",
    "Schedule",
    "Seconds",
    "Smoke",
    "StartedBy",
    "Strict",
    "Training",
    "Whole",
    "WholeOrZero",
    "is_name",
    "phase_name",
]


class Data(Strict):
    """Which text is trained on, and how it becomes tokens."""

    dataset: Annotated[Name, Known("DATASET_FOLDER_NAME")] = "corpus"
    """A name in params/datasets.yaml."""

    blend: Annotated[str, AfterValidator(blend_text)] = ""
    """Several datasets with weights (corpus 0.7, articles 0.3), data.dataset among them; empty: data.dataset alone."""

    folder: Annotated[str, Known("DATA_PATH", "BASE_DATA_PATH", "DATA_DIR")] = ""
    """Where the text lies or is downloaded to; empty: what the dataset or the site says."""

    bucket: Annotated[str, Known("S3_BUCKET", "BUCKET")] = ""
    """Bucket and prefix (s3://name/folder) the ready token files are copied from, where the site copies them."""

    text_key: str = "text"
    """Key of the text in each JSON record."""

    append_eod: StrictBool = True
    """Put the end-of-document token after each document; without it documents run together."""

    tokenizer: str = "gpt2"
    """`gpt2` (shipped), or a path to a Hugging Face tokenizer.json or SentencePiece model."""

    special_tokens: StrictBool = False
    """Read a literal <|endoftext|> inside a text as the token (as Megatron with Hugging Face does), not as letters."""

    split: Annotated[str, Field(pattern=r"^\d+(\.\d+)?,\d+(\.\d+)?,\d+(\.\d+)?$")] = "949,50,1"
    """Shares of train, validation and test inside every file; used where held_out is 0."""

    held_out: Annotated[WholeOrZero, Known("CHUNKS")] = 0
    """Files kept for validation, and again as many for test; more than twice as many are needed. 0: use split."""

    bad_records: BadRecords = BadRecords.STOP
    """A record that cannot be read: stop, skip and count, or set aside in a quarantine file."""

    workers: WholeOrZero = 0
    """Tokenizing processes on a node; 0: one for each core."""


class Parallel(Strict):
    """How the model is cut over the devices; what is left over is data parallel."""

    tensor: Annotated[
        Whole,
        Known("TENSOR_MODEL_PARALLEL_SIZE", "tensor_model_parallel_size", "mp_size", "MPSIZE", "MP_SIZE", "TP", "tp"),
    ] = 1
    """Devices that share every matrix of a layer; keep them inside one node."""

    pipeline: Annotated[
        Whole,
        Known(
            "PIPELINE_MODEL_PARALLEL_SIZE", "pipeline_model_parallel_size", "pp_size", "PPSIZE", "PP_SIZE", "PP", "pp"
        ),
    ] = 1
    """Stages the layers are cut into; layers must divide by it."""

    virtual_pipeline: Annotated[Whole, Known("virtual_pipeline_model_parallel_size", "VPP")] = 1
    """Chunks of layers each stage holds; more than 1 interleaves them and shortens the bubble."""

    sequence: Annotated[StrictBool, Known("sequence_parallel", "USE_SEQUENCE_PARALLEL")] = False
    """Cut what tensor parallelism leaves whole along the sequence; saves activations where tensor > 1."""

    context: Annotated[Whole, Known("SPSIZE", "context_parallel_size")] = 1
    """Devices that share one sequence (context parallel, DeepSpeed-Ulysses)."""

    zero_stage: Annotated[int, Field(ge=0, le=3), Known("ZERO_STAGE", "zero_stage")] = 1
    """What data-parallel copies share: 1 optimizer states (distributed optimizer), 2 gradients too, 3 weights too."""


class Job(Strict):
    """What one phase asks of the scheduler; empty or 0 means what the site says."""

    nodes: Annotated[Whole, Known("NNODES", "num_node", "NODES", "num_nodes")] = 1
    """Machines."""

    devices_per_node: Annotated[WholeOrZero, Known("num_gpus_pernode", "N_GPUS", "gpus_per_node", "gpus-per-node")] = 0
    """GPUs (or GCDs; on a site without, processes) used on each node; 0: all the site has."""

    tasks_per_node: Annotated[WholeOrZero, Known("TASKS_PER_NODE", "ntasks_per_node", "ntasks-per-node")] = 0
    """Tasks the scheduler starts on each node; 0: what the site's launcher needs."""

    cpus_per_task: Annotated[WholeOrZero, Known("cpus-per-task")] = 0
    """Cores of each task; 0: what the site says."""

    memory: str = ""
    """Memory of a node as the scheduler writes it (480G; 0 is all); empty: what the site says."""

    walltime: Annotated[Seconds, Known("time")] = 0
    """Time limit (01:00:00); 0: what the site says."""

    partition: Annotated[str, Known("PARTITION", "queue")] = ""
    """Slurm partition or PBS queue."""

    account: Annotated[str, Known("project")] = ""
    """Account or project that pays."""

    qos: str = ""
    """Slurm quality of service."""

    reservation: str = ""
    """Name of a reservation."""

    array: WholeOrZero = 0
    """Elements of an array job; 0: a single job."""

    restarts: WholeOrZero = 3
    """Jobs in a row that may end without a new step before a person is asked; one that makes a step starts anew."""


class Jobs(Strict):
    """What holds for the jobs of every phase, and one entry for each phase that submits a job."""

    account: Annotated[str, Known("PROJECT", "project_id")] = ""
    """Account or project that pays for every phase that names none of its own."""

    price_per_device_hour: NonNegative = 0.0
    """What an hour of one device costs you; 0: what the site says, or no cost is shown."""

    stage: Annotated[str, Known("STAGE_PATH", "FSX_MOUNT", "SHARED_FS", "WORKSPACE", "home_dir")] = ""
    """Folder on the shared file system for images, checkouts, data and checkpoints; sites write it {stage}."""

    image: Annotated[str, Known("IMAGE", "CONTAINER_IMAGE", "SIF", "SQUASHED_PYTORCH_IMAGE", "SQUASHED_NEMO_IMAGE")] = (
        ""
    )
    """Container image (file or registry reference) used instead of the site's."""

    storage: Annotated[str, Known("AMLFS_SKU")] = ""
    """Tier of the site's shared storage (AMLFS 250), where it is sold in tiers; empty: the site's first."""

    image_copy: Annotated[str, Known("NVME_PATH")] = ""
    """Folder on each node's own disk (/mnt/nvme) that the image file is copied to before the training; empty: none."""

    launcher: StartedBy = StartedBy.SITE
    """torchrun, srun, mpiexec or deepspeed (one node) start the processes; site: what the site says."""

    switch: Annotated[str, Known("USE_SHARP")] = ""
    """Groups of the site's environment to switch on or off, such as "+sharp -debug"."""

    environment: Job = Job()
    """01-environment: images, environments, checks."""

    data: Job = Job()
    """02-data: download and tokenize."""

    smoke: Job = Job()
    """03-smoke-test."""

    training: Job = Job()
    """04-training."""


class Run(Strict):
    """A run file: what a person chose."""

    run: Annotated[Name, Known("JOB_NAME")]
    """Name of the run: the run file's own stem; its folder is runs/<run>."""

    site: Name = "local"
    """A name in params/sites."""

    model: Annotated[Name, Known("MODEL_SIZE_KEY", "MODEL_SIZE", "model_size")]
    """A name in params/models.yaml."""

    data: Data = Data()
    """Which text, and how it becomes tokens."""

    parallel: Parallel = Parallel()
    """How the model is cut over the devices."""

    training: Training = Training()
    """What is trained for how long, in which steps."""

    jobs: Jobs = Jobs()
    """What each phase asks of the scheduler."""


PHASES = ("00-plan", "01-environment", "02-data", "03-smoke-test", "04-training", "05-analysis")
"""The phases in order, each called by its notebook's stem."""

JOB_SECTIONS = {"01-environment": "environment", "02-data": "data", "03-smoke-test": "smoke", "04-training": "training"}
"""Phase to its key under jobs."""


def phase_name(word: str) -> str:
    """The phase meant by `03-smoke-test`, `smoke-test`, `smoke`, `3` or `03`; `ValueError` names the right ones.

    >>> phase_name("smoke"), phase_name("3"), phase_name("training")
    ('03-smoke-test', '03-smoke-test', '04-training')
    """
    wanted = str(word).strip().lower()
    for phase in PHASES:
        number, _, rest = phase.partition("-")
        if wanted in (phase, rest, rest.partition("-")[0], number, str(int(number))):
            return phase
    raise ValueError(f"{word!r} is not a phase; the phases are {', '.join(PHASES)}")

"""What the catalogues say: a machine (params/sites), a model (models.yaml), a dataset (datasets.yaml)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from runbook.params.recipe import Recipe
from runbook.params.schema import Framework, Name, NonNegative, Positive, Strict, Whole, WholeOrZero
from runbook.params.volumes import Timing, Volume
from runbook.units import parse_bytes

Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0)]


class SchedulerKind(StrEnum):
    """Which adapter submits the jobs."""

    LOCAL = "local"
    SLURM = "slurm"
    PBS = "pbs"


class Launcher(StrEnum):
    """What starts one process for each device."""

    TORCHRUN = "torchrun"
    SRUN = "srun"
    MPIEXEC = "mpiexec"
    DEEPSPEED = "deepspeed"


class Fact(Strict):
    """Where a value comes from."""

    source: str
    """Page, file or measurement."""

    date: str = ""
    """When it was read or measured, YYYY-MM-DD."""


class Hardware(Strict):
    """The machine's own figures; a figure that is not known is left out and never guessed."""

    device: str
    """Name of the accelerator as in the table of peaks (H100-SXM, A100-40GB, MI250X-GCD); `cpu` on a site without."""

    devices_per_node: Whole
    """GPUs (GCDs on MI250X) of a node; on a site without, processes to start."""

    device_memory: Bytes = 0
    """Memory of one device; 0: not known (on a CPU: the node's memory is shared)."""

    peak_tflops: dict[str, Positive] = {}
    """Datasheet peak of one device by precision (fp32, fp16, bf16), in TFLOP/s."""

    nodes: WholeOrZero = 0
    """Nodes there are; 0: not known."""

    cores_per_node: WholeOrZero = 0
    """Cores a job may use on a node; 0: not known."""

    node_memory: Bytes = 0
    """Main memory of a node; 0: not known."""

    interconnect: str = ""
    """Network between nodes."""

    network: NonNegative = 0.0
    """What the adapters of a node carry together, in GB/s and one direction; 0: not known."""


class ContainerKind(StrEnum):
    """What runs a job's programs inside an image."""

    NONE = "none"
    PYXIS = "pyxis"
    SINGULARITY = "singularity"


class Container(Strict):
    """The image a job's programs run in, and what is visible inside."""

    kind: ContainerKind = ContainerKind.NONE
    """none, pyxis (srun with enroot) or singularity."""

    image: str = ""
    """File or registry reference; may hold {stage}. `jobs.image` wins over it."""

    variable: str = ""
    """Environment variable that a module sets to the image, where no image is named."""

    mounts: list[str] = []
    """Folders visible inside, each `path` or `path:path inside`; the run's folder always is. May hold {stage}."""

    home: bool = False
    """The home folder is visible inside."""

    options: list[str] = []
    """Further options of the program that starts the container."""

    recipe: Recipe | None = None
    """How the image is built, where it is not taken from a registry as it is."""


class Checkout(Strict):
    """A framework of one of the documents, at a pinned commit."""

    repository: str
    """Where it is cloned from."""

    commit: str
    """The commit whose options are rendered; tests/upstream holds that commit's options."""

    folder: str
    """Where the clone lies; may hold {stage}."""

    script: str = "pretrain_gpt.py"
    """The training script inside the folder."""

    options: dict[str, str | int | float | bool] = {}
    """The document's further options, by name without dashes; true: an option without a value, false: left out."""

    deepspeed: dict[str, Any] = {}
    """The document's further entries of the DeepSpeed file."""


class Preparation(Strict):
    """One thing to set up on a machine before the first job, skipped where it is there."""

    title: str
    """What it is."""

    creates: str
    """The file or folder that is there afterwards; may hold {stage} and {image}."""

    commands: list[str]
    """What makes it; {stage} and {image} become one word each, {recipe} is the folder of the Dockerfile."""

    secret: str = ""
    """Reference (env:NAME or file:PATH) to a password that the commands know as "$secret"; it is written nowhere."""


class Binding(Strict):
    """Which cores and which device a rank of a node uses."""

    cpu_masks: list[str] = []
    """Mask of cores by local rank, hexadecimal."""

    cpu_lists: list[str] = []
    """Cores by local rank, such as 24-31; instead of masks."""

    device_variable: str = ""
    """Variable that lists the devices in the ranks' order (CUDA_VISIBLE_DEVICES); empty: their own order."""

    device_order: list[int] = []
    """Device of each local rank, where it is not the same number; all of them stay visible to all ranks."""


class Rendezvous(Strict):
    """Where the ranks meet: the first host of the scheduler's own list, at a port made from the job's number."""

    port_base: Whole = 49152
    """Lowest port; 49152 begins the range that no service is registered in."""

    port_span: Whole = 16384
    """The port is port_base + job number modulo this, so that two jobs on a node do not meet."""


class QueueLimit(Strict):
    """What a partition or queue accepts."""

    max_nodes: WholeOrZero = 0
    """0: no limit known."""

    min_nodes: WholeOrZero = 0
    """0: no limit known."""

    max_walltime: str = ""
    """Longest job, as 48:00:00; empty: no limit known."""


class Site(Strict):
    """A machine: everything that is true of it whatever is trained there."""

    site: Name
    """Name of the site: the file's own stem."""

    title: str
    """One line for people."""

    scheduler: SchedulerKind
    """local, slurm or pbs."""

    launcher: Launcher = Launcher.TORCHRUN
    """What starts the processes of a job."""

    hardware: Hardware
    """Devices, memory, cores."""

    frameworks: dict[Framework, Checkout] = {}
    """The documents' frameworks that lie on this machine; a run that asks for another uses our own trainer."""

    rehearses: bool = False
    """A run file of another site is cut down to what is here, each change told; values given by hand are not."""

    container: Container = Container()
    """The image a job's programs run in."""

    binding: Binding = Binding()
    """Cores and devices of each rank."""

    rendezvous: Rendezvous = Rendezvous()
    """Where the ranks meet."""

    preparation: list[Preparation] = []
    """What is set up by hand, or by 01-environment, on the login node: images, environments."""

    fleet: dict[str, str] = {}
    """Commands that start, stop and ask after the machines of a rented cluster; they know "$cluster" and "$region"."""

    required: dict[str, str] = {}
    """Run-file keys that must be given here, each with what it is: accounts, folders and buckets have no default."""

    python: str = ""
    """Interpreter that has the trainer; empty: python3, or on a local site the one that runs runbook."""

    paths: dict[str, str] = {}
    """Places of data, checkpoints, tensorboard, tokenizer outside the run's folder; may hold {stage}."""

    queues: dict[str, QueueLimit] = {}
    """Limits of partitions or queues by name."""

    directives: dict[str, str] = {}
    """Further directives of every job, by name without dashes (Slurm: exclusive, mem; PBS: place, filesystems)."""

    devices_directive: str = "gpus-per-node"
    """How devices are asked for: gpus-per-node, gres (Slurm); empty: not at all."""

    step_options: list[str] = []
    """Further options of srun or mpiexec."""

    environment: dict[str, dict[str, str | None]] = {}
    """Groups of environment variables; null unsets a variable. Values may hold {user}, {job} and {stage}."""

    switched_off: list[str] = []
    """Groups of the environment that are used only where jobs.switch turns them on."""

    volumes: dict[str, Volume] = {}
    """Shared file systems, whose sizes are held against what the plan puts there."""

    deployment: dict[str, str] = {}
    """Variables that the site's machines are deployed with (GPU_SKU ...); those of a tier are added."""

    timings: list[Timing] = []
    """What the site's document measured: second numbers beside the plan's."""

    advised_batch: WholeOrZero = 0
    """Sequences of the global batch for each device, as the site's document advises; 0: it does not."""

    write_bandwidth: dict[str, Positive] = {}
    """What each tier of storage for checkpoints takes in from all nodes together, in GB/s (1 GB = 10^9 bytes)."""

    modules: list[str] = []
    """Environment modules a job loads."""

    setup: list[str] = []
    """Commands at the start of each job, such as activating an environment."""

    node_setup: list[str] = []
    """Commands run once on each node before the training, such as emptying a cache."""

    price_per_device_hour: NonNegative | None = None
    """What an hour of one device costs; left out: no cost is shown."""

    currency: str = ""
    """Of the price."""

    defaults: dict[str, Any] = {}
    """Run-file keys this site sets (jobs, training, ...); the run file wins over them."""

    facts: dict[str, Fact] = {}
    """Where each value comes from, by its dotted key."""


class Model(Strict):
    """The shape of a GPT."""

    label: str
    """What people call it ("375M"); the computed count is shown beside it."""

    parameters: WholeOrZero = 0
    """The computed count, its vocabulary padded for one tensor rank; 0: not written down."""

    layers: Whole
    """Transformer layers."""

    hidden: Whole
    """Width of the residual stream."""

    heads: Whole
    """Attention heads; hidden / heads is the head size."""

    kv_heads: WholeOrZero = 0
    """Heads of keys and values (grouped-query attention); 0: as many as heads."""

    ffn_hidden: WholeOrZero = 0
    """Width inside the feed-forward block; 0: 4 x hidden."""

    sequence_length: Whole = 2048
    """Tokens in a sequence."""

    positions: WholeOrZero = 0
    """Learned position embeddings; 0: as many as the sequence is long. The documents fix 2048."""

    vocabulary: Whole = 50257
    """Tokens of the tokenizer; padded to a multiple of 128 (x tensor for the documents' own frameworks)."""

    tied_embeddings: bool = True
    """The output layer uses the input embedding's weights."""

    position_embedding: str = "learned"
    """learned or rope."""

    normalization: str = "layernorm"
    """layernorm or rmsnorm."""

    activation: str = "gelu"
    """gelu or swiglu."""

    biases: bool = True
    """Linear layers have biases."""

    source: str
    """Where the shape comes from."""

    note: str = ""
    """What a reader should know, such as a label that does not fit the count."""

    training: dict[str, Any] = {}
    """The source's own batch, learning rate and init std for this size (shown as advice, never applied)."""

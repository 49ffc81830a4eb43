"""The keys of a site file (params/sites): hardware, queues, containers, storage, environment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from runbook.params.messages import ParamsMessage
from runbook.params.schema.value_types import (
    BrokenRuleError,
    Bytes,
    Framework,
    Name,
    NonNegative,
    Positive,
    Strict,
    WholeOrZero,
)

AUTO = "auto"
"""The device of a site that computes on whatever GPUs this machine has."""


class ImageRecipe(Strict):
    """What a Dockerfile is written from; an empty version leaves its layer out."""

    base: str
    """Base image; `docker build --build-arg BASE=...` uses another."""
    tag: str
    """Name of the built image, before it becomes a file."""
    pip: list[str] = []
    """Python packages, each with its version."""
    efa_installer: str = ""
    """Version of AWS's EFA installer, whose libfabric replaces the base's; the base must be an
    Ubuntu.
    """
    aws_ofi_nccl: str = ""
    """Version of the NCCL plugin for libfabric, built against it."""
    mpi: str = ""
    """Folder of the base's MPI, which the plugin's configure needs; empty: where compilers look by
    default.
    """
    libraries: list[str] = []
    """Folders that the dynamic linker searches in addition to its own."""
    environment: dict[str, str] = {}
    """Variables of the image."""


class Tier(Strict):
    """One kind of a file system that is sold by speed.

    `write_bandwidth` of the site has its speed by the same name.
    """

    size: Bytes
    """Size for which the site states the speed of this tier."""
    sku: str
    """Its name in the deployment."""
    stated_minutes: NonNegative = 0.0
    """Minutes that a 175B checkpoint takes according to the site's document; 0: not stated."""


class Volume(Strict):
    """A shared file system."""

    title: str
    """What it is."""
    path: str
    """Where it is mounted; may contain {stage}."""
    size: Bytes = 0
    """Its size; 0: the tier's, or not known."""
    holds: list[str] = []
    """What the run stores there: home, images, data, checkpoints."""
    tiers: dict[str, Tier] = {}
    """Speeds and sizes it is sold in; `jobs.storage` selects one, the default is the first."""
    deployment: dict[str, Any] = {}
    """Its entry in the cluster's configuration, verbatim."""


class Timing(Strict):
    """How long something took for the document's authors."""

    what: str
    """What was done."""
    seconds: NonNegative
    """How long it took."""
    bytes: Bytes = 0
    """How much was moved; 0: not stated."""
    like: str = ""
    """Part of a run to compare with it: data (the token files); empty: none."""
    machine: str = ""
    """Machine it was measured on."""


class Fact(Strict):
    """Where a value comes from."""

    source: str
    """Page, file or measurement."""
    date: str = ""
    """When it was read or measured, YYYY-MM-DD."""


class Hardware(Strict):
    """Figures of the machine. Leave out a figure that is not known; it is never guessed."""

    device: str
    """Device to compute on: the accelerator's name as in the table of peaks (H100-SXM, A100-40GB,
    MI250X-GCD); `cpu`: the CPU, with every GPU hidden from the trainer; `auto`: the GPUs that
    nvidia-smi or rocm-smi lists on this machine.
    """
    devices_per_node: WholeOrZero
    """GPUs (GCDs on MI250X) of a node, each with a process of its own; on a CPU, processes to
    start. With device auto: use at most this many of those listed, 0 for all.
    """
    device_memory: Bytes = 0
    """Memory of one device; 0: not known (on a CPU: the node's memory is shared)."""
    peak_tflops: dict[str, Positive] = {}
    """Datasheet peak of one device by precision (fp32, fp16, bf16), in TFLOP/s."""
    nodes: WholeOrZero = 0
    """Number of nodes; 0: not known."""
    cores_per_node: WholeOrZero = 0
    """Cores a job may use on a node; 0: not known."""
    node_memory: Bytes = 0
    """Main memory of a node; 0: not known."""
    interconnect: str = ""
    """Network between nodes."""
    fabric: Literal["", "cxi", "efa", "verbs"] = ""
    """libfabric's provider for that network: cxi (Slingshot), efa (AWS), verbs (InfiniBand); empty:
    not known.
    """
    network: NonNegative = 0.0
    """Bandwidth of all adapters of a node together, in GB/s in one direction; 0: not known."""

    @model_validator(mode="after")
    def _check_devices(self) -> Hardware:
        if self.devices_per_node == 0 and self.device != AUTO:
            raise BrokenRuleError(ParamsMessage.NO_DEVICES_PER_NODE, auto=AUTO)

        return self


class Container(Strict):
    """The image a job's programs run in, and what is visible inside."""

    kind: Literal["none", "pyxis", "singularity"] = "none"
    """none, pyxis (srun with enroot) or singularity."""
    image: str = ""
    """File or registry reference; may contain {stage}. `jobs.image` overrides it."""
    variable: str = ""
    """Environment variable that a module sets to the image; used if no image is named."""
    mounts: list[str] = []
    """Folders visible inside, each `path` or `path:path inside`; the run's folder always is. May
    contain {stage}.
    """
    home: bool = False
    """The home folder is visible inside."""
    options: list[str] = []
    """Further options of the program that starts the container."""
    recipe: ImageRecipe | None = None
    """How to build the image, if it does not come from a registry."""


class Versions(Strict):
    """What a framework's program runs with on the site.

    `runbook rehearse --upstream` installs the same here.
    """

    python: Annotated[str, Field(pattern=r"^3\.\d+$")]
    """Version of Python, such as 3.10."""
    packages: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+==[A-Za-z0-9_.]+$")]]
    """Packages from PyPI, each `name==version`: torch first, then what the program imports."""


class Checkout(Strict):
    """A framework of one of the documents, at a pinned commit."""

    repository: str
    """Where it is cloned from."""
    commit: str
    """The commit whose options are rendered; tests/upstream holds that commit's options."""
    folder: str
    """Folder of the clone; may contain {stage}."""
    script: str = "pretrain_gpt.py"
    """The training script inside the folder."""
    options: dict[str, str | int | float | bool] = {}
    """The document's further options, by name without dashes; true: an option without a value,
    false: left out.
    """
    deepspeed: dict[str, Any] = {}
    """The document's further entries of the DeepSpeed file."""
    versions: Versions | None = None
    """Versions that the program runs with; left out: a rehearsal uses what is installed."""


class Preparation(Strict):
    """One thing to set up on a machine before the first job, skipped if it exists."""

    title: str
    """What it is."""
    creates: str
    """The file or folder that exists afterwards; may contain {stage} and {image}."""
    commands: list[str]
    """What makes it; {stage}, {image} and {tag} become one word each, {modules} the site's modules.

    {recipe} is the folder of the Dockerfile.
    """
    secret: str = ""
    """Reference (env:NAME or file:PATH) to a password that the commands get as "$secret"; it is
    never written.
    """


class Fleet(Strict):
    """Commands for a rented cluster's machines, given where it is managed from.

    They know "$cluster" and "$region".
    """

    start: str
    """Command that requests the machines."""
    stop: str
    """Command that gives them back."""
    status: str
    """Command that prints their state."""
    running: str
    """What `status` prints when they are up."""
    stopped: str
    """What `status` prints when they are gone."""
    minutes: Positive = 30
    """Longest time to start or stop, in minutes."""


class Binding(Strict):
    """Which cores a rank of a node uses."""

    cpu_masks: list[str] = []
    """Core masks by local rank, hexadecimal."""
    cpu_lists: list[str] = []
    """Cores by local rank, such as 24-31; instead of masks."""


class QueueLimit(Strict):
    """What a partition or queue accepts."""

    max_nodes: WholeOrZero = 0
    """Most nodes of a job; 0: no limit known."""
    min_nodes: WholeOrZero = 0
    """Fewest nodes of a job; 0: no limit known."""
    max_walltime: str = ""
    """Longest job, as 48:00:00; empty: no limit known."""


class Site(Strict):
    """A machine: everything that is true of it whatever is trained there."""

    site: Name
    """Name of the site: the file's name without .yaml."""
    title: str
    """One line for people."""
    scheduler: Literal["local", "slurm", "pbs"]
    """local, slurm or pbs."""
    launcher: Literal["torchrun", "srun", "mpiexec", "deepspeed"] = "torchrun"
    """What starts one process for each device."""
    hardware: Hardware
    """Devices, memory, cores."""
    frameworks: dict[Framework, Checkout] = {}
    """The documents' frameworks installed on this machine; a run that asks for another uses our own
    trainer.
    """
    rehearses: bool = False
    """Whether a run file for another site is made small enough to fit here, with each change
    reported; values given on the command line stay.
    """
    container: Container = Container()
    """The image a job's programs run in."""
    binding: Binding = Binding()
    """Cores of each rank."""
    preparation: list[Preparation] = []
    """What is set up on the login node, by hand or by 01-environment: images, environments."""
    fleet: Fleet | None = None
    """Machines of a rented cluster, which cost money while they are up."""
    required: dict[str, str] = {}
    """Run-file keys that a run on this site must set, each with a description: accounts, folders
    and buckets have no default.
    """
    python: str = ""
    """Python interpreter with the trainer; empty: python3, or on a local site the one that runs
    runbook.
    """
    paths: dict[str, str] = {}
    """Folders of data, checkpoints, tensorboard and tokenizer outside the run's folder; may contain
    {stage}.
    """
    queues: dict[str, QueueLimit] = {}
    """Limits of each partition or queue, by name."""
    directives: dict[str, str] = {}
    """Further directives of every job, by name without dashes (Slurm: exclusive; PBS: place,
    filesystems; k, W, P).

    A name of one letter is a letter of qsub; any other on PBS is a resource, asked for by -l.
    """
    devices_directive: str = "gpus-per-node"
    """How to ask for devices: gpus-per-node, gres (Slurm), ngpus (PBS); empty: do not ask."""
    cores_directive: str = "ncpus"
    """How to ask PBS for a node's cores in `select`; empty: do not ask, for queues that give whole
    nodes.
    """
    step_options: list[str] = []
    """Further options of srun or mpiexec."""
    environment: dict[str, dict[str, str | None]] = {}
    """Groups of environment variables; null unsets a variable. Values may contain {user}, {job} and
    {stage}.
    """
    switched_off: list[str] = []
    """Groups of the environment that are used only if jobs.switch turns them on."""
    volumes: dict[str, Volume] = {}
    """Shared file systems; the plan compares their sizes with what it stores there."""
    deployment: dict[str, str] = {}
    """Variables with which the site's machines are deployed (GPU_SKU ...); those of a tier are
    added.
    """
    timings: list[Timing] = []
    """Times that the site's document reports; compared with the plan's."""
    advised_batch: WholeOrZero = 0
    """Sequences of the global batch per device that the site's document advises; 0: none."""
    write_bandwidth: dict[str, Positive] = {}
    """Write bandwidth of each storage tier for checkpoints, all nodes together, in GB/s (1 GB =
    10^9 bytes).
    """
    modules: list[str] = []
    """Environment modules a job loads."""
    setup: list[str] = []
    """Commands at the start of each job, such as activating an environment."""
    node_setup: list[str] = []
    """Commands run once on each node before the training, such as emptying a cache."""
    price_per_device_hour: NonNegative | None = None
    """Price of one device for an hour; left out: no cost is shown."""
    currency: str = ""
    """Currency of the price."""
    defaults: dict[str, Any] = {}
    """Run-file keys that this site sets (jobs, training, ...); the run file overrides them."""
    facts: dict[str, Fact] = {}
    """Where each value comes from, by its dotted key."""

    @model_validator(mode="after")
    def _check_auto(self) -> Site:
        if self.hardware.device == AUTO and self.scheduler != "local":
            raise BrokenRuleError(
                ParamsMessage.AUTO_ASKS_THIS_MACHINE, auto=AUTO, scheduler=self.scheduler
            )

        return self

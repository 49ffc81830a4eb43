"""The keys in a site file (params/sites): hardware, queues, containers, storage, environment."""

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
"""Device name for a site that uses the GPUs found on this machine."""


class ImageRecipe(Strict):
    """What a Dockerfile contains. The layer for an empty version is left out."""

    base: str
    """Base image; `docker build --build-arg BASE=...` uses another one."""
    tag: str
    """Tag given to the built image, before it is converted to a file."""
    pip: list[str] = []
    """Python packages, each with its version."""
    efa_installer: str = ""
    """Version of the EFA installer from AWS, whose libfabric replaces the one in the base; the base
    must be an Ubuntu.
    """
    aws_ofi_nccl: str = ""
    """Version of the NCCL plugin for libfabric, which is built against that libfabric."""
    mpi: str = ""
    """Folder with MPI in the base image, needed by the configure script in the plugin; empty: where
    compilers look by default.
    """
    libraries: list[str] = []
    """Folders that the dynamic linker searches in addition to its own."""
    environment: dict[str, str] = {}
    """Environment variables set in the image."""


class Tier(Strict):
    """One speed class of a file system that is sold by speed.

    The speed is the entry with the same name in `write_bandwidth` for the site.
    """

    size: Bytes
    """Size at which the tier has the speed that the site states."""
    sku: str
    """What the deployment calls the tier."""
    stated_minutes: NonNegative = 0.0
    """Minutes that a 175B checkpoint takes according to the document for the site; 0: not stated.
    """


class Volume(Strict):
    """A shared file system."""

    title: str
    """File system name to show."""
    path: str
    """Mount point; may contain {stage}."""
    size: Bytes = 0
    """Size; 0: as for the tier, or not known."""
    holds: list[str] = []
    """What the run stores there: home, images, data, checkpoints."""
    tiers: dict[str, Tier] = {}
    """The tiers in which it is sold; `jobs.storage` selects one, and the first is the default."""
    deployment: dict[str, Any] = {}
    """Entry for the file system in the cluster configuration, verbatim."""


class Timing(Strict):
    """A duration reported by the authors of the document."""

    what: str
    """What the work was."""
    seconds: NonNegative
    """Duration in seconds."""
    bytes: Bytes = 0
    """Bytes that were moved; 0: not stated."""
    like: str = ""
    """Which part of a run to compare the duration with: data (the token files); empty: none."""
    machine: str = ""
    """Machine on which it was measured."""


class Fact(Strict):
    """Where a value comes from."""

    source: str
    """Page, file or measurement."""
    date: str = ""
    """Date on which it was read or measured, YYYY-MM-DD."""


class Hardware(Strict):
    """What the machine has. Leave out values that are not known; they are never guessed."""

    device: str
    """Device to compute on: the accelerator name as in the table of peaks (H100-SXM, A100-40GB,
    MI250X-GCD); `cpu`: the CPU, with every GPU hidden from the trainer; `auto`: the GPUs that
    nvidia-smi or rocm-smi lists on this machine.
    """
    devices_per_node: WholeOrZero
    """GPUs (GCDs on MI250X) per node, each with its own process; on a CPU, processes to start.
    With device auto: use at most this many of the listed GPUs, 0 for all.
    """
    device_memory: Bytes = 0
    """Memory on one device; 0: not known (on a CPU: the node memory is shared)."""
    peak_tflops: dict[str, Positive] = {}
    """Datasheet peak of one device by precision (fp32, fp16, bf16), in TFLOP/s."""
    nodes: WholeOrZero = 0
    """Number of nodes; 0: not known."""
    cores_per_node: WholeOrZero = 0
    """Cores that a job may use on a node; 0: not known."""
    node_memory: Bytes = 0
    """Main memory on a node; 0: not known."""
    interconnect: str = ""
    """Network between nodes."""
    fabric: Literal["", "cxi", "efa", "verbs"] = ""
    """libfabric provider of that network: cxi (Slingshot), efa (AWS), verbs (InfiniBand); empty:
    not known.
    """
    network: NonNegative = 0.0
    """Total bandwidth over the network adapters in a node in one direction, in GB/s; 0: not known.
    """

    @model_validator(mode="after")
    def _check_devices(self) -> Hardware:
        if self.devices_per_node == 0 and self.device != AUTO:
            raise BrokenRuleError(ParamsMessage.NO_DEVICES_PER_NODE, auto=AUTO)

        return self


class Container(Strict):
    """The container image that programs in a job run in, and the folders visible inside it."""

    kind: Literal["none", "pyxis", "singularity"] = "none"
    """none, pyxis (srun with enroot) or singularity."""
    image: str = ""
    """File or registry reference; may contain {stage}. `jobs.image` overrides it."""
    variable: str = ""
    """Environment variable that a module sets to the image; used if no image is named."""
    mounts: list[str] = []
    """Folders visible inside, each `path` or `path:path inside`; the run folder is always
    visible. May contain {stage}.
    """
    home: bool = False
    """Whether the home folder is visible inside."""
    options: list[str] = []
    """Further options for the program that starts the container."""
    recipe: ImageRecipe | None = None
    """How to build the image, if it does not come from a registry."""


class Versions(Strict):
    """Versions that the program for a framework runs with on the site.

    `runbook rehearse --upstream` installs the same versions on this machine.
    """

    python: Annotated[str, Field(pattern=r"^3\.\d+$")]
    """Python version, such as 3.10."""
    packages: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+==[A-Za-z0-9_.]+$")]]
    """Packages from PyPI, each `name==version`: torch first, then what the program imports."""


class Checkout(Strict):
    """A framework used in one of the documents, at a pinned commit."""

    repository: str
    """Repository to clone."""
    commit: str
    """The commit whose options are rendered; tests/upstream has the options of that commit."""
    folder: str
    """Folder with the clone; may contain {stage}."""
    script: str = "pretrain_gpt.py"
    """The training script inside the folder."""
    options: dict[str, str | int | float | bool] = {}
    """Further options from the document, by name without dashes; true: an option without a value;
    false: the option is left out.
    """
    deepspeed: dict[str, Any] = {}
    """Further entries for the DeepSpeed file, from the document."""
    versions: Versions | None = None
    """Versions that the program needs; left out: a rehearsal uses the installed versions."""


class Preparation(Strict):
    """A step to set up a machine before the first job. The step is skipped if its result exists."""

    title: str
    """Name for the step."""
    creates: str
    """The file or folder that exists afterwards; may contain {stage} and {image}."""
    commands: list[str]
    """Commands for the step; {stage}, {image} and {tag} become one word each, and {modules} the
    site's modules.

    {recipe} is the folder with the Dockerfile.
    """
    secret: str = ""
    """Reference (env:NAME or file:PATH) to a password that the commands receive as "$secret"; it
    is never written.
    """


class Fleet(Strict):
    """Commands used to manage the machines in a rented cluster, run where the cluster is managed.

    The variables "$cluster" and "$region" are set.
    """

    start: str
    """Command that requests the machines."""
    stop: str
    """Command that releases the machines."""
    status: str
    """Command used to print the state of the machines."""
    running: str
    """What `status` prints if the machines are running."""
    stopped: str
    """What `status` prints if the machines are released."""
    minutes: Positive = 30
    """Longest time to start or stop, in minutes."""


class Binding(Strict):
    """The cores that each rank on a node uses."""

    cpu_masks: list[str] = []
    """Core masks by local rank, in hexadecimal."""
    cpu_lists: list[str] = []
    """Cores by local rank, such as 24-31; instead of masks."""


class QueueLimit(Strict):
    """Limits on jobs in a partition or queue."""

    max_nodes: WholeOrZero = 0
    """Largest number of nodes in a job; 0: no limit known."""
    min_nodes: WholeOrZero = 0
    """Smallest number of nodes in a job; 0: no limit known."""
    max_walltime: str = ""
    """Longest walltime for a job, such as 48:00:00; empty: no limit known."""


class Site(Strict):
    """A machine, with every property that does not depend on the run."""

    site: Name
    """Site name: the file name without .yaml."""
    title: str
    """Site title, in one line."""
    scheduler: Literal["local", "slurm", "pbs"]
    """Scheduler: local, slurm or pbs."""
    launcher: Literal["torchrun", "srun", "mpiexec", "deepspeed"] = "torchrun"
    """Program that starts one process for each device."""
    hardware: Hardware
    """Devices, memory, cores."""
    frameworks: dict[Framework, Checkout] = {}
    """The documents' frameworks installed on this machine; a run with another framework
    uses our own trainer.
    """
    rehearses: bool = False
    """Whether run files for other sites are scaled down to this one. Each change is reported;
    values given on the command line are kept.
    """
    container: Container = Container()
    """The container image that programs in a job run in."""
    binding: Binding = Binding()
    """The cores for each rank."""
    preparation: list[Preparation] = []
    """Steps to set up the login node, by hand or in 01-environment: images, environments."""
    fleet: Fleet | None = None
    """Machines in a rented cluster, which cost money while they are running."""
    required: dict[str, str] = {}
    """Run-file keys that a run on this site must set, each with a description: accounts, folders
    and buckets have no default.
    """
    python: str = ""
    """Python interpreter with the trainer; empty: python3, or on a local site the interpreter that
    runs runbook.
    """
    paths: dict[str, str] = {}
    """Folders for data, checkpoints, tensorboard and tokenizer outside the run folder; may contain
    {stage}.
    """
    queues: dict[str, QueueLimit] = {}
    """Limits on each partition or queue, by name."""
    directives: dict[str, str] = {}
    """Further directives for every job, by name without dashes (Slurm: exclusive; PBS: place,
    filesystems; k, W, P).

    On PBS, a one-letter name is an option to qsub; any other name is a resource, requested with
    -l.
    """
    devices_directive: str = "gpus-per-node"
    """How to request devices: gpus-per-node, gres (Slurm), ngpus (PBS); empty: do not request
    them."""
    cores_directive: str = "ncpus"
    """How to request cores on a node from PBS in `select`; empty: do not request them, for queues
    that allocate whole nodes.
    """
    step_options: list[str] = []
    """Further options for srun or mpiexec."""
    environment: dict[str, dict[str, str | None]] = {}
    """Groups of environment variables; null unsets a variable. Values may contain {user}, {job} and
    {stage}.
    """
    switched_off: list[str] = []
    """Groups in the environment that are used only if jobs.switch turns them on."""
    volumes: dict[str, Volume] = {}
    """Shared file systems; the plan compares their sizes with what it stores there."""
    deployment: dict[str, str] = {}
    """Variables used to deploy machines for the site (GPU_SKU ...); those for a tier are added.
    """
    timings: list[Timing] = []
    """Durations reported in the document for the site; they are compared with the plan."""
    advised_batch: WholeOrZero = 0
    """Sequences in the global batch per device, as advised by the document for the site; 0: no
    advice.
    """
    write_bandwidth: dict[str, Positive] = {}
    """Write bandwidth for checkpoints to each storage tier, all nodes together, in GB/s (1 GB =
    10^9 bytes).
    """
    modules: list[str] = []
    """Environment modules that a job loads."""
    setup: list[str] = []
    """Commands to run at the start of each job, such as activating an environment."""
    node_setup: list[str] = []
    """Commands run once on each node before the training, such as emptying a cache."""
    price_per_device_hour: NonNegative | None = None
    """Price of one device per hour; if left out, no cost is shown."""
    currency: str = ""
    """Currency for the price."""
    defaults: dict[str, Any] = {}
    """Run-file keys that this site sets (jobs, training, ...); the run file overrides them."""
    facts: dict[str, Fact] = {}
    """Where each value comes from, by dotted key."""

    @model_validator(mode="after")
    def _check_auto(self) -> Site:
        if self.hardware.device == AUTO and self.scheduler != "local":
            raise BrokenRuleError(
                ParamsMessage.AUTO_ASKS_THIS_MACHINE, auto=AUTO, scheduler=self.scheduler
            )

        return self

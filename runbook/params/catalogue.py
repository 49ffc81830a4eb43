"""What the catalogues say: a machine (params/sites), a model (models.yaml), a dataset (datasets.yaml)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from runbook.params.schema import Name, NonNegative, Positive, Strict, Whole, WholeOrZero
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

    cores_per_node: WholeOrZero = 0
    """Cores a job may use on a node; 0: not known."""

    node_memory: Bytes = 0
    """Main memory of a node; 0: not known."""

    interconnect: str = ""
    """Network between nodes."""


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

    paths: dict[str, str] = {}
    """Where data, checkpoints and logs go when not in the run's folder."""

    queues: dict[str, QueueLimit] = {}
    """Limits of partitions or queues by name."""

    environment: dict[str, dict[str, str | None]] = {}
    """Groups of environment variables; a value of null unsets the variable."""

    modules: list[str] = []
    """Environment modules a job loads."""

    setup: list[str] = []
    """Commands at the start of each job, such as activating an environment."""

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
    """Tokens of the tokenizer; padded to a multiple of 128 x tensor."""

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


class SourceFile(Strict):
    """One file of a dataset."""

    path: str
    """Relative to the dataset's folder."""

    bytes: Bytes = 0
    """Its size; 0: not known."""

    sha256: str = ""
    """Its checksum; empty: not known."""


class Dataset(Strict):
    """A source of text."""

    title: str
    """One line for people."""

    kind: str
    """corpus (shipped), local (files of yours), mock (no text at all); more with the data phase."""

    folder: str = ""
    """Where the files lie; relative to the project, or inside the package for kind corpus."""

    pattern: str = "*"
    """Which files of the folder."""

    files: list[SourceFile] = []
    """The files by name, where they are known."""

    licence: str
    """Under which terms."""

    source: str
    """Where it comes from."""

    documents: WholeOrZero = 0
    """Number of documents; 0: not known."""

    text_bytes: Bytes = 0
    """Bytes of text; 0: not known."""

    tokens: WholeOrZero = 0
    """GPT-2 tokens without end-of-document tokens; 0: not known."""

"""`runbook init --site`: writes a site file and a first run file for your cluster.

Each value in these files has its source next to it.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runbook import params
from runbook.core.checks import counted
from runbook.core.errors import ParamsError
from runbook.core.files import write_text
from runbook.core.units import show_clock
from runbook.jobs.job_request import NodeKind, QueueLimits
from runbook.params.catalogues import read_models, read_site
from runbook.params.problems import FILL_IN, marks_in
from runbook.params.schema.value_types import is_name
from runbook.params.yaml12 import write_scalar
from runbook.planning.cost import accelerators
from runbook.planning.cost.accelerators import find_accelerator, named_memory
from runbook.planning.cost.step_inputs import peak_of
from runbook.tools.site_setup.cluster_facts import Cluster, ask_cluster
from runbook.tools.site_setup.messages import SiteSetupMessage

LAUNCHERS = {
    "slurm": f"torchrun  # {SiteSetupMessage.TORCHRUN.fill()}",
    "pbs": f"mpiexec  # {SiteSetupMessage.MPIEXEC.fill()}",
}


CPU = "cpu"
"""Device of a site whose nodes compute without GPUs."""


@dataclass(frozen=True)
class ClusterWish:
    """What a person chose for their cluster.

    Values from the scheduler replace empty choices and zeros.
    """

    name: str
    scheduler: str = ""
    device: str = ""
    devices_per_node: int = 0
    cores_per_node: int = 0

    @property
    def computes_on_cpu(self) -> bool:
        """Return whether the person chose the nodes' CPUs, not GPUs."""
        return self.device.lower() == CPU


@dataclass(frozen=True)
class ClusterFiles:
    """The two written files, and the values that must still be filled in."""

    site: Path
    run: Path
    written: tuple[Path, ...]
    marked: int
    source: str
    """The programs that answered, or empty if none did."""
    silence: str = ""
    """Programs that did not answer, with their error messages."""


def check_cluster_wish(cluster_wish: ClusterWish) -> None:
    """Raise an error for an invalid name, an unknown device, or a device with ambiguous memory."""
    if not is_name(cluster_wish.name):
        raise ParamsError(SiteSetupMessage.NOT_A_SITE_NAME, cluster_wish_name=cluster_wish.name)

    if not cluster_wish.device or cluster_wish.computes_on_cpu:
        return
    if find_accelerator(cluster_wish.device) is None:
        near = ", ".join(accelerators.nearest_accelerators(cluster_wish.device))
        raise ParamsError(SiteSetupMessage.NO_SUCH_DEVICE, device=cluster_wish.device, near=near)

    if not named_memory(cluster_wish.device):
        choices = " or ".join(_device_choices(cluster_wish.device))
        raise ParamsError(
            SiteSetupMessage.DEVICE_MEMORY_OPEN, device=cluster_wish.device, choices=choices
        )


def write_site(project: Path, cluster_wish: ClusterWish) -> ClusterFiles:
    """Write params/sites/NAME.yaml and params/NAME.yaml. An existing file is not changed."""
    site = project / "params" / "sites" / f"{cluster_wish.name}.yaml"
    run = project / "params" / f"{cluster_wish.name}.yaml"
    written = [path for path in (site, run) if not path.exists()]
    cluster = Cluster("") if site.exists() else ask_cluster()
    if site in written:
        write_text(
            site, site_text(cluster_wish, cluster, time.strftime("%Y-%m-%d"), sys.executable)
        )

    marked = len(marks_in(site.read_text(encoding="utf-8"), site.name))
    if run in written:
        write_text(run, run_text(cluster_wish.name, project, is_whole=not marked))
    if not marked:
        params.load(str(run), project=project)
    return ClusterFiles(
        site,
        run,
        tuple(written),
        marked,
        cluster.source,
        cluster.silence,
    )


def site_text(
    cluster_wish: ClusterWish,
    cluster: Cluster,
    date: str,
    python: str,
) -> str:
    """Return the text for the site file.

    Values that neither the person nor the scheduler supplied are marked.
    """
    scheduler = cluster_wish.scheduler or cluster.scheduler
    is_pbs = scheduler == "pbs"
    kind, count = _node_kind(cluster_wish, cluster)
    device, device_source = _device(cluster_wish, kind, cluster)
    return f"""\
# {cluster_wish.name}: your cluster, written by runbook init on {date}. Each value says where it came from;
# {FILL_IN} marks a value that is unknown here. docs/your-own-cluster.md explains the rest.
site: {cluster_wish.name}
title: {write_scalar(_title(cluster_wish.name, device, scheduler))}
{_scheduler_line(cluster_wish, cluster)}
launcher: {LAUNCHERS.get(scheduler, LAUNCHERS["slurm"])}
python: {write_scalar(python)}  # the one that ran runbook init; {_must_see(device)}

hardware:
  device: {device}  # {device_source}
{_hardware_text(cluster_wish, cluster, kind, count, device)}

{_queue_text(cluster)}
{_default_text(cluster, kind)}
{_directives_text(device, is_pbs=is_pbs)}
environment:
  megatron:
    CUDA_DEVICE_MAX_CONNECTIONS: "1"  # Megatron overlaps tensor-parallel communication only with this

# If needed:
# modules: [cuda/12.6]                       # environment modules that each job loads
# setup: [source /path/to/venv/bin/activate]  # commands at the start of each job
# container: {{kind: pyxis, image: /path/to/image.sqsh}}  # or singularity; azure.yaml and lumi.yaml use them
# required: {{jobs.account: the account that pays}}  # render and run refuse until the run file sets it
# price_per_device_hour: 2.00                # shows what a plan costs, with currency: EUR
{_facts_text(cluster, date)}"""


def _must_see(device: str) -> str:
    """Return what the nodes must see with the Python of a site."""
    return "nodes must see it" if device == CPU else "nodes must see it, and its torch the GPUs"


def _directives_text(device: str, *, is_pbs: bool) -> str:
    """Return the directives of a site. PBS needs none where no GPU is requested."""
    if not is_pbs:
        return SLURM_DIRECTIVES
    return "" if device == CPU else PBS_DIRECTIVES


def _title(name: str, device: str, scheduler: str) -> str:
    """Return a title for a site: its name, its GPUs and its queue."""
    devices = {FILL_IN: "GPUs", CPU: "CPUs"}.get(device, device)
    queue = {"slurm": "Slurm", "pbs": "PBS"}.get(scheduler, "a queue")
    return ", ".join((name, devices, queue))


def _scheduler_line(cluster_wish: ClusterWish, cluster: Cluster) -> str:
    scheduler = cluster_wish.scheduler or cluster.scheduler
    program = "qsub" if scheduler == "pbs" else "sbatch"
    source = SiteSetupMessage.PROGRAM_ON_PATH.fill(program=program)
    unknown = SiteSetupMessage.NO_SCHEDULER_ON_PATH.fill()
    return _sourced(
        "scheduler",
        cluster_wish.scheduler,
        cluster.scheduler,
        source,
        unknown,
    )


def _facts_text(cluster: Cluster, date: str) -> str:
    """Return a section that states which programs answered and when, or an empty string."""
    if not cluster.source:
        return ""
    fact = f'{{source: "{cluster.source}, asked by runbook init", date: "{date}"}}'
    return f"\nfacts:\n  hardware: {fact}\n  queues: {fact}\n"


def _hardware_text(
    cluster_wish: ClusterWish,
    cluster: Cluster,
    kind: NodeKind,
    count: int,
    device: str,
) -> str:
    lines = _hardware_lines(
        cluster_wish,
        cluster,
        kind,
        count,
        device,
    )
    return "\n".join(f"  {line}" for line in lines)


PBS_DIRECTIVES = f"devices_directive: ngpus  # {SiteSetupMessage.NGPUS.fill()}\n"
SLURM_DIRECTIVES = """\
directives:
  mem: "0"  # all of a node's memory; without it, many clusters give a job only a small part
# devices_directive: gres  # if the cluster accepts --gres=gpu:4 but not --gpus-per-node=4
"""


def _sourced(
    key: str,
    chosen: object,
    reported: object,
    source: str,
    unknown: str,
) -> str:
    """Return a line for the site file, with a note on where the value comes from.

    The value is what the person chose, or else what the scheduler answered, or else a placeholder.
    """
    if chosen:
        option = key.replace("_", "-")
        return f"{key}: {chosen}  # {SiteSetupMessage.GIVEN_BY_OPTION.fill(option=option)}"
    if reported:
        return f"{key}: {reported}  # {source}"
    return f"{key}: {FILL_IN}  # {unknown}"


def _node_kind(cluster_wish: ClusterWish, cluster: Cluster) -> tuple[NodeKind, int]:
    """Return the node type for the site, and how many such nodes there are.

    Choose the kind with the requested device, or else the kind with the most GPUs in total. For
    CPUs, choose the most frequent kind without GPUs.
    """
    if cluster_wish.computes_on_cpu:
        return max(cluster.kinds, key=_without_devices_and_nodes, default=(NodeKind(), 0))
    wish_device = find_accelerator(cluster_wish.device)
    for kind, count in cluster.kinds:
        device = find_accelerator(kind.device)
        is_other = wish_device and device and device.family != wish_device.family
        if kind.devices and not is_other and cluster_wish.devices_per_node in (0, kind.devices):
            return kind, count

    return NodeKind(), 0


def _without_devices_and_nodes(row: tuple[NodeKind, int]) -> tuple[bool, int]:
    """Return the sort key for a node type and its count: without GPUs first, then by count."""
    kind, count = row
    return not kind.devices, count


def _device_choices(name: str) -> list[str]:
    """Return all devices that a name could refer to if it states no memory size.

    >>> _device_choices("a100")
    ['A100-SXM4-40GB', 'A100-SXM4-80GB', 'A100-PCIe-40GB', 'A100-PCIe-80GB']
    """
    accelerator = find_accelerator(name)
    assert accelerator is not None
    family = accelerator.family
    if "PCIE" in name.upper() or "SXM" in name.upper():
        names = [accelerator.name]
    else:
        rows = accelerators.ACCELERATORS.values()
        names = [row.name for row in rows if row.family == family]

    choices = []
    for device in names:
        if device.startswith(family) and "Polaris" not in device:
            choices += _with_memory(device)

    return choices


def _with_memory(device: str) -> list[str]:
    """Return a device name with each memory size in which the device is sold.

    A name that already includes the size is returned unchanged.
    """
    if named_memory(device):
        return [device]
    sizes_gb = accelerators.memory_sizes(device)
    return [f"{device}-{size}GB" for size in sizes_gb] or [device]


def full_name(name: str) -> str:
    """Return the device name in the table, with the memory size if the table has more than one.

    >>> full_name("NVIDIA A100-PCIE-40GB"), full_name("a100_40"), full_name("MI250X")
    ('A100-PCIe-40GB', 'A100-SXM4-40GB', 'MI250X-GCD')
    """
    accelerator = find_accelerator(name)
    assert accelerator is not None
    if named_memory(accelerator.name):
        return accelerator.name
    return f"{accelerator.name}-{named_memory(name) // 2**30}GB"


def _device(cluster_wish: ClusterWish, kind: NodeKind, cluster: Cluster) -> tuple[str, str]:
    """Return the device in a node, or a placeholder, and where this comes from."""
    if cluster_wish.computes_on_cpu:
        return CPU, SiteSetupMessage.GIVEN_BY_OPTION.fill(option="device")
    if cluster_wish.device:
        return full_name(cluster_wish.device), f"given by --device {cluster_wish.device}"
    source = SiteSetupMessage.SCHEDULER_CALLS_IT.fill(source=cluster.source, device=kind.device)
    if kind.device and named_memory(kind.device):
        return full_name(kind.device), source
    if kind.device and find_accelerator(kind.device):
        return FILL_IN, SiteSetupMessage.ONE_OF_DEVICES.fill(
            source=source, devices=", ".join(_device_choices(kind.device))
        )
    names = "A100-SXM4-40GB, A100-SXM4-80GB, H100-SXM5, MI250X-GCD"
    return FILL_IN, f"the GPUs of a node, by name ({names} ...); nothing on this machine says which"


def _hardware_lines(
    cluster_wish: ClusterWish,
    cluster: Cluster,
    kind: NodeKind,
    count: int,
    device: str,
) -> Iterator[str]:
    """Yield lines about node hardware, each with its source."""
    source = cluster.source
    on_cpu = device == CPU
    if on_cpu:
        unknown = SiteSetupMessage.PROCESSES_PER_NODE.fill()
    else:
        unknown = "GPUs of a node (GCDs on MI250X: eight on a node of four cards)"
    yield _sourced(
        "devices_per_node",
        cluster_wish.devices_per_node,
        0 if on_cpu else kind.devices,
        source,
        unknown,
    )
    accelerator = None if on_cpu else find_accelerator(device)
    if accelerator is None and not on_cpu:
        yield (
            "# device_memory, peak_tflops: taken from the table of peaks if it has the device's "
            "name"
        )
    if accelerator:
        precisions = [name for name in ("fp16", "bf16", "fp32") if name in accelerator.peaks]
        peaks = ", ".join(f"{name}: {accelerator.peaks[name]:g}" for name in precisions)
        memory_gib = named_memory(device) // 2**30
        memory_source = SiteSetupMessage.MEMORY_BY_DATASHEET.fill()
        yield f"device_memory: {memory_gib}GiB  # {memory_source}"
        peaks_source = SiteSetupMessage.PEAKS_BY_DATASHEET.fill()
        yield f"peak_tflops: {{{peaks}}}  # {peaks_source}"

    unknown = "CPUs of a node that a job may use (sinfo -o %c); without it a task gets one core"
    yield _sourced(
        "cores_per_node",
        cluster_wish.cores_per_node,
        kind.cores,
        source,
        unknown,
    )
    if kind.memory_bytes:
        yield f"node_memory: {kind.memory_bytes // 2**30}GiB  # {source}"
    if count:
        yield f"nodes: {count}  # {SiteSetupMessage.NODES_OF_KIND.fill(source=source)}"


def _queue_text(cluster: Cluster) -> str:
    """Return the queue limits, or a commented example if no scheduler answered."""
    if not cluster.queues:
        return f"""\
# Limits of partitions or queues, which runbook check applies to every job. {why_no_queues(cluster)}
# queues:
#   gpu: {{max_nodes: 8, max_walltime: "24:00:00"}}
"""

    lines = [f"queues:  # {cluster.source}; runbook check applies these limits to every job"]
    lines += [_queue_line(queue) for queue in cluster.queues]
    return "\n".join([*lines, ""])


def why_no_queues(cluster: Cluster) -> str:
    """Return why a site file has no queue limits: there is no scheduler, or it did not answer."""
    if not cluster.scheduler:
        return "There was no scheduler to ask."
    return SiteSetupMessage.SCHEDULER_WAS_ASKED.fill(
        answer=cluster.silence or "it named no queue that accepts and runs jobs"
    )


def _queue_line(queue: QueueLimits) -> str:
    """Return a queue with its limits, and a comment with its nodes."""
    limits = []
    if queue.min_nodes > 1:
        limits.append(f"min_nodes: {queue.min_nodes}")
    if queue.max_nodes:
        limits.append(f"max_nodes: {queue.max_nodes}")
    if queue.max_seconds:
        limits.append(f'max_walltime: "{show_clock(queue.max_seconds)}"')
    line = f"  {write_scalar(queue.name)}: {{{', '.join(limits)}}}"
    remarks = [" and ".join(_nodes_of_kind(kind, count) for kind, count in queue.kinds[:3])]
    if queue.default:
        remarks.append(SiteSetupMessage.DEFAULT_QUEUE.fill())
    remark = "; ".join(part for part in remarks if part)
    return f"{line}  # {remark}" if remark else line


def _nodes_of_kind(kind: NodeKind, count: int) -> str:
    """Return how many nodes of a type there are, and the GPUs in each, as readable text."""
    nodes = counted(count, "node")
    if not kind.devices:
        return nodes
    device = kind.device or "GPU"
    return SiteSetupMessage.NODES_OF_DEVICES.fill(nodes=nodes, devices=kind.devices, device=device)


def _default_text(cluster: Cluster, kind: NodeKind) -> str:
    """Return the section with the partition and walltime for the two training runs.

    The partition has this node type and accepts single-node jobs.
    """
    queues = [queue for queue in cluster.queues if queue.min_nodes <= 1]
    queue = _default_queue(queues, kind)
    if queues:
        names = f" (one of {', '.join(queue.name for queue in queues)})"
    else:
        names = ""

    lines = ["defaults:  # of every run on this site; a run file overrides them", "  jobs:"]
    for section, seconds in (("smoke", 1800), ("training", 3600)):
        limit = queue.max_seconds if queue else 0
        walltime = f'walltime: "{show_clock(min(seconds, limit or seconds))}"'
        if queue:
            partition = write_scalar(queue.name)
            lines.append(f"    {section}: {{partition: {partition}, {walltime}}}")
        else:
            remark = f"# partition: the cluster's own default, or name one here{names}"
            lines.append(f"    {section}: {{{walltime}}}  {remark}")

    return "\n".join([*lines, ""])


def _default_queue(queues: Sequence[QueueLimits], kind: NodeKind) -> QueueLimits | None:
    """Return the default queue if it has such nodes, or else the queue with the most of them.

    Return None if no queue has any.
    """
    num_nodes = {queue.name: _count_nodes(queue, kind) for queue in queues}
    with_nodes = [queue for queue in queues if num_nodes[queue.name]]
    return max(with_nodes, key=lambda queue: (queue.default, num_nodes[queue.name]), default=None)


def _count_nodes(queue: QueueLimits, kind: NodeKind) -> int:
    """Count the nodes of a type in a queue."""
    return sum(count for queue_kind, count in queue.kinds if queue_kind == kind)


MODEL = "125m"
"""The smallest GPT-3 model, which fits on every device in the table.

The first training run is meant to work, not to fill the node.
"""
GLOBAL_BATCH = 64
SAMPLES = 64 * 24
"""Number of sequences to train on, which also limits the sequences per step.

With 2,048 tokens per sequence, the training reads the shipped text once.
"""


def run_text(name: str, project: Path, *, is_whole: bool) -> str:
    """Return the text for the run file.

    If `is_whole` is set, the site file has no values left to fill in, so the devices on the site
    are known.
    """
    model = read_models(project).get(MODEL)
    devices = 1
    precision = "bf16"
    if is_whole:
        site = read_site(name, project)[0]
        devices = site.hardware.devices_per_node
        has_bf16 = peak_of(site, "bf16") or site.hardware.device == CPU
        precision = "bf16" if has_bf16 else "fp16"

    steps_per_copy = max(1, GLOBAL_BATCH // devices)
    batch = devices * steps_per_copy
    iterations = max(8, SAMPLES // batch)
    tokens_per_step = batch * model.sequence_length
    rate = float(model.training["learning_rate"])
    # Round the quotient, because a division adds meaningless digits.
    min_rate = float(f"{rate / 10:g}")
    if is_whole:
        steps = f"1 micro x {devices} replicas x {steps_per_copy} steps = "
    else:
        steps = ""

    return f"""\
# The first training on {name}: {iterations} steps of GPT-3's {model.label} on one node, over the shipped text.
# Written by runbook init; you can change every value: runbook check {name} says whether it fits.
run: {name}
site: {name}
model: {MODEL}  # {model.layers} layers x {model.hidden} hidden; other sizes are in params/models.yaml

data:
  dataset: corpus  # shipped, 3.35 M tokens; for others, or your own, see params/datasets.yaml

parallel:  # how the model is split over the GPUs; runbook plan {name} --search ranks all layouts
  tensor: 1
  pipeline: 1
  zero_stage: 1

training:
  precision: {precision}
  iterations: {iterations}  # x {tokens_per_step:,} tokens = {iterations * tokens_per_step:,} tokens: once through the text
  micro_batch: 1
  global_batch: {batch}  # {steps}{batch} sequences = {tokens_per_step:,} tokens
  learning_rate: {write_scalar(rate)}  # GPT-3's for this size, at its own batch of {model.training["global_batch"]}
  min_learning_rate: {write_scalar(min_rate)}
  warmup_iterations: 4
  recompute: none
  save_interval: {iterations // 2}
  eval_interval: {iterations // 2}
  eval_iterations: 2

jobs:
  # account: the account that pays, if the cluster requires one
  smoke:
    nodes: 1
  training:
    nodes: 1  # partition and walltime: the site's defaults; write them here to change them
"""

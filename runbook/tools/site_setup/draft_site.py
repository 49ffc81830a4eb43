"""`runbook init --site`: a site file and a first run file for your own cluster, each value with its source."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runbook import params
from runbook.core.checks import counted
from runbook.core.errors import ParamsError
from runbook.core.files import write_text
from runbook.core.units import show_clock
from runbook.jobs.job_request import NodeKind
from runbook.params.catalogues import read_models, read_site
from runbook.params.problems import FILL_IN, marks_in
from runbook.params.schema.value_types import is_name
from runbook.params.yaml12 import write_scalar
from runbook.planning.cost import accelerators
from runbook.planning.cost.accelerators import find_accelerator, named_memory
from runbook.planning.cost.step_inputs import peak_of
from runbook.tools.site_setup.cluster_facts import Cluster, ask_cluster

LAUNCHERS = {
    "slurm": "torchrun  # one task a node, which starts a process for each GPU",
    "pbs": "mpiexec  # a process for each GPU; PBS has no other way onto the nodes",
}


@dataclass(frozen=True)
class ClusterWish:
    """What a person says of their cluster; empty and 0: ask the scheduler."""

    name: str
    scheduler: str = ""
    device: str = ""
    devices_per_node: int = 0
    cores_per_node: int = 0


@dataclass(frozen=True)
class ClusterFiles:
    """The two files, and what is still to be said in them."""

    site: Path
    run: Path
    written: tuple[Path, ...]
    marked: int
    source: str
    """The programs that were asked and answered; empty: none did."""


def check_cluster_wish(wish: ClusterWish) -> None:
    """Refuse an invalid name, and a device that is not in the table or whose memory is ambiguous."""
    if not is_name(wish.name):
        raise ParamsError(
            f"--site {wish.name}: a name has letters, digits, '.', '_' and '-', at most 80."
        )
    if wish.device and find_accelerator(wish.device) is None:
        near = ", ".join(accelerators.nearest_accelerators(wish.device))
        raise ParamsError(
            f"--device {wish.device}: no such device in the table of peaks. Nearest: {near}."
        )
    if wish.device and not named_memory(wish.device):
        choices = " or ".join(_device_choices(wish.device))
        raise ParamsError(
            f"--device {wish.device}: the name leaves its memory open. Write {choices}."
        )


def write_site(project: Path, wish: ClusterWish) -> ClusterFiles:
    """Write params/sites/NAME.yaml and params/NAME.yaml; a file that is there is kept as it is."""
    site = project / "params" / "sites" / f"{wish.name}.yaml"
    run = project / "params" / f"{wish.name}.yaml"
    written = [path for path in (site, run) if not path.exists()]
    cluster = Cluster("") if site.exists() else ask_cluster()
    if site in written:
        write_text(site, site_text(wish, cluster, time.strftime("%Y-%m-%d"), sys.executable))
    marked = len(marks_in(site.read_text(encoding="utf-8"), site.name))
    if run in written:
        write_text(run, run_text(wish.name, project, is_whole=not marked))
    if not marked:
        params.load(str(run), project=project)
    return ClusterFiles(site, run, tuple(written), marked, cluster.source)


def site_text(wish: ClusterWish, cluster: Cluster, date: str, python: str) -> str:
    """The site file: what was said, what the scheduler answered, and marks where neither did."""
    scheduler = wish.scheduler or cluster.scheduler
    kind, count = _node_kind(wish, cluster)
    device, device_source = _device(wish, kind, cluster)
    queue = {"slurm": "Slurm", "pbs": "PBS"}.get(scheduler, "a queue")
    title = ", ".join((wish.name, device if device != FILL_IN else "GPUs", queue))
    where = f"{'qsub' if scheduler == 'pbs' else 'sbatch'} is on the PATH of the machine that runbook init ran on"
    unsaid = "slurm or pbs: neither sbatch nor qsub is on the PATH here"
    fact = f'{{source: "{cluster.source}, asked by runbook init", date: "{date}"}}'
    facts = f"\nfacts:\n  hardware: {fact}\n  queues: {fact}\n" if cluster.source else ""
    hardware = "\n".join(
        f"  {line}" for line in _hardware_lines(wish, cluster, kind, count, device)
    )
    return f"""\
# {wish.name}: a cluster of yours, written by runbook init on {date}. Each value says where it came from;
# {FILL_IN} stands for one that nobody here knew. docs/your-own-cluster.md explains the rest.
site: {wish.name}
title: {write_scalar(title)}
{_sourced("scheduler", wish.scheduler, cluster.scheduler, where, unsaid)}
launcher: {LAUNCHERS.get(scheduler, LAUNCHERS["slurm"])}
python: {write_scalar(python)}  # the one that ran runbook init: the nodes must see it, its torch the GPUs

hardware:
  device: {device}  # {device_source}
{hardware}

{_queue_text(cluster)}
{_default_text(cluster, kind)}
{PBS_DIRECTIVES if scheduler == "pbs" else SLURM_DIRECTIVES}
environment:
  megatron:
    CUDA_DEVICE_MAX_CONNECTIONS: "1"  # Megatron overlaps tensor-parallel communication only with this

# Where they are needed:
# modules: [cuda/12.6]                       # environment modules that each job loads
# setup: [source /path/to/venv/bin/activate]  # commands at the start of each job
# container: {{kind: pyxis, image: /path/to/image.sqsh}}  # or singularity; azure.yaml and lumi.yaml use them
# required: {{jobs.account: the account that pays}}  # refused at render and run until the run file gives it
# price_per_device_hour: 2.00                # shows what a plan costs, with currency: EUR
{facts}"""


PBS_DIRECTIVES = """\
devices_directive: ngpus  # asked in `select`, beside ncpus; directives.select adds words to it
"""
SLURM_DIRECTIVES = """\
directives:
  mem: "0"  # all of a node's memory; without it many clusters give a job a small share
# devices_directive: gres  # where the cluster takes --gres=gpu:4 and not --gpus-per-node=4
"""


def _sourced(key: str, given: object, found: object, source: str, unsaid: str) -> str:
    """A line of the site file: the value that a person gave, else the one found and where, else a mark to fill in."""
    if given:
        return f"{key}: {given}  # given by --{key.replace('_', '-')}"
    return f"{key}: {found}  # {source}" if found else f"{key}: {FILL_IN}  # {unsaid}"


def _node_kind(wish: ClusterWish, cluster: Cluster) -> tuple[NodeKind, int]:
    """The kind of node that the site is for: of the wished device where one is, else the one with most GPUs in all."""
    wanted = find_accelerator(wish.device)
    for kind, count in cluster.kinds:
        found = find_accelerator(kind.device)
        is_other = wanted and found and found.family != wanted.family
        if kind.devices and not is_other and wish.devices_per_node in (0, kind.devices):
            return kind, count
    return NodeKind(), 0


def _device_choices(name: str) -> list[str]:
    """Every device that a name without its memory can mean.

    >>> _device_choices("a100")
    ['A100-SXM4-40GB', 'A100-SXM4-80GB', 'A100-PCIe-40GB', 'A100-PCIe-80GB']
    """
    found = find_accelerator(name)
    assert found is not None
    family = [one.name for one in accelerators.ACCELERATORS.values() if one.family == found.family]
    alike = [found.name] if "PCIE" in name.upper() or "SXM" in name.upper() else family
    names = [one for one in alike if one.startswith(found.family) and "Polaris" not in one]
    sizes = {one: () if named_memory(one) else accelerators.memory_sizes(one) for one in names}
    return [full for one in names for full in [f"{one}-{size}GB" for size in sizes[one]] or [one]]


def full_name(name: str) -> str:
    """The table's name of a device, its memory included where the table's leaves it open.

    >>> full_name("NVIDIA A100-PCIE-40GB"), full_name("a100_40"), full_name("MI250X")
    ('A100-PCIe-40GB', 'A100-SXM4-40GB', 'MI250X-GCD')
    """
    found = find_accelerator(name)
    assert found is not None
    if named_memory(found.name):
        return found.name
    return f"{found.name}-{named_memory(name) // 2**30}GB"


def _device(wish: ClusterWish, kind: NodeKind, cluster: Cluster) -> tuple[str, str]:
    """The device of a node, and where it comes from."""
    if wish.device:
        return full_name(wish.device), f"given by --device {wish.device}"
    said = f"{cluster.source} calls it {kind.device}"
    if kind.device and named_memory(kind.device):
        return full_name(kind.device), said
    if kind.device and find_accelerator(kind.device):
        return FILL_IN, f"{said}: one of {', '.join(_device_choices(kind.device))}"
    names = "A100-SXM4-40GB, A100-SXM4-80GB, H100-SXM5, MI250X-GCD"
    return FILL_IN, f"the GPUs of a node, by name ({names} ...); nobody here says which"


def _hardware_lines(
    wish: ClusterWish, cluster: Cluster, kind: NodeKind, count: int, device: str
) -> Iterator[str]:
    unsaid = "GPUs of a node (GCDs on MI250X: eight on a node of four cards)"
    yield _sourced("devices_per_node", wish.devices_per_node, kind.devices, cluster.source, unsaid)
    if (found := find_accelerator(device)) is None:
        yield "# device_memory, peak_tflops: follow from the device's name where it is in the table of peaks"
    else:
        peaks = ", ".join(
            f"{name}: {found.peaks[name]:g}"
            for name in ("fp16", "bf16", "fp32")
            if name in found.peaks
        )
        yield f"device_memory: {named_memory(device) // 2**30}GiB  # of one device, by its datasheet"
        yield f"peak_tflops: {{{peaks}}}  # of one device, dense, by its datasheet"
    unsaid = "CPUs of a node that a job may use (sinfo -o %c); without it a task gets one core"
    yield _sourced("cores_per_node", wish.cores_per_node, kind.cores, cluster.source, unsaid)
    if kind.memory_bytes:
        yield f"node_memory: {kind.memory_bytes // 2**30}GiB  # {cluster.source}"
    if count:
        yield f"nodes: {count}  # of this kind, {cluster.source}"


def _queue_text(cluster: Cluster) -> str:
    if not cluster.queues:
        why = f": {cluster.silence}" if cluster.silence else ""
        return f"""\
# Limits of partitions or queues, which check holds every job to. No scheduler was there to ask{why}
# queues:
#   gpu: {{max_nodes: 8, max_walltime: "24:00:00"}}
"""
    lines = [f"queues:  # {cluster.source}; check holds every job to these limits"]
    for queue in cluster.queues:
        limits = {
            "min_nodes": queue.min_nodes if queue.min_nodes > 1 else 0,
            "max_nodes": queue.max_nodes,
            "max_walltime": queue.max_seconds and f'"{show_clock(queue.max_seconds)}"',
        }
        inner = ", ".join(f"{name}: {value}" for name, value in limits.items() if value)
        nodes = [(one, counted(number, "node")) for one, number in queue.kinds[:3]]
        has = [
            f"{many} of {one.devices} x {one.device or 'GPU'}" if one.devices else many
            for one, many in nodes
        ]
        said = "; ".join(
            part for part in (" and ".join(has), "the default" if queue.default else "") if part
        )
        lines.append(f"  {write_scalar(queue.name)}: {{{inner}}}" + (f"  # {said}" if said else ""))
    return "\n".join([*lines, ""])


def _default_text(cluster: Cluster, kind: NodeKind) -> str:
    """Partition and walltime of the two trainings: of a queue that has this kind of node and takes a single one."""
    fitting = [queue for queue in cluster.queues if queue.min_nodes <= 1]
    num_nodes = {
        queue.name: sum(number for one, number in queue.kinds if one == kind) for queue in fitting
    }
    holds = [queue for queue in fitting if num_nodes[queue.name]]
    queue = max(holds, key=lambda one: (one.default, num_nodes[one.name]), default=None)
    names = f" (one of {', '.join(one.name for one in fitting)})" if fitting else ""
    lines = ["defaults:  # of every run on this site; a run file wins over them", "  jobs:"]
    for section, seconds in (("smoke", 1800), ("training", 3600)):
        limit = queue.max_seconds if queue else 0
        walltime = f'walltime: "{show_clock(min(seconds, limit or seconds))}"'
        own = f"    {section}: {{{walltime}}}  # partition: the cluster's own default, or name one here{names}"
        lines.append(
            f"    {section}: {{partition: {write_scalar(queue.name)}, {walltime}}}"
            if queue
            else own
        )
    return "\n".join([*lines, ""])


MODEL = "125m"
"""GPT-3's smallest, which every device of the table holds: the first training is to work, not to fill the node."""
GLOBAL_BATCH = 64
SAMPLES = 64 * 24
"""Sequences of a step at most, and of the training: 2,048 tokens each, once through the shipped text."""


def run_text(name: str, project: Path, *, is_whole: bool) -> str:
    """The run file; `is_whole`: nothing of the site is still to be filled in, so that its devices are known."""
    model = MODEL
    entry = read_models(project).get(MODEL)
    devices = 1
    precision = "bf16"
    if is_whole:
        site = read_site(name, project)[0]
        devices = site.hardware.devices_per_node
        precision = "bf16" if peak_of(site, "bf16") else "fp16"
    batch = devices * max(1, GLOBAL_BATCH // devices)
    length = entry.sequence_length
    iterations = max(8, SAMPLES // batch)
    tokens = iterations * batch * length
    rate = float(entry.training["learning_rate"])
    steps = f"1 micro x {devices} copies x {batch // devices} steps = " * is_whole
    return f"""\
# The first training on {name}: {iterations} steps of GPT-3's {entry.label} on one node, over the shipped text.
# Written by runbook init; every value is yours to change: runbook check {name} says whether it fits.
run: {name}
site: {name}
model: {model}  # {entry.layers} layers x {entry.hidden} hidden; other sizes are in params/models.yaml

data:
  dataset: corpus  # shipped, 3.35 M tokens; other texts, and how to name your own: params/datasets.yaml

parallel:  # how the model is cut over the GPUs; runbook plan {name} --search ranks all ways
  tensor: 1
  pipeline: 1
  zero_stage: 1

training:
  precision: {precision}
  iterations: {iterations}  # x {batch * length:,} tokens = {tokens:,} tokens: once through the text
  micro_batch: 1
  global_batch: {batch}  # {steps}{batch} sequences = {batch * length:,} tokens
  learning_rate: {write_scalar(rate)}  # GPT-3's for this size, at its own batch of {entry.training["global_batch"]}
  min_learning_rate: {write_scalar(float(f"{rate / 10:g}"))}
  warmup_iterations: 4
  recompute: none
  save_interval: {iterations // 2}
  eval_interval: {iterations // 2}
  eval_iterations: 2

jobs:
  # account: who pays, where the cluster wants one
  smoke:
    nodes: 1
  training:
    nodes: 1  # partition and walltime: the site's defaults; write them here to change them
"""

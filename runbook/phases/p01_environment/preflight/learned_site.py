"""The facts that a preflight learns about a site.

They are values for the site file, each with its evidence, and the keys whose values remain unknown.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from runbook.core.units import GIB
from runbook.node_checks.answers import HOSTS, PEERS, TORCH
from runbook.params.schema.site import Site
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight.job_answers import NodeFacts
from runbook.phases.p01_environment.preflight.link_rules import LISTEN
from runbook.phases.p01_environment.preflight.run_preflight import PreflightResult
from runbook.planning.cost.accelerators import find_accelerator, named_memory

CPU = "cpu"
HARDWARE = "hardware"
INTERFACE = ("environment", "network", "GLOO_SOCKET_IFNAME")
NETWORK_DIGITS = 2
ALL_MEMORY = "0"
"""Slurm's notation for all memory on a node."""


@dataclass(frozen=True)
class Lesson:
    """A measured value for the site file."""

    path: tuple[str, ...]
    """The key, including its sections."""
    value: object
    old: object
    """The current value in the file; empty, 0 or None if the file has no value."""
    evidence: str

    @property
    def name(self) -> str:
        """Return the key's full name."""
        return ".".join(self.path)

    @property
    def is_new(self) -> bool:
        """Return whether the site file has a different value or no value."""
        return str(self.value) != str(self.old)


@dataclass(frozen=True)
class Gap:
    """A value that the preflight could not measure."""

    name: str
    reason: str


@dataclass(frozen=True)
class LearnedSite:
    """Everything that one preflight measures for a site file."""

    lessons: tuple[Lesson, ...]
    gaps: tuple[Gap, ...]
    job: str
    """Where measurements come from: a job, or this machine."""
    defect: str
    """The first defect, which ended the measurements; empty if there was none."""

    def as_dict(self) -> dict[str, object]:
        """Return the content for --json."""
        lessons = []
        for lesson in self.lessons:
            lessons.append(
                {
                    "name": lesson.name,
                    "value": lesson.value,
                    "old": lesson.old,
                    "changes": lesson.is_new,
                    "evidence": lesson.evidence,
                }
            )

        return {
            "lessons": lessons,
            "gaps": [{"name": gap.name, "reason": gap.reason} for gap in self.gaps],
            "job": self.job,
            "defect": self.defect,
        }


Answers = Mapping[str, Mapping[str, Mapping[str, NodeFacts]]]
"""The facts by node, stage and part, as in PreflightResult.nodes."""


@dataclass(frozen=True)
class Request:
    """The resources that the preflight job requested on each node.

    Inside the job, a cgroup shows only these resources.
    """

    cores: int = 0
    """0 if no cores were requested."""
    memory: str = ""
    """Memory as the scheduler writes it, or an empty string if no memory was requested."""


def learn_site(
    site: Site,
    result: PreflightResult,
    job: str,
    request: Request | None = None,
) -> LearnedSite:
    """Derive values for the site file from the nodes' answers.

    `job` is the job that took the measurements, and `request` is what it requested from the queue.
    """
    lessons: list[Lesson] = []
    gaps: list[Gap] = []
    for entry in _entries(site, result.nodes, request or Request()):
        if isinstance(entry, Lesson):
            lessons.append(entry)
        else:
            gaps.append(entry)

    defect = result.defect.as_text() if result.defect else ""
    return LearnedSite(tuple(lessons), tuple(gaps), job, defect)


def _entries(site: Site, nodes: Answers, request: Request) -> Iterator[Lesson | Gap]:
    """Yield a lesson or a gap for each value in a site file that can be measured."""
    yield _cores(site, nodes, request.cores)
    yield _memory(site, nodes, request.memory)
    yield from _devices(site, nodes)
    yield _interface(site, nodes)
    yield _network(site, nodes)
    yield Gap("write_bandwidth", PhaseMessage.ONE_FILE_OF_EACH_NODE.fill())
    yield Gap(
        "queues", "the scheduler has the limits of partitions: `runbook init --site` reads them"
    )


def _of_part(nodes: Answers, rung: str, part: str) -> dict[str, NodeFacts]:
    """Return the facts of one part by node; nodes without an answer are left out."""
    answers: dict[str, NodeFacts] = {}
    for node, rungs in nodes.items():
        if part in rungs.get(rung, {}):
            answers[node] = rungs[rung][part]

    return answers


def _missing(name: str) -> Gap:
    return Gap(name, PhaseMessage.NO_NODE_CAME.fill())


def _cores(site: Site, nodes: Answers, requested: int) -> Lesson | Gap:
    name = "hardware.cores_per_node"
    facts = _of_part(nodes, HOSTS, "cores")
    if not facts:
        return _missing(name)
    counts = {}
    for node, node_facts in facts.items():
        counts[node] = int(min(node_facts["cores"], node_facts["quota"] or node_facts["cores"]))

    evidence = f"usable cores of {_places(counts)}"
    fewest = max(1, min(counts.values()))
    online = min(int(node_facts.get("online") or 0) for node_facts in facts.values())
    if fewest == requested < online:
        return Gap(
            name,
            PhaseMessage.SAW_REQUESTED_CORES.fill(requested=requested, online=online),
        )

    return Lesson((HARDWARE, "cores_per_node"), fewest, site.hardware.cores_per_node, evidence)


def _memory(site: Site, nodes: Answers, requested: str) -> Lesson | Gap:
    name = "hardware.node_memory"
    facts = _of_part(nodes, HOSTS, "memory")
    if not facts:
        return _missing(name)
    is_limited = any(node_facts["limit"] for node_facts in facts.values())
    if is_limited and requested not in ("", ALL_MEMORY):
        total = min(int(node_facts["total"]) for node_facts in facts.values()) // GIB
        return Gap(
            name,
            PhaseMessage.SAW_REQUESTED_MEMORY.fill(
                requested=requested, total=total, all_memory=ALL_MEMORY
            ),
        )

    sizes = {}
    for node, node_facts in facts.items():
        sizes[node] = int(node_facts["limit"] or node_facts["total"]) // GIB

    if site.hardware.node_memory:
        old = f"{site.hardware.node_memory // GIB}GiB"
    else:
        old = ""

    evidence = f"memory of {_places(sizes)}, in whole GiB"
    return Lesson((HARDWARE, "node_memory"), f"{min(sizes.values())}GiB", old, evidence)


def _devices(site: Site, nodes: Answers) -> Iterator[Lesson | Gap]:
    """Yield the GPU values for the site file (number, type and memory) as torch reports them."""
    if site.hardware.device == CPU:
        yield Gap("hardware.device", "the site computes on CPUs, and its ranks see no GPU")
        return

    facts = _of_part(nodes, TORCH, TORCH)
    gpus = {node: node_facts.get("devices", []) for node, node_facts in facts.items()}
    if not gpus or not all(gpus.values()):
        yield _missing("hardware.device")
        return

    counts = {node: len(devices) for node, devices in gpus.items()}
    # A training run uses the same number on every node, so the node with the fewest GPUs decides.
    yield Lesson(
        (HARDWARE, "devices_per_node"),
        min(counts.values()),
        site.hardware.devices_per_node,
        f"GPUs that torch sees on {_places(counts)}",
    )
    all_devices = []
    for devices in gpus.values():
        for device in devices:
            all_devices.append(device)

    yield _device_name(site, {str(device["name"]) for device in all_devices})
    yield _device_memory(site, min(int(device["total"]) for device in all_devices))


def _device_name(site: Site, names: Collection[str]) -> Lesson | Gap:
    """Return the device name in the peak table that matches what torch calls the GPUs, or a gap."""
    name = min(names)
    accelerator = find_accelerator(name)
    if len(names) > 1 or accelerator is None or not named_memory(accelerator.name):
        name_list = ", ".join(sorted(names))
        return Gap(
            "hardware.device",
            f"torch reports {name_list}: choose the matching row of the peak table",
        )

    return Lesson(
        (HARDWARE, "device"), accelerator.name, site.hardware.device, f"torch calls it {name}"
    )


def _device_memory(site: Site, smallest_bytes: int) -> Lesson:
    """Return the memory on the smallest GPU, because any model stage may run there."""
    old = ""
    if site.hardware.device_memory:
        old = f"{site.hardware.device_memory // GIB}GiB"
    return Lesson(
        (HARDWARE, "device_memory"),
        f"{smallest_bytes // GIB}GiB",
        old,
        "the smallest GPU that torch sees, in whole GiB",
    )


def _interface(site: Site, nodes: Answers) -> Lesson | Gap:
    """Return the interface that the nodes reached each other through."""
    name = ".".join(INTERFACE)
    facts = _of_part(nodes, HOSTS, "interfaces")
    listening = _of_part(nodes, PEERS, LISTEN)
    if any(value for node_facts in facts.values() for value in node_facts["chosen"].values()):
        return Gap(name, "the site names an interface, and the nodes reached each other through it")
    if len(listening) < 2:
        return Gap(name, "one node: no connection was tried")
    used = set()
    for node, node_facts in listening.items():
        for interface, details in facts[node]["interfaces"].items():
            if details["address"] and details["address"] == node_facts["address"]:
                used.add(interface)

    if len(used) != 1:
        return Gap(
            name, f"the nodes listened on several interfaces: {', '.join(sorted(used)) or 'all'}"
        )
    evidence = f"{_places(listening)} reached each other through it"
    return Lesson(INTERFACE, used.pop(), "", evidence)


def _network(site: Site, nodes: Answers) -> Lesson | Gap:
    """Return the measured TCP bandwidth, unless the site names a fabric.

    TCP does not reach the bandwidth of the fabric.
    """
    name = "hardware.network"
    if site.hardware.fabric:
        return Gap(name, "see the adapters' datasheet; TCP does not reach a fabric's bandwidth")
    speeds = []
    for rungs in nodes.values():
        for key, part in rungs.get(PEERS, {}).items():
            if key.startswith("to ") and "bytes_per_second" in part:
                speeds.append(float(part["bytes_per_second"]))

    if not speeds and len(nodes) > 1:
        return _missing(name)
    if not speeds:
        return Gap(name, "one node: nothing was sent")
    gigabytes = float(f"{min(speeds) / 1e9:.{NETWORK_DIGITS}g}")
    evidence = f"slowest of {len(speeds)} links, one TCP connection in one direction"
    return Lesson((HARDWARE, "network"), gigabytes, site.hardware.network or "", evidence)


def _places(values: Mapping[str, object]) -> str:
    """Return the names of the first three nodes that answered, and how many more there are."""
    names = list(values)
    first_names = ", ".join(names[:3])
    if len(names) <= 3:
        return first_names
    return f"{first_names} and {len(names) - 3} more"

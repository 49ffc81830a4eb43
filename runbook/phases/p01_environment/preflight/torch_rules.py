"""Rules for the second stage: torch and the devices of each node."""

import re

from runbook.node_checks.answers import HOSTS, TORCH
from runbook.node_checks.libraries import numbers
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight import thresholds
from runbook.phases.p01_environment.preflight.expectations import Expectations
from runbook.phases.p01_environment.preflight.job_answers import JobAnswers, NodeFacts
from runbook.phases.p01_environment.preflight.node_rules import presence_check
from runbook.phases.p01_environment.preflight.placed_check import (
    PlacedCheck,
    PlacedRule,
    PreflightCheck,
)

WELL = "well"
SIGNALS = {
    "SIGILL": "an instruction that this processor lacks: the build is for a newer one",
    "SIGSEGV": "an incompatible library, often two builds of one library on LD_LIBRARY_PATH",
    "SIGBUS": ("a mapped file vanished: /dev/shm or the disk is full, or the file server is gone"),
    "SIGKILL": "killed from outside, for example at the job's memory limit",
    "SIGABRT": "a library aborted; its last message is above",
}
"""Why a process that imports torch ends with a signal, by signal name."""


def torch_checks(answers: JobAnswers, expected: Expectations) -> list[PlacedCheck]:
    """Check that torch works and finds fast devices, and that nvcc matches torch."""
    presence = presence_check(answers, TORCH)
    if presence.verdict == "fail":
        return [presence]
    imported = import_check(answers, expected)
    if imported.verdict != "pass":
        return [presence, imported]
    facts = answers.facts(TORCH, TORCH)
    return [
        presence,
        imported,
        libraries_check(answers),
        *([] if expected.on_cpu else [device_count_check(answers, expected)]),
        *([] if expected.on_cpu else [compiler_check(answers)]),
        right_product_check(facts),
        *speed_checks(facts, expected),
    ]


def import_check(answers: JobAnswers, expected: Expectations) -> PlacedCheck:
    """Check that torch can be imported on each node; name the signal if a signal ended the import."""
    rule = PlacedRule(
        PreflightCheck.TORCH_IMPORT,
        "torch can be imported and used on every node",
        "See the error text. `make setup`, the site's image or its modules provide torch.",
    )
    faults = answers.missing(TORCH, TORCH)
    versions = set()
    programs = answers.facts(HOSTS, "programs")
    for node, facts in answers.facts(TORCH, TORCH).items():
        fault = _import_fault(facts)
        if fault:
            # Modules and environments add folders to PATH, so the value names the Python that was
            # started.
            executable = programs.get(node, {}).get("executable", "")
            faults[node] = f"{fault} (by {executable})" if executable else fault
        else:
            versions.add(str(facts["version"]))

    if faults:
        value = "; ".join(f"{node}: {fault}" for node, fault in faults.items())
        return rule.broken(value, list(faults))

    return rule.passed(f"torch {', '.join(sorted(versions))}", ", ".join(answers.nodes))


def _import_fault(facts: NodeFacts) -> str:
    ended = facts["ended"]
    if ended == WELL:
        return ""
    if ended == "hung":
        return f"no answer within {facts['seconds']:g} s: a file server or a driver hangs"
    last_line = str(facts["words"]).strip().rpartition("\n")[2]
    if ended == "signal":
        meaning = SIGNALS.get(str(facts["signal"]), "a crash inside a library")
        return f"ended by {facts['signal']} ({meaning}) {last_line}".strip()

    return f"exit code {facts['exit_code']}: {last_line}"


OF_TORCH_ITSELF = ("libtorch", "libc10")
"""Name prefixes of the libraries in the torch wheel. Those of a different torch are
incompatible."""


def libraries_check(answers: JobAnswers) -> PlacedCheck:
    """Check that LD_LIBRARY_PATH does not replace a library in torch with an older one.

    torch was imported in spite of the replacement, so an older system library, such as those that
    compiler modules provide, is only a warning. Only a library from a different torch is a defect.
    """
    rule = PlacedRule(
        PreflightCheck.TORCH_LIBRARIES,
        "LD_LIBRARY_PATH does not replace one of torch's libraries with an older version",
        "Remove the folder from LD_LIBRARY_PATH (a module, a shell start-up file or the site's "
        "setup adds it), or move it after the folder of the newer library.",
    )
    foreign: dict[str, str] = {}
    older: dict[str, str] = {}
    replaced: set[str] = set()
    not_compared: list[str] = []
    for node, facts in answers.facts(TORCH, TORCH).items():
        if not facts.get("libraries_compared", True):
            not_compared.append(node)
        for name, change in facts.get("substituted", {}).items():
            text = PhaseMessage.LIBRARY_REPLACED.fill(name=name, **change)
            if name.startswith(OF_TORCH_ITSELF):
                foreign.setdefault(node, text)
            elif _is_older(change):
                older.setdefault(node, text)
            replaced.add(text)

    for faults, verdict in ((foreign, "fail"), (older, "warn")):
        if faults:
            value = "; ".join(f"{node}: {fault}" for node, fault in faults.items())
            return rule.broken(value, list(faults), verdict=verdict)
    if not_compared:
        value = PhaseMessage.LIBRARIES_NOT_COMPARED.fill(nodes=", ".join(not_compared))
        return rule.broken(value, verdict="unknown")
    return rule.passed(
        "; ".join(sorted(replaced)) or "as torch finds them", ", ".join(answers.nodes)
    )


def _is_older(change: NodeFacts) -> bool:
    """Return whether a library is older than the one it replaces, as far as versions are known.

    For example, the version in the cuDNN file name has three numbers, and the wheel version has
    four.
    """
    version = str(change["version"])
    other_version = str(change["other_version"])
    if not version or not other_version:
        return False
    both = list(zip(numbers(version), numbers(other_version), strict=False))
    return [number for number, _ in both] < [other_number for _, other_number in both]


def device_count_check(answers: JobAnswers, expected: Expectations) -> PlacedCheck:
    """Check that torch sees as many GPUs on each node as the job uses."""
    rule = PlacedRule(
        PreflightCheck.GPUS,
        f"torch sees {expected.devices_per_node} on each node",
        (
            "nvidia-smi or rocm-smi on the node lists the GPUs. A GPU that has fallen off the bus "
            "needs a reboot."
        ),
    )
    counts = {node: len(facts["devices"]) for node, facts in answers.facts(TORCH, TORCH).items()}
    short = {}
    for node, count in counts.items():
        if count < expected.devices_per_node:
            short[node] = count

    if short:
        value = ", ".join(f"{node}: {count}" for node, count in short.items())
        return rule.broken(value, list(short))

    return rule.passed(f"{min(counts.values())} on each node")


def compiler_check(answers: JobAnswers) -> PlacedCheck:
    """Check that nvcc, which builds extensions, has torch's CUDA version."""
    rule = PlacedRule(
        PreflightCheck.CUDA_COMPILER,
        "nvcc's CUDA has torch's major version (DeepSpeed issues 3223, 694, 5362)",
        (
            "Load the module of torch's CUDA version, or set DS_SKIP_CUDA_CHECK=1 if only the "
            "minor version differs."
        ),
    )
    tools = answers.facts(HOSTS, "tools")
    faults = {}
    for node, facts in answers.facts(TORCH, TORCH).items():
        compiler = str(tools.get(node, {}).get("nvcc", ""))
        cuda = str(facts["cuda"] or "")
        if compiler and cuda and _major(compiler) != _major(cuda):
            faults[node] = PhaseMessage.COMPILER_OF_OTHER_CUDA.fill(compiler=compiler, cuda=cuda)

    if faults:
        value = "; ".join(f"{node}: {fault}" for node, fault in faults.items())
        # A different version matters only to users who compile an extension.
        return rule.broken(value, list(faults), verdict="warn")

    compilers = {str(facts["nvcc"]) for facts in tools.values() if facts["nvcc"]}
    return rule.passed(f"nvcc {', '.join(sorted(compilers)) or 'is not installed'}")


def _major(version: str) -> str:
    match = re.match(r"\d+", version)
    return match[0] if match else ""


def right_product_check(facts: dict[str, NodeFacts]) -> PlacedCheck:
    """Check that each device computes a matrix product with a known result correctly."""
    rule = PlacedRule(
        PreflightCheck.MATRIX_PRODUCT,
        "a matrix product of ones is correct on every device",
        "The device computes wrong results: exclude the node and report it.",
    )
    wrong = []
    for node, node_facts in facts.items():
        for number, speed in enumerate(node_facts["speeds"]):
            if not speed["product_is_right"]:
                wrong.append(f"{node} device {number}")

    nodes = list(dict.fromkeys(text.partition(" device")[0] for text in wrong))
    if wrong:
        return rule.broken(", ".join(wrong), nodes)
    return rule.passed("correct", ", ".join(facts))


def speed_checks(facts: dict[str, NodeFacts], expected: Expectations) -> list[PlacedCheck]:
    """Compare matrix product and copy speed with the datasheet and between nodes."""
    peak_flops = 0.0
    peak_bytes = 0.0
    if expected.accelerator is not None:
        peak_flops = 1e12 * expected.accelerator.peaks.get("bf16", 0.0)
        peak_bytes = expected.accelerator.memory_bandwidth

    products = _speeds(facts, "tflops", 1e12)
    copies = _speeds(facts, "bytes_per_second", 1.0)
    return [
        speed_check(
            "speed of products",
            products,
            peak_flops,
            thresholds.MATRIX_SHARE,
            "FLOP/s",
        ),
        speed_check(
            "speed of memory",
            copies,
            peak_bytes,
            thresholds.COPY_SHARE,
            "B/s",
        ),
    ]


def _speeds(facts: dict[str, NodeFacts], key: str, unit: float) -> dict[str, list[float]]:
    """Return the speed of each device by node, in FLOP/s or bytes per second."""
    speeds = {}
    for node, node_facts in facts.items():
        speeds[node] = [unit * float(speed[key]) for speed in node_facts["speeds"]]

    return speeds


def speed_check(
    name: str,
    speeds: dict[str, list[float]],
    peak: float,
    share: thresholds.Threshold,
    unit: str,
) -> PlacedCheck:
    """Compare each device with its datasheet, and each node with the fastest one.

    If `peak` is 0, no datasheet is known, and nodes are only compared with each other.
    """
    quickest = max(
        (max(node_speeds) for node_speeds in speeds.values() if node_speeds), default=0.0
    )
    floor = quickest / thresholds.SLOW_NODE.value
    text = f"no device is {thresholds.SLOW_NODE.value:g} times slower than the fastest"
    if peak:
        floor = max(floor, share.value * peak)
        text += f", and each has {share.value:.0%} of the datasheet's speed ({share.source})"

    rule = PlacedRule(
        name,
        text,
        (
            "Check clock rate, temperature, power limit and other processes on the node, and "
            "exclude the node until it is fixed."
        ),
    )
    slow = {}
    for node, values in speeds.items():
        if values and min(values) < floor:
            slow[node] = min(values)

    if slow:
        parts = [f"{node}: {show_speed(speed, unit)}" for node, speed in slow.items()]
        value = f"{', '.join(parts)}; the fastest device has {show_speed(quickest, unit)}"
        return rule.broken(value, list(slow))

    slowest = min((min(values) for values in speeds.values() if values), default=0.0)
    return rule.passed(f"{show_speed(slowest, unit)} at least", ", ".join(speeds))


def show_speed(speed: float, unit: str) -> str:
    """Return a speed with its unit.

    >>> show_speed(6.5e14, "FLOP/s"), show_speed(3.1e12, "B/s")
    ('650 TFLOP/s', '3,100 GB/s')
    """
    if unit == "FLOP/s":
        return f"{speed / 1e12:,.3g} TFLOP/s"
    return f"{speed / 1e9:,.0f} GB/s"

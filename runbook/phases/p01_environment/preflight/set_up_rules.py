"""Rules for a set-up that harms training even if all nodes have it: variables, files, priority."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from runbook.node_checks.answers import HOSTS
from runbook.node_checks.fact_sheet.group_names import FactGroup
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight import thresholds
from runbook.phases.p01_environment.preflight.expectations import Expectations
from runbook.phases.p01_environment.preflight.job_answers import JobAnswers, NodeFacts
from runbook.phases.p01_environment.preflight.node_rules import by_node
from runbook.phases.p01_environment.preflight.placed_check import (
    PlacedCheck,
    PlacedRule,
    PreflightCheck,
)


@dataclass(frozen=True)
class VariableRow:
    """A variable that changes how programs run. It is often left over from debugging."""

    name: str
    value: str
    """Shell pattern that matches the harmful values."""
    effect: str
    source: str


NCCL_SOURCE = "NCCL user guide, environment variables"
PYTHON_SOURCE = "Python documentation, command line and environment"
VARIABLES = (
    VariableRow(
        "TORCH_DISTRIBUTED_DEBUG",
        "DETAIL",
        "each collective is first compared between all ranks",
        "torch.distributed, debugging",
    ),
    VariableRow(
        "CUDA_LAUNCH_BLOCKING",
        "1",
        "each kernel waits for the one before",
        "CUDA programming guide, environment variables",
    ),
    VariableRow(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "?*",
        "each tensor asks the driver for memory",
        "torch.cuda, environment variables",
    ),
    VariableRow("NCCL_DEBUG", "TRACE", "each call is logged", NCCL_SOURCE),
    VariableRow("NCCL_P2P_DISABLE", "1", "GPUs of a node do not use NVLink or PCIe", NCCL_SOURCE),
    VariableRow("NCCL_SHM_DISABLE", "1", "GPUs of a node use the network", NCCL_SOURCE),
    VariableRow("NCCL_IB_DISABLE", "1", "nodes use sockets in place of InfiniBand", NCCL_SOURCE),
    VariableRow("PYTHONHOME", "?*", "Python looks for its own modules there", PYTHON_SOURCE),
    VariableRow("PYTHONOPTIMIZE", "?*", "assertions and docstrings are removed", PYTHON_SOURCE),
    VariableRow("PYTHONWARNINGS", "error*", "a warning ends the program", PYTHON_SOURCE),
    VariableRow("PYTHONMALLOC", "*debug", "each block of memory is checked", PYTHON_SOURCE),
    VariableRow("PYTHONDEVMODE", "?*", "each block of memory is checked", PYTHON_SOURCE),
    VariableRow("PYTHONTRACEMALLOC", "?*", "each block of memory is recorded", PYTHON_SOURCE),
    VariableRow("MALLOC_CHECK_", "[1-9]*", "each block of memory is checked", "mallopt(3)"),
    VariableRow("MALLOC_PERTURB_", "[1-9]*", "each block of memory is filled", "mallopt(3)"),
    VariableRow("LD_DEBUG", "?*", "the loader writes each step to the log", "ld.so(8)"),
    VariableRow("LD_BIND_NOT", "?*", "each call of a function is looked up again", "ld.so(8)"),
    VariableRow(
        "GOMP_CPU_AFFINITY", "?*", "threads of all ranks run on these cores", "libgomp manual"
    ),
    VariableRow(
        "KMP_AFFINITY",
        "*proclist*",
        "threads of all ranks run on these cores",
        "LLVM OpenMP manual",
    ),
    VariableRow(
        "OMP_PROC_BIND",
        "[!fF]*",
        "a rank's main thread and its loader workers stay on its first core",
        "pytorch issues 91989 and 99625",
    ),
    VariableRow(
        "ATEN_CPU_CAPABILITY", "default", "torch uses no vector instructions", "torch, ATen/native"
    ),
)
"""Variables that slow training down or end it. A value that the site file sets is not a fault."""


TRUE_WORDS = ("yes", "y", "true", "t", "on", "1")
"""How systemd files write a setting that is switched on (systemd.syntax(7), parse_boolean)."""
STEERING = (
    *("ATEN_", "CUDA_", "DS_", "FI_", "GLOO_", "GOMP_", "HIP_", "HSA_", "KMP_", "LD_", "MALLOC_"),
    *("MKL_", "NCCL_", "NVTE_", "OMP_", "OPENBLAS_", "PYTHON", "PYTORCH_", "RCCL_", "TORCH"),
    *("TRITON_", "UCX_"),
)
"""Name prefixes of variables that affect Python, torch, its libraries and compilers."""
EXPECTED_VARIABLES = (
    *("CUDA_CACHE_PATH", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR"),
    *("DS_BUILD_OPS", "LD_PRELOAD", "OMP_NUM_THREADS", "PYTHONPATH", "PYTHONSAFEPATH"),
    "PYTHONUNBUFFERED",
    *("TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR"),
    *("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "LD_LIBRARY_PATH", "LD_RUN_PATH", "TORCH_HOME"),
    *("PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONNOUSERSITE"),
    *("PYTHONSTARTUP", "PYTHONUTF8", "PYTHON_VERSION"),
)
"""Variables that the job sets itself, that other rules judge, or that modules and images set."""


@dataclass(frozen=True)
class SetUpRule:
    """A rule about one part of the facts. Other checks name the nodes that did not answer."""

    rule: PlacedRule
    part: str
    fault: Callable[[NodeFacts, Expectations], str]
    verdict: str = "warn"


def variables_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the harmful variables, except those that the site file sets."""
    of_site: dict[str, str | None] = {}
    for variables in expected.environment.values():
        of_site.update(variables)
    faults = []
    for row in VARIABLES:
        value = facts.get(row.name, "")
        if not value or not fnmatchcase(value, row.value) or of_site.get(row.name) == value:
            continue
        faults.append(
            PhaseMessage.HARMFUL_VARIABLE.fill(
                name=row.name, value=value, effect=row.effect, source=row.source
            )
        )
    return "; ".join(faults)


def threads_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the number of threads, if the ranks together start far more than there are cores.

    Hyper-threads count as cores. The fault is empty if the number of cores is unknown.
    """
    threads = facts.get("OMP_NUM_THREADS", "").partition(",")[0]
    cores_of_job = facts.get("SLURM_CPUS_ON_NODE", "")
    cores = max(expected.cores_per_node, int(cores_of_job) if cores_of_job.isdecimal() else 0)
    ranks = max(1, expected.devices_per_node)
    if not threads.isdecimal() or not cores:
        return ""
    total = int(threads) * ranks
    if total <= thresholds.THREADS_PER_CORE.value * cores:
        return ""
    return PhaseMessage.MORE_THREADS_THAN_CORES.fill(threads=threads, total=total, cores=cores)


def shell_variables_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the variables in the submitting shell that also affect training in the job.

    A variable that an image sets has a different value in the shell, or none.
    """
    known = {*EXPECTED_VARIABLES, *(row.name for row in VARIABLES)}
    for variables in expected.environment.values():
        known.update(variables)
    found = []
    for name, value in sorted(expected.shell.items()):
        if name.startswith(STEERING) and name not in known and facts.get(name) == value:
            found.append(f"{name}={value}")
    return ", ".join(found)


def named_files_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the variables that name a file that does not exist."""
    absent: Mapping[str, str] = facts["absent"]
    return "; ".join(
        PhaseMessage.NAMED_FILE_ABSENT.fill(name=name, path=path) for name, path in absent.items()
    )


def opening_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return how long it takes to open a file in the Python packages, if that is too long."""
    milliseconds = facts["milliseconds"]
    if milliseconds < thresholds.OPEN_MILLISECONDS.value:
        return ""
    return PhaseMessage.OPENING_SLOW.fill(milliseconds=milliseconds)


def priority_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the priority that processes in the job have, if it is lower than usual."""
    priority = int(facts["priority (nice)"])
    if priority <= 0 or not expected.has_queue:
        return ""
    return PhaseMessage.LOW_PRIORITY.fill(priority=priority)


def system_folders_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return which file systems that the kernel provides are not mounted."""
    empty = [folder for folder in ("/proc", "/sys") if facts[folder] == "empty"]
    return "".join(PhaseMessage.SYSTEM_FOLDER_EMPTY.fill(folder=folder) for folder in empty)


def remove_ipc_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return that shared memory is removed when the user logs out, if logind is set to do so."""
    value = str(facts.get("RemoveIPC of logind", ""))
    if value.lower() not in TRUE_WORDS or not expected.has_queue:
        return ""
    return PhaseMessage.SHARED_MEMORY_REMOVED.fill(value=value)


def localhost_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the address of localhost, if it is not a loopback address."""
    address = str(facts["address of localhost"])
    if all(each.startswith("127.") or each == "::1" for each in address.split(", ")):
        return ""
    return PhaseMessage.LOCALHOST_ELSEWHERE.fill(address=address)


def packet_size_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return each active interface whose MTU is below the minimum for IPv6."""
    faults = []
    for name, value in facts.items():
        interface = name.removeprefix("MTU of ")
        is_up = facts.get(f"interface {interface}") == "up"
        if interface != name and is_up and 0 < int(value) < thresholds.PACKET_BYTES.value:
            faults.append(PhaseMessage.SMALL_PACKETS.fill(interface=interface, bytes=value))
    return "; ".join(faults)


def compilers_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the compilers on PATH that do not start."""
    faults = []
    for name, value in facts.items():
        if name.endswith(" --version") and value.startswith("("):
            program = name.partition(" ")[0]
            path = facts.get(program, "").partition(",")[0]
            faults.append(
                PhaseMessage.PROGRAM_BROKEN.fill(program=program, path=path, reason=value)
            )
    return "; ".join(faults)


SET_UP_RULES = (
    SetUpRule(
        PlacedRule(
            PreflightCheck.LOCALHOST,
            "localhost is a loopback address (RFC 6761, section 6.3)",
            "Put `127.0.0.1 localhost` first into /etc/hosts of that node.",
        ),
        FactGroup.NETWORK.part,
        localhost_fault,
        verdict="fail",
    ),
    SetUpRule(
        PlacedRule(
            PreflightCheck.VARIABLES,
            "no shell variable slows training down or ends it",
            "Unset it in the shell that submits the job, or in the start-up file, module or prolog "
            "of the scheduler that sets it.",
        ),
        FactGroup.ENVIRONMENT.part,
        variables_fault,
    ),
    SetUpRule(
        PlacedRule(
            PreflightCheck.THREADS,
            f"the ranks of a node start at most {thresholds.THREADS_PER_CORE.value:g} threads per "
            f"core: {thresholds.THREADS_PER_CORE.source}",
            "Remove OMP_NUM_THREADS from the start-up file, module or TaskProlog that sets it: the "
            "job divides the cores among its ranks itself.",
        ),
        FactGroup.ENVIRONMENT.part,
        threads_fault,
    ),
    SetUpRule(
        PlacedRule(
            PreflightCheck.SHELL_VARIABLES,
            "variables that affect Python, torch or its libraries come from the site file, not "
            "from the submitting shell",
            "Put them into `environment` of the site file if the training needs them, or unset them.",
        ),
        FactGroup.ENVIRONMENT.part,
        shell_variables_fault,
    ),
    SetUpRule(
        PlacedRule(
            PreflightCheck.NAMED_FILES,
            "files that variables name exist",
            "Unset the variable, or load the module that provides the file on the nodes too.",
        ),
        "named files",
        named_files_fault,
    ),
    SetUpRule(
        PlacedRule(
            PreflightCheck.PRIORITY,
            "the job's processes have the usual priority",
            "Start the scheduler's daemon without nice on that node, and see PropagatePrioProcess.",
        ),
        FactGroup.SYSTEM.part,
        priority_fault,
    ),
    SetUpRule(
        PlacedRule(
            PreflightCheck.KEPT_SHARED_MEMORY,
            "files in /dev/shm stay when the user's last login session on the node ends "
            "(logind.conf(5), RemoveIPC)",
            "Ask the operators to set RemoveIPC=no in /etc/systemd/logind.conf of the nodes, and do "
            "not log in to a node while a job runs there.",
        ),
        FactGroup.SYSTEM.part,
        remove_ipc_fault,
    ),
    SetUpRule(
        PlacedRule(
            PreflightCheck.SYSTEM_FOLDERS,
            "/proc and /sys are mounted (NCCL reads the topology from /sys, torch the cores)",
            "Mount it on that node, or in the container.",
        ),
        FactGroup.SYSTEM.part,
        system_folders_fault,
    ),
    SetUpRule(
        PlacedRule(
            PreflightCheck.PACKET_SIZE,
            f"packets of {thresholds.PACKET_BYTES.value:.0f} bytes: {thresholds.PACKET_BYTES.source}",
            "Set the same MTU as on the other nodes and the switch (ip link set DEVICE mtu 1500).",
        ),
        FactGroup.NETWORK.part,
        packet_size_fault,
    ),
    SetUpRule(
        PlacedRule(
            PreflightCheck.COMPILERS,
            "compilers on PATH start: torch.compile, Triton and DeepSpeed call them",
            "Install the compiler again on that node, or remove its folder from PATH.",
        ),
        FactGroup.PROGRAMS.part,
        compilers_fault,
    ),
)


OPENING_RULE = SetUpRule(
    PlacedRule(
        PreflightCheck.OPENING_FILES,
        f"opening a file of Python's packages takes at most "
        f"{thresholds.OPEN_MILLISECONDS.value:g} ms: {thresholds.OPEN_MILLISECONDS.source}",
        "Put the environment on the node's own disk (jobs.environment_copy), or into an image.",
    ),
    "opening files",
    opening_fault,
)


def set_up_checks(answers: JobAnswers, expected: Expectations) -> list[PlacedCheck]:
    """Apply each rule to the nodes that answered."""
    checks = [_check(rule, answers, expected) for rule in SET_UP_RULES]
    return [*checks, opening_check(answers, expected)]


def opening_check(answers: JobAnswers, expected: Expectations) -> PlacedCheck:
    """Check how long it takes to open a file.

    A slow file system may be usual at a site. If other nodes open the files much faster, the path
    from this node to it is at fault.
    """
    check = _check(OPENING_RULE, answers, expected)
    facts = answers.facts(HOSTS, OPENING_RULE.part)
    quickest = min((float(each["milliseconds"]) for each in facts.values()), default=0.0)
    threshold = thresholds.OPEN_MILLISECONDS.value
    if check.verdict != "warn" or quickest > threshold / thresholds.OPEN_FACTOR.value:
        return check
    value = PhaseMessage.OPENED_FASTER.fill(value=check.value, milliseconds=quickest)
    return replace(check, verdict="fail", value=value)


def _check(rule: SetUpRule, answers: JobAnswers, expected: Expectations) -> PlacedCheck:
    faults = {}
    facts = answers.facts(HOSTS, rule.part)
    for node, of_node in facts.items():
        fault = rule.fault(of_node, expected)
        if fault:
            faults[node] = fault
    if faults:
        return rule.rule.broken(by_node(faults), list(faults), verdict=rule.verdict)
    return rule.rule.passed("no fault", ", ".join(facts))

"""Rules for the first stage: facts that a node reports about itself, in plain Python."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from runbook.core.checks import counted
from runbook.core.units import GIB, clock_seconds, show_bytes, show_duration
from runbook.jobs.render.preflight_job import NODE_SETUP, NODE_SETUP_SECONDS
from runbook.node_checks.answers import HOSTS, OWN_PACKAGE, ProgramEnd
from runbook.node_checks.networks import GLOO_VARIABLE
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight import thresholds
from runbook.phases.p01_environment.preflight.expectations import Expectations
from runbook.phases.p01_environment.preflight.job_answers import JOB, JobAnswers, NodeFacts
from runbook.phases.p01_environment.preflight.placed_check import (
    PlacedCheck,
    PlacedRule,
    PreflightCheck,
)
from runbook.phases.p01_environment.preflight.system_rules import (
    account_fault,
    devices_fault,
    foreign_programs_fault,
    home_fault,
    kernel_fault,
    packages_fault,
)

ANSWERED = "answers"
"""Prefix of the name of the check that every node answered."""
Fault = Callable[[NodeFacts, Expectations], str]
"""Returns what is wrong with a node, or an empty string."""
UNLIMITED = "unlimited"
INNER_ADDRESSES = ("127.", "::1", "fe80:")
"""Prefixes of addresses that refer to the node itself on every node."""
GRANTED_SLACK_SECONDS = 90
"""How much of a job's granted time may have passed when the check reads the remaining time."""

KINDS_OF_LIMITS = {
    "file_size": "file size",
    "stack": "stack",
    "address_space": "address space",
    "data": "private memory",
}


@dataclass(frozen=True)
class NodeRule:
    """A rule that is applied to each node separately."""

    rule: PlacedRule
    part: str
    fault: Fault
    shown: Callable[[NodeFacts], str]
    """Returns the value of a healthy node, which the row of a passed check shows."""
    verdict: str = "fail"


def judge_each_node(
    node_rule: NodeRule,
    answers: JobAnswers,
    expected: Expectations,
    rung: str = HOSTS,
) -> PlacedCheck:
    """Apply a rule to every node. A node without an answer breaks the rule."""
    silent = answers.missing(rung, node_rule.part)
    if silent:
        return node_rule.rule.broken(_by_node(silent), list(silent))
    facts = answers.facts(rung, node_rule.part)
    faults = {}
    for node, node_facts in facts.items():
        fault = node_rule.fault(node_facts, expected)
        if fault:
            faults[node] = fault

    if faults:
        return node_rule.rule.broken(_by_node(faults), list(faults), verdict=node_rule.verdict)
    texts = dict.fromkeys(node_rule.shown(node_facts) for node_facts in facts.values())
    return node_rule.rule.passed(" or ".join(texts), ", ".join(facts))


def _by_node(texts: Mapping[str, str]) -> str:
    """Return a text that groups the nodes with the same value.

    >>> _by_node({"n1": "64 KiB", "n2": "64 KiB", "n3": "8 KiB"})
    'n1, n2: 64 KiB; n3: 8 KiB'
    """
    nodes_of: dict[str, list[str]] = {}
    for node, text in texts.items():
        nodes_of.setdefault(text, []).append(node)
    return "; ".join(f"{', '.join(nodes)}: {text}" for text, nodes in nodes_of.items())


def _limit_text(value: int | None) -> str:
    if value is None:
        return UNLIMITED
    return show_bytes(value)


def memlock_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if the limit on locked memory is too low."""
    if expected.fabric:
        threshold = thresholds.MEMLOCK_FABRIC
    else:
        threshold = thresholds.MEMLOCK_PLAIN

    memlock = facts["memlock"]
    is_enough = memlock is None or memlock >= threshold.value
    # On a single machine, the 64 KiB limit of a laptop or an old login node does no harm.
    if is_enough or not expected.has_queue:
        return ""
    return f"{show_bytes(memlock)} may be locked, below {show_bytes(int(threshold.value))}"


def _smaller(first: int | None, second: int | None) -> int | None:
    """Return the smaller of two limits. None means unlimited."""
    return min((limit for limit in (first, second) if limit is not None), default=None)


def open_files_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if the limit on open files is too low."""
    limit = facts["nofile"]
    if limit is None or limit >= thresholds.OPEN_FILES.value:
        return ""
    return PhaseMessage.TOO_FEW_OPEN_FILES.fill(limit=limit, needed=thresholds.OPEN_FILES.value)


def processes_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if the limit on processes is too low."""
    for source, limit in (("a user", facts["nproc"]), ("the control group", facts["tasks"])):
        if limit is not None and limit < thresholds.PROCESSES.value:
            limit_text = f"{thresholds.PROCESSES.value:.0f}"
            return f"{limit} processes and threads for {source}, below {limit_text}"

    return ""


def process_limits_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the process limits that would end a training run after it has started.

    Login nodes often have such limits, and Slurm passes the submitting shell's limits on to the
    job. Answers from earlier versions of the checks lack these limits.
    """
    faults = []
    seconds = facts.get("cpu_seconds")
    if seconds is not None:
        faults.append(f"a process is killed after {show_duration(seconds)} of processor time (-t)")
    for name, threshold, option in (
        ("file_size", thresholds.FILE_SIZE, "-f"),
        ("stack", thresholds.STACK, "-s"),
        ("address_space", thresholds.ADDRESS_SPACE, "-v"),
        ("data", thresholds.DATA_SEGMENT, "-d"),
    ):
        limit = facts.get(name)
        needs_all = name in ("address_space", "data") and not expected.on_cpu
        if limit is not None and (needs_all or limit < threshold.value):
            kind = KINDS_OF_LIMITS[name]
            faults.append(f"{kind} is limited to {show_bytes(limit)} ({option})")

    return "; ".join(faults)


def shared_memory_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if /dev/shm is too small."""
    threshold = thresholds.SHM_CPU if expected.on_cpu else thresholds.SHM_GPU
    if facts["shm_error"]:
        return PhaseMessage.SHARED_MEMORY_UNWRITABLE.fill(error=facts["shm_error"])
    if facts["shm_total"] < threshold.value:
        size = show_bytes(facts["shm_total"])
        return f"/dev/shm has {size}, below {show_bytes(int(threshold.value))}"

    if facts["shm_free"] < threshold.value / 2:
        return (
            f"/dev/shm has {show_bytes(facts['shm_free'])} free of {show_bytes(facts['shm_total'])}"
        )

    return ""


def memory_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if the job's memory limit is far below what a process needs."""
    needed = max(1, expected.devices_per_node) * GIB
    limit = facts["limit"]
    if limit is not None and limit < needed:
        return f"the job may use {show_bytes(limit)}, below 1 GiB for each of its processes"
    left = facts.get("left")
    if left is not None and left < needed:
        return PhaseMessage.MEMORY_IN_USE.fill(limit=show_bytes(limit), left=show_bytes(left))
    if facts["total"] < thresholds.MEMORY_SHARE.value * expected.node_memory:
        return PhaseMessage.MEMORY_MISSING.fill(
            total=show_bytes(facts["total"]), stated=show_bytes(expected.node_memory)
        )
    if facts["available"] < needed:
        return f"{show_bytes(facts['available'])} free, below 1 GiB for each of its processes"
    return ""


def cores_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if a node has too few cores."""
    quota = facts["quota"]
    usable = facts["cores"] if quota is None else min(facts["cores"], quota)
    if expected.has_queue and expected.cores_per_node and usable < expected.cores_per_node:
        return f"{usable:g} cores, the site states {expected.cores_per_node}"
    return ""


def scratch_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if the node's temporary folder is unusable or nearly full."""
    tmpdir = facts["asked"]
    if tmpdir and tmpdir.rstrip("/") != facts["folder"].rstrip("/"):
        return f"TMPDIR={tmpdir} is not usable here; programs use {facts['folder']} instead"
    if not tmpdir and facts.get("default_error"):
        return PhaseMessage.TEMPORARY_FOLDER_UNWRITABLE.fill(
            error=facts["default_error"], folder=facts["folder"]
        )
    if facts["free"] < thresholds.SCRATCH.value:
        return f"{facts['folder']} has {show_bytes(facts['free'])} free"
    if facts["free_inodes"] is not None and facts["free_inodes"] < thresholds.FOLDER_INODES.value:
        return f"{facts['folder']} has {facts['free_inodes']} inodes free"
    return ""


def caches_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return a fault for each kernel cache that is read-only, shared, mounted noexec, or locked."""
    faults = []
    for variable, cache in facts.items():
        if cache["error"]:
            fault = PhaseMessage.CACHE_UNWRITABLE
        elif cache["is_shared"]:
            fault = PhaseMessage.CACHE_SHARED
        elif cache["refuses_libraries"]:
            fault = PhaseMessage.CACHE_WITHOUT_LIBRARIES
        elif cache.get("old_lock"):
            fault = PhaseMessage.CACHE_LOCKED
        else:
            continue
        faults.append(fault.fill(variable=variable, **cache))

    return "; ".join(faults)


def names_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the names of other nodes that this node cannot resolve, or resolves to itself."""
    faults = [f"{name}: {error}" for name, error in facts["errors"].items()]
    for name, addresses in facts["addresses"].items():
        leads_here = all(address.startswith("127.") or address == "::1" for address in addresses)
        if leads_here and name != facts["own"]:
            faults.append(f"{name} is {', '.join(addresses)}, which is this node itself")

    for name, seconds in facts.get("seconds", {}).items():
        if seconds > thresholds.NAME_SECONDS.value:
            faults.append(PhaseMessage.NAME_SLOW.fill(name=name, time=show_duration(seconds)))

    return "; ".join(faults)


def folder_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong with a shared folder, or an empty string."""
    folder = facts["folder"]
    mount = f"{facts['file_system']} at {facts['mount_point']}"
    if facts["errors"]:
        errors = ", ".join(f"{step}: {error}" for step, error in facts["errors"].items())
        return f"{folder} ({mount}): {errors}"

    if facts["read_only"]:
        return f"{folder} ({mount}) is mounted read-only"
    if facts["token"] == "other":
        return (
            f"{folder} ({mount}) has different content than on the submitting machine: "
            f"it is another folder, or a stale view"
        )

    if facts["token"] != "same":
        return f"{folder} ({mount}): {facts['token']}"
    if facts["free_inodes"] is not None and facts["free_inodes"] < thresholds.FOLDER_INODES.value:
        return f"{folder} ({mount}) has {facts['free_inodes']} inodes free"
    if facts.get("write_seconds", 0.0) > thresholds.FOLDER_WRITE.value:
        return PhaseMessage.FOLDER_SLOW.fill(
            folder=folder, mount=mount, time=show_duration(facts["write_seconds"])
        )
    if facts["free"] < expected.checkpoint_bytes:
        free = show_bytes(facts["free"])
        return (
            f"{folder} ({mount}) has {free} free, a checkpoint needs "
            f"{show_bytes(expected.checkpoint_bytes)}"
        )

    return ""


def unseen_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return the nodes whose files are not visible in a shared folder."""
    if not facts["unseen"]:
        return ""
    mount = f"{facts['file_system']} at {facts['mount_point']}"
    return (
        f"{facts['folder']} ({mount}) does not show what was written by "
        f"{', '.join(facts['unseen'])}"
    )


def _folder_text(facts: NodeFacts) -> str:
    return (
        f"{facts['folder']}: the same view, write, rename, link, lock, map ({facts['file_system']})"
    )


def ports_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if the kernel's port range is too small."""
    ports = facts.get("ports")
    if ports is None or ports >= thresholds.PORTS.value:
        return ""
    return f"the kernel chooses from {ports} ports, below {thresholds.PORTS.value:.0f}"


def program_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return a different Python that precedes, on PATH, the `python3` that runs here.

    A different Python later on PATH, as on most systems, is never started by mistake. If the job's
    own Python is not on PATH, there is no fault either.
    """
    if not _is_found_by_name(facts):
        return ""
    return _python_in_front(facts)


def named_program_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return a different Python that comes before the site file's Python on PATH."""
    if _is_found_by_name(facts):
        return ""
    return _python_in_front(facts)


def _is_found_by_name(facts: NodeFacts) -> bool:
    """Return whether `python3` on PATH is the Python that the job runs."""
    return bool(facts["programs"].get("python3", {}).get("is_own", False))


def _python_in_front(facts: NodeFacts) -> str:
    own_place = facts["own_place"]
    if own_place is None:
        return ""
    for name, program in facts["programs"].items():
        place = program["place"]
        if program["is_own"] or place is None or place >= own_place:
            continue
        if program["ended"] == ProgramEnd.FAILED.value:
            return PhaseMessage.BROKEN_PYTHON_IN_FRONT.fill(
                name=name,
                path=program["path"],
                executable=facts["executable"],
            )
        if program["ended"] == ProgramEnd.WELL.value:
            return PhaseMessage.PYTHON_IN_FRONT.fill(
                name=name,
                path=program["path"],
                version=program["version"],
                executable=facts["executable"],
            )

    return ""


def file_clock_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if the node's clock differs too much from the file server's."""
    ahead = facts["ahead"]
    if abs(ahead) <= thresholds.CLOCK.value:
        return ""
    direction = "behind" if ahead > 0 else "ahead of"
    return f"its clock is {show_duration(abs(ahead))} {direction} the file server's"


PYTHON_RULE = PlacedRule(
    PreflightCheck.PYTHON_ON_PATH,
    "no other `python` or `python3` precedes the job's Python on PATH",
    "Remove its folder from PATH, or move it to the end: scripts and builds of extensions that "
    "call `python` get a different environment than the training.",
)
NODE_RULES = (
    NodeRule(
        PlacedRule(
            PreflightCheck.PACKAGES_FOLDER,
            "the compiled libraries of Python's packages can be loaded",
            "Mount that file system without noexec there (mount -o remount,exec), or put the "
            "environment on another one.",
        ),
        "software",
        packages_fault,
        lambda facts: str(facts.get("packages_folder", "")),
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.USER_ACCOUNT,
            "each node knows the job's user (getpwuid)",
            "Repair the user database of that node (sssd, nslcd, /etc/passwd): `id` fails there.",
        ),
        "account",
        account_fault,
        lambda facts: facts["user"],
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.DEVICE_FILES,
            "/dev/null, /dev/zero and /dev/urandom are the kernel's devices",
            "Create it again there, for example: rm -f /dev/null; mknod -m 666 /dev/null c 1 3.",
        ),
        "devices",
        devices_fault,
        lambda facts: "as the kernel made them",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.KERNEL_SETTINGS,
            "; ".join(
                f"{name} at least {threshold.value:.0f}: {threshold.source}"
                for name, threshold in thresholds.KERNEL_SETTINGS.items()
            ),
            "Set it on that node (sysctl -w), and in /etc/sysctl.d, so that it stays.",
        ),
        "kernel",
        kernel_fault,
        lambda facts: "as Linux has them, or higher",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.FOREIGN_PROGRAMS,
            "no program of this user computes on a node of the job without belonging to the job",
            "End what an earlier job left there (kill PID on that node), or wait for your other job.",
        ),
        "foreign programs",
        foreign_programs_fault,
        lambda facts: "none that computes",
    ),
    NodeRule(PYTHON_RULE, "programs", program_fault, lambda facts: facts["executable"]),
    # Our own programs are started by their path, so only builds of extensions could use the wrong
    # Python.
    NodeRule(
        PYTHON_RULE,
        "programs",
        named_program_fault,
        lambda facts: facts["executable"],
        verdict="warn",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.LOCKED_MEMORY,
            f"{thresholds.MEMLOCK_FABRIC.source}",
            "Start the scheduler's daemon with LimitMEMLOCK=infinity (systemd) and UsePAM off, or "
            "raise memlock in /etc/security/limits.d. With Slurm also set "
            "PropagateResourceLimitsExcept=MEMLOCK.",
        ),
        "limits",
        memlock_fault,
        lambda facts: _limit_text(facts["memlock"]),
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.OPEN_FILES,
            f"at least {thresholds.OPEN_FILES.value:.0f}: {thresholds.OPEN_FILES.source}",
            (
                "Add `ulimit -n` with the hard limit to the site's setup, or raise nofile in "
                "/etc/security/limits.d."
            ),
        ),
        "limits",
        open_files_fault,
        lambda facts: str(facts["nofile"] or UNLIMITED),
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.PROCESSES,
            f"at least {thresholds.PROCESSES.value:.0f}: {thresholds.PROCESSES.source}",
            (
                "Raise nproc in /etc/security/limits.d, or TasksMax of the scheduler's unit "
                "(pids.max)."
            ),
        ),
        "limits",
        processes_fault,
        lambda facts: str(facts["nproc"] or UNLIMITED),
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.PROCESS_LIMITS,
            "no limit on processor time, and room for "
            f"{show_bytes(int(thresholds.FILE_SIZE.value))} in a file, "
            f"{show_bytes(int(thresholds.STACK.value))} of stack, and address space "
            f"({thresholds.ADDRESS_SPACE.source})",
            "Raise them in the shell that submits the job (`ulimit` with the named option; Slurm "
            "passes them on), or in /etc/security/limits.d of the node, or set "
            "PropagateResourceLimitsExcept=CPU,FSIZE,STACK,AS,DATA.",
        ),
        "limits",
        process_limits_fault,
        lambda facts: "no limit that would end a training run",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.SHARED_MEMORY,
            f"NCCL and data loaders put buffers there: {thresholds.SHM_GPU.source}",
            (
                "In a container: --shm-size or a mount of the host's /dev/shm; on the node: mount "
                "-o remount,size=... /dev/shm."
            ),
        ),
        "memory",
        shared_memory_fault,
        lambda facts: f"{show_bytes(facts['shm_total'])} in /dev/shm",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.HOST_MEMORY,
            "the job's control group leaves memory for its processes",
            "Set jobs.<phase>.memory (Slurm: 0 is all memory of the node), and end programs that an "
            "earlier job left there (ps aux --sort=-rss).",
        ),
        "memory",
        memory_fault,
        lambda facts: f"{show_bytes(facts['limit'] or facts['total'])}",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.CORES,
            "a process can use as many cores as the site states",
            "Request them (jobs.<phase>.cpus_per_task), or correct hardware.cores_per_node.",
        ),
        "cores",
        cores_fault,
        lambda facts: f"{facts['cores']} cores",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.PORT_RANGE,
            f"at least {thresholds.PORTS.value:.0f} ports: {thresholds.PORTS.source}",
            "Widen net.ipv4.ip_local_port_range (sysctl) on that node.",
        ),
        "limits",
        ports_fault,
        lambda facts: f"{facts.get('ports') or UNLIMITED} ports",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.TEMPORARY_FOLDER,
            "caches and sockets can be written to the node's own disk",
            "Clean the node's /tmp, or name another folder in TMPDIR.",
        ),
        "scratch",
        scratch_fault,
        lambda facts: f"{facts['folder']}, {show_bytes(facts['free'])} free",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.NODE_NAMES,
            "every node's name resolves on every node, to another node's address, within "
            f"{show_duration(thresholds.NAME_SECONDS.value)} ({thresholds.NAME_SECONDS.source})",
            (
                "Fix /etc/hosts or the DNS of these nodes. If a name resolves to 127.0.1.1, gloo "
                "listens on an address that other nodes cannot reach. If it is slow, remove the "
                "server that does not answer from /etc/resolv.conf."
            ),
        ),
        "names",
        names_fault,
        lambda facts: f"{counted(len(facts['addresses']), 'name')} resolved",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.KERNEL_CACHES,
            "caches of compiled kernels accept files and libraries and are on the node's own disk "
            "(triton issue 11512, pytorch issue 173679)",
            "Delete the folder of an old lock: the build that made it was killed, and another build "
            "waits for it. Unset these variables, so that jobs put the caches in /tmp. Or set "
            "RUNBOOK_CACHE to a folder on the node's own disk that is mounted without noexec.",
        ),
        "caches",
        caches_fault,
        lambda facts: "on the node's own disk",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.CLOCK,
            (
                f"clocks of nodes and file server agree within {thresholds.CLOCK.value:g} s: "
                f"{thresholds.CLOCK.source}"
            ),
            ("Start a time service (chrony) there: the clock orders heartbeats and log lines."),
        ),
        "clock",
        file_clock_fault,
        lambda facts: "agrees with the file server's",
    ),
)


NODE_SETUP_RULE = PlacedRule(
    PreflightCheck.NODE_SETUP,
    "each command of the site's node_setup exits with 0 on every node, within "
    f"{show_duration(NODE_SETUP_SECONDS)}",
    "Correct node_setup in the site file: the training job ends if one of its commands fails.",
)


def node_setup_checks(answers: JobAnswers) -> list[PlacedCheck]:
    """Check the result of the site's own commands on each node, before all other checks.

    Return no check if the site has no such commands.
    """
    code = answers.exit_code(NODE_SETUP)
    if code is None:
        return []
    if code:
        return [NODE_SETUP_RULE.broken(PhaseMessage.ENDED_WITH_EXIT_CODE.fill(code=code))]
    return [NODE_SETUP_RULE.passed("done", ", ".join(answers.nodes))]


def host_checks(answers: JobAnswers, expected: Expectations) -> list[PlacedCheck]:
    """Check the first stage: site commands, missing answers, limits, software and the other rules."""
    setup = node_setup_checks(answers)
    if any(check.verdict == "fail" for check in setup):
        return setup
    return [*setup, *_answered_checks(answers, expected)]


def _answered_checks(answers: JobAnswers, expected: Expectations) -> list[PlacedCheck]:
    """Check the answers of the nodes, or name the nodes that did not answer."""
    presence = presence_check(answers, HOSTS)
    if presence.verdict == "fail":
        return [presence]
    parts = [part for part in answers.parts(HOSTS) if part.startswith("folder")]
    folders = folder_checks(answers, expected, parts)
    can_compare_clocks = all(check.verdict == "pass" for check in folders)
    rules = []
    for rule in NODE_RULES:
        if can_compare_clocks or rule.part != "clock":
            rules.append(rule)

    return [
        presence,
        granted_time_check(answers, expected),
        *folders,
        versions_check(answers),
        sources_check(answers),
        interfaces_check(answers, expected),
        *[judge_each_node(node_rule, answers, expected) for node_rule in rules],
        equal_memory_check(answers),
        home_check(answers, expected),
        host_names_check(answers),
        foreign_addresses_check(answers),
        slow_core_check(answers),
    ]


def presence_check(answers: JobAnswers, rung: str) -> PlacedCheck:
    """Check that each node of the job answered."""
    rule = PlacedRule(
        f"{ANSWERED} ({rung})",
        "every node of the job starts the program and answers",
        (
            "See err in the job's folder. The shared folder, the container or Python is missing on "
            "that node."
        ),
    )
    silent = []
    for node in answers.nodes:
        if all(answers.answer(rung, node, part) is None for part in answers.parts(rung)):
            silent.append(node)

    if silent or not answers.nodes:
        value = f"{len(answers.nodes) - len(silent)} of {len(answers.nodes)} nodes answered"
        return rule.broken(f"{value}; no answer from {', '.join(silent) or 'the job'}", silent)

    return rule.passed(
        f"{len(answers.nodes)} of {len(answers.nodes)} nodes", ", ".join(answers.nodes)
    )


def granted_time_check(answers: JobAnswers, expected: Expectations) -> PlacedCheck:
    """Check that the queue granted the time that the job requested."""
    rule = PlacedRule(
        PreflightCheck.TIME_GRANTED,
        "the queue grants the requested time",
        "Request less (jobs.environment.walltime), or another partition.",
    )
    job = answers.answers.get((JOB, "", "nodes"))
    time_left = str(job.facts.get("time_left", "")) if job is not None else ""
    if not expected.walltime or not time_left:
        return rule.passed("no limit is known")
    granted = clock_seconds(time_left)
    value = PhaseMessage.TIME_GRANTED.fill(
        granted=show_duration(granted), asked=show_duration(expected.walltime)
    )
    if granted and granted + GRANTED_SLACK_SECONDS < expected.walltime:
        return rule.broken(value)
    return rule.passed(value)


def versions_check(answers: JobAnswers) -> PlacedCheck:
    """Check that all nodes have the same packages.

    Name each package and node with a different version.
    """
    rule = PlacedRule(
        PreflightCheck.VERSIONS,
        "Python and every package have the same version on all nodes",
        "Give all nodes the same image or environment; these nodes have a different one.",
    )
    silent = answers.missing(HOSTS, "software")
    if silent:
        return rule.broken(_by_node(silent), list(silent))
    facts = answers.facts(HOSTS, "software")
    versions = {}
    for node, node_facts in facts.items():
        versions[node] = {"python": node_facts["python"], **node_facts["packages"]}

    differences, odd_nodes = different_versions(versions)
    if differences:
        return rule.broken("; ".join(differences), odd_nodes)
    return rule.passed("the same on all nodes", ", ".join(facts))


def sources_check(answers: JobAnswers) -> PlacedCheck:
    """Check that packages of the same version have the same source files on all nodes."""
    rule = PlacedRule(
        PreflightCheck.PACKAGE_SOURCES,
        "a package has the same source files on all nodes, not only the same version",
        "Give all nodes the same checkout or image: update this folder to the same commit, and "
        "look for local changes (`git status` there).",
    )
    silent = answers.missing(HOSTS, "sources")
    if silent:
        return rule.broken(_by_node(silent), list(silent))
    facts = answers.facts(HOSTS, "sources")
    # A node with a cold file cache may have run out of time before the last packages.
    common = set.intersection(*(set(node_facts) for node_facts in facts.values()))
    sources: dict[str, dict[str, str | None]] = {}
    for node, node_facts in facts.items():
        of_node: dict[str, str | None] = {}
        for package, source in node_facts.items():
            if package in common:
                of_node[package] = source["checksum"]
        sources[node] = of_node

    differences, odd_nodes = different_versions(sources)
    if differences:
        folders = [_source_folder(facts, text.partition(" ")[0]) for text in differences]
        value = "; ".join(
            PhaseMessage.DIFFERENT_SOURCES.fill(versions=text, folder=folder)
            for text, folder in zip(differences, folders, strict=True)
        )
        return rule.broken(value, odd_nodes)
    not_reached = _not_reached(facts)
    if not_reached:
        return rule.broken(
            _by_node(not_reached), list(not_reached), remedy=READ_AGAIN, verdict="warn"
        )
    return rule.passed(", ".join(sorted(common)), ", ".join(facts))


READ_AGAIN = (
    "Repeat the preflight: the files are then in the cache. If that does not help, the node reads "
    "them too slowly, or the package is not installed there (see the check `versions`)."
)


def _not_reached(facts: Mapping[str, NodeFacts]) -> dict[str, str]:
    """Return, for each node, the packages that only other nodes have read.

    Our own package must be on every node, so it counts even if no node read it.
    """
    packages = {OWN_PACKAGE}.union(*facts.values())
    not_reached = {}
    for node, node_facts in facts.items():
        names = sorted(packages - set(node_facts))
        if names:
            not_reached[node] = PhaseMessage.SOURCES_NOT_READ.fill(packages=", ".join(names))

    return not_reached


def _source_folder(facts: Mapping[str, NodeFacts], package: str) -> str:
    """Return the folder of a package, or the folder on each node if they differ."""
    folders = {node: str(node_facts[package]["folder"]) for node, node_facts in facts.items()}
    if len(set(folders.values())) == 1:
        return next(iter(folders.values()))
    return _by_node(folders)


def different_versions(
    versions: Mapping[str, Mapping[str, str | None]],
) -> tuple[list[str], list[str]]:
    """Return a text for each package whose versions differ, and the nodes not in the majority.

    >>> different_versions({"n1": {"torch": "2.5"}, "n2": {"torch": "2.4"}, "n3": {"torch": "2.5"}})
    (['torch 2.4 on n2, 2.5 on n1 and 1 more'], ['n2'])
    """
    texts = []
    odd_nodes: list[str] = []
    packages = dict.fromkeys(name for packages in versions.values() for name in packages)
    for package in packages:
        nodes_of: dict[str, list[str]] = {}
        for node, node_versions in versions.items():
            nodes_of.setdefault(node_versions.get(package) or "(none)", []).append(node)
        if len(nodes_of) < 2:
            continue
        rarest_first = sorted(nodes_of.items(), key=lambda item: len(item[1]))
        parts = [
            PhaseMessage.VERSION_ON_NODES.fill(version=version, nodes=_some_nodes(nodes))
            for version, nodes in rarest_first
        ]
        texts.append(
            PhaseMessage.DIFFERENT_VERSIONS.fill(package=package, versions=", ".join(parts))
        )
        majority = len(rarest_first[-1][1])
        is_tie = len(rarest_first[-2][1]) == majority
        for _, nodes in rarest_first:
            # With only two nodes, it is unclear which one is wrong.
            if is_tie or len(nodes) < majority:
                odd_nodes += nodes

    return texts, list(dict.fromkeys(odd_nodes))


def _some_nodes(nodes: Sequence[str]) -> str:
    if len(nodes) == 1:
        return nodes[0]
    return f"{nodes[0]} and {len(nodes) - 1} more"


def folder_checks(
    answers: JobAnswers,
    expected: Expectations,
    folders: Sequence[str],
) -> list[PlacedCheck]:
    """Check each folder that the nodes share."""
    return [_folder_check(answers, expected, folder) for folder in folders]


def _folder_check(answers: JobAnswers, expected: Expectations, part: str) -> PlacedCheck:
    """Check one folder.

    If a node cannot write there, files that other nodes miss are not reported.
    """
    rule = PlacedRule(
        PreflightCheck.SHARED_FOLDER,
        (
            "every node sees the same folder and can write, rename, link, lock and map files "
            "there; one checkpoint fits"
        ),
        (
            "Mount it on these nodes as on the others, free space, or choose another folder "
            "(jobs.stage, --runs)."
        ),
    )
    folder_check = judge_each_node(
        NodeRule(rule, part, folder_fault, _folder_text), answers, expected
    )
    if folder_check.verdict == "fail":
        return folder_check
    return judge_each_node(NodeRule(rule, part, unseen_fault, _folder_text), answers, expected)


def interfaces_check(answers: JobAnswers, expected: Expectations) -> PlacedCheck:
    """Check the interfaces that environment variables name.

    Each interface must exist, be up and have an address on every node.
    """
    rule = PlacedRule(
        PreflightCheck.NETWORK_INTERFACE,
        "each interface that the environment names exists, is up and has an address",
    )
    silent = answers.missing(HOSTS, "interfaces")
    if silent:
        return rule.broken(_by_node(silent), list(silent))
    faults = {}
    offered = {}
    for node, facts in answers.facts(HOSTS, "interfaces").items():
        fault = interface_fault(facts, expected)
        if fault:
            faults[node] = fault
            offered[node] = _usable_interfaces(facts)

    if faults:
        remedy = PhaseMessage.NAME_OFFERED_INTERFACES.fill(offered=_by_node(offered))
        return rule.broken(_by_node(faults), list(faults), remedy=remedy)

    return rule.passed("as named", ", ".join(answers.nodes))


def interface_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return why an interface that a variable names is unusable, or an empty string."""
    for variable, value in facts["chosen"].items():
        if variable == GLOO_VARIABLE:
            problem = _exact_interfaces_problem(value, facts["interfaces"], expected)
        else:
            problem = _named_interface_problem(value, facts["interfaces"], expected)
        if problem:
            return f"{variable}={value}: {problem}"

    loopback = facts["interfaces"].get("lo")
    if loopback is not None and not _is_usable(loopback):
        return PhaseMessage.LOOPBACK_UNUSABLE.fill(
            problem=_unusable_text("lo", facts["interfaces"])
        )
    inactive = []
    for port, state in facts["infiniband"].items():
        if "ACTIVE" not in state:
            inactive.append(port)

    if expected.fabric == "verbs" and inactive and len(inactive) == len(facts["infiniband"]):
        return f"no InfiniBand port is active: {', '.join(inactive)}"
    return ""


def _named_interface_problem(
    value: str,
    interfaces: Mapping[str, NodeFacts],
    expected: Expectations,
) -> str:
    """Return why a variable does not name a usable interface, or an empty string if it does."""
    # `^eth` excludes interfaces by prefix; any other interface may be used.
    if value.startswith("^"):
        return ""
    prefixes = _interface_prefixes(value)
    if not prefixes:
        return ""

    matching = [name for name in interfaces if name.startswith(prefixes)]
    if not matching:
        return "there is no such interface"

    usable = [name for name in matching if _is_usable(interfaces[name])]
    if usable:
        is_loopback_only = set(usable) == {"lo"}
        if is_loopback_only and expected.has_queue:
            return "lo reaches no other node"
        return ""

    return _unusable_text(matching[0], interfaces)


def _exact_interfaces_problem(
    value: str,
    interfaces: Mapping[str, NodeFacts],
    expected: Expectations,
) -> str:
    """Return the first unusable interface in Gloo's list with the reason, or an empty string.

    Gloo opens every interface in the list, and treats no name as a prefix.
    """
    names = [name for name in value.split(",") if name]
    for name in names:
        if name not in interfaces:
            return (
                "there is no such interface" if len(names) == 1 else f"there is no interface {name}"
            )
        if not _is_usable(interfaces[name]):
            return _unusable_text(name, interfaces)

    if "lo" in names and expected.has_queue:
        return "lo reaches no other node"
    return ""


def _unusable_text(name: str, interfaces: Mapping[str, NodeFacts]) -> str:
    if interfaces[name]["is_up"]:
        return f"{name} has no address"
    return f"{name} is down"


def _interface_prefixes(value: str) -> tuple[str, ...]:
    """Return the name prefixes in a list such as `=hsn0,eth` or `mlx5_0:1`.

    NCCL reads a name as a prefix. A leading `=` requests exactly that name, and `:1` is a port of a
    device.
    """
    names = []
    for name in value.split(","):
        if name:
            names.append(name.lstrip("=").partition(":")[0])

    return tuple(names)


def _is_usable(interface: NodeFacts) -> bool:
    return bool(interface["is_up"] and interface["address"])


def _usable_interfaces(facts: NodeFacts) -> str:
    usable = []
    for name, interface in facts["interfaces"].items():
        if _is_usable(interface) and name != "lo":
            usable.append(name)

    return ", ".join([*usable, *facts["infiniband"]]) or "none is up"


def equal_memory_check(answers: JobAnswers) -> PlacedCheck:
    """Warn if a node has less main memory than the others, as after a module of memory failed.

    Queues with two kinds of nodes are sound, so it is no defect.
    """
    rule = PlacedRule(
        PreflightCheck.EQUAL_MEMORY,
        f"no node has less than {thresholds.MEMORY_SHARE.value:.0%} of the memory of another one",
        "Look for failed modules there (dmidecode -t memory, ipmitool sel list).",
    )
    totals = {node: facts["total"] for node, facts in answers.facts(HOSTS, "memory").items()}
    largest = max(totals.values(), default=0)
    faults = {}
    for node, total in totals.items():
        if total < thresholds.MEMORY_SHARE.value * largest:
            faults[node] = PhaseMessage.LESS_MEMORY.fill(
                total=show_bytes(total), largest=show_bytes(largest)
            )

    if faults:
        return rule.broken(_by_node(faults), list(faults), verdict="warn")
    return rule.passed(show_bytes(largest), ", ".join(totals))


def home_check(answers: JobAnswers, expected: Expectations) -> PlacedCheck:
    """Check that the home folder accepts files.

    Some sites mount it read-only on all compute nodes, so it is a defect only if nodes differ.
    """
    rule = PlacedRule(
        PreflightCheck.HOME_FOLDER,
        "files can be written to the home folder, where programs keep settings and caches",
        "Mount it on that node as on the others, or check its quota.",
    )
    on_each = judge_each_node(
        NodeRule(rule, "account", home_fault, lambda facts: facts["home"]), answers, expected
    )
    if on_each.verdict == "fail" and len(on_each.nodes) == len(answers.nodes):
        return replace(on_each, verdict="warn")
    return on_each


def host_names_check(answers: JobAnswers) -> PlacedCheck:
    """Check that each node has its own host name, because ranks and NCCL identify nodes by it."""
    rule = PlacedRule(
        PreflightCheck.HOST_NAMES,
        (
            "each node has its own host name, which is not localhost (NCCL and torch tell nodes "
            "apart by it)"
        ),
        (
            "Set it on these nodes: hostnamectl set-hostname NAME. Cloud images often start as "
            "localhost."
        ),
    )
    hosts = {node: str(facts["host"]) for node, facts in answers.facts(HOSTS, "names").items()}
    num_nodes_of = Counter(hosts.values())
    faults = {}
    for node, host in hosts.items():
        if host.partition(".")[0] in ("localhost", ""):
            faults[node] = f"its host name is {host or 'empty'}"
        elif num_nodes_of[host] > 1:
            faults[node] = f"{num_nodes_of[host]} nodes have the host name {host}"

    if faults:
        return rule.broken(_by_node(faults), list(faults))
    return rule.passed(counted(len(num_nodes_of), "name"), ", ".join(hosts))


def foreign_addresses_check(answers: JobAnswers) -> PlacedCheck:
    """Check that each node's name resolves to an address that the node really has.

    The name is resolved on every other node.
    """
    rule = PlacedRule(
        PreflightCheck.NODE_ADDRESSES,
        "a node's name resolves to an address of that node",
        ("Fix /etc/hosts or the DNS of these nodes: they reach another machine under this name."),
    )
    own_addresses = {}
    for node, facts in answers.facts(HOSTS, "interfaces").items():
        if facts["addresses"]:
            own_addresses[node] = set(facts["addresses"])

    faults = {}
    for node, facts in answers.facts(HOSTS, "names").items():
        for name, addresses in facts["addresses"].items():
            has_address = own_addresses.get(name)
            if has_address is not None and not has_address & set(addresses):
                own_outer_addresses = []
                for address in sorted(has_address):
                    if not address.startswith(INNER_ADDRESSES):
                        own_outer_addresses.append(address)

                faults[node] = (
                    f"{name} is {', '.join(addresses)}, which {name} does not have "
                    f"(it has {', '.join(own_outer_addresses)})"
                )

    faults |= _second_owners(answers, own_addresses)
    if faults:
        return rule.broken(_by_node(faults), list(faults))
    return rule.passed(
        f"{counted(len(own_addresses), 'name')} resolved to the right node",
        ", ".join(answers.nodes),
    )


def _second_owners(answers: JobAnswers, own_addresses: Mapping[str, set[str]]) -> dict[str, str]:
    """Return, for each node that has the address of another node as well, which address that is.

    Only addresses to which names resolve count: bridges of containers have the same address on all
    nodes.
    """
    faults = {}
    for facts in answers.facts(HOSTS, "names").values():
        for name, addresses in facts["addresses"].items():
            outer_addresses = {each for each in addresses if not each.startswith(INNER_ADDRESSES)}
            for node, of_node in own_addresses.items():
                if node != name and outer_addresses & of_node:
                    faults[node] = PhaseMessage.SECOND_OWNER.fill(
                        address=", ".join(sorted(outer_addresses & of_node)), name=name
                    )

    return faults


def slow_core_check(answers: JobAnswers) -> PlacedCheck:
    """Check that no core is much slower than usual for its processor."""
    rule = PlacedRule(
        PreflightCheck.SLOW_CORE,
        (
            f"no core needs {thresholds.SLOW_CORE.value:g} times the usual time: "
            f"{thresholds.SLOW_CORE.source}"
        ),
        (
            "Check the node's clock rate and temperature (turbostat, ipmitool), and exclude the "
            "node until it is fixed."
        ),
    )
    facts = answers.facts(HOSTS, "cores")
    if not facts:
        return rule.broken("no node answered", list(answers.nodes))
    quickest: dict[str, float] = {}
    for node_facts in facts.values():
        model = node_facts["model"]
        seconds = float(node_facts["loop_seconds"])
        quickest[model] = min(seconds, quickest.get(model, seconds))

    faults = {}
    for node, node_facts in facts.items():
        factor = node_facts["slowest_seconds"] / quickest[node_facts["model"]]
        if factor >= thresholds.SLOW_CORE.value:
            faults[node] = f"core {node_facts['slowest_core']} needs {factor:.1f} times as long"

    if faults:
        return rule.broken(_by_node(faults), list(faults))
    models = Counter(node_facts["model"] for node_facts in facts.values())
    return rule.passed(", ".join(models) or "all alike", ", ".join(facts))

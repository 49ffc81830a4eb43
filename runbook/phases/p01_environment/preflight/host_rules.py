"""Rules for the first stage: limits, memory, cores and setup of a node. It lists all rules.

`NODE_RULES` has the name, remedy and verdict of each rule for a single node. The functions that
find the faults are in this file, folder_rules.py, software_rules.py, interface_rules.py and
system_rules.py.
"""

from collections import Counter
from dataclasses import replace

from runbook.core.checks import counted
from runbook.core.units import GIB, clock_seconds, show_bytes, show_duration
from runbook.jobs.render.preflight_job import NODE_SETUP, NODE_SETUP_SECONDS
from runbook.node_checks.answers import HOSTS
from runbook.phases.messages import PhaseMessage
from runbook.phases.p01_environment.preflight import thresholds
from runbook.phases.p01_environment.preflight.expectations import Expectations
from runbook.phases.p01_environment.preflight.folder_rules import file_clock_fault, folder_checks
from runbook.phases.p01_environment.preflight.interface_rules import (
    foreign_addresses_check,
    host_names_check,
    interfaces_check,
    names_fault,
    routes_fault,
)
from runbook.phases.p01_environment.preflight.job_answers import JOB, JobAnswers, NodeFacts
from runbook.phases.p01_environment.preflight.node_differences import difference_checks
from runbook.phases.p01_environment.preflight.node_rules import (
    NodeRule,
    by_node,
    judge_each_node,
    presence_check,
)
from runbook.phases.p01_environment.preflight.placed_check import (
    PlacedCheck,
    PlacedRule,
    PreflightCheck,
)
from runbook.phases.p01_environment.preflight.set_up_rules import set_up_checks
from runbook.phases.p01_environment.preflight.software_rules import (
    REPLACED_REMEDY,
    REPLACED_RULE,
    cut_libraries_fault,
    named_program_fault,
    program_fault,
    replaced_packages_fault,
    sources_check,
    versions_check,
)
from runbook.phases.p01_environment.preflight.system_rules import (
    account_fault,
    devices_fault,
    foreign_programs_fault,
    home_fault,
    kernel_fault,
    left_programs_fault,
    other_job_fault,
    packages_fault,
    scheduler_fault,
)

UNLIMITED = "unlimited"


GRANTED_SLACK_SECONDS = 90
"""How much of the granted time a job may have used before the check reads the remaining time."""


KINDS_OF_LIMITS = {
    "file_size": "file size",
    "stack": "stack",
    "address_space": "address space",
    "data": "private memory",
}
LONGEST_SOCKET_PATH = 107
"""Longest path to a socket in bytes, without the terminating zero (unix(7))."""
SOCKET_NAME_LETTERS = len("/pymp-12345678/listener-12345678")
"""Characters that multiprocessing appends to the temporary folder's path for a socket."""


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
    """Return a description of the fault if /dev/shm is too small."""
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
    """Return what is wrong if the job memory limit is far below what a process needs."""
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
        return f"{usable:g} cores, but the site states {expected.cores_per_node}"
    return ""


def scratch_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if the node's temporary folder is unusable or nearly full."""
    tmpdir = facts["asked"]
    if tmpdir and tmpdir.rstrip("/") != facts["folder"].rstrip("/"):
        return PhaseMessage.TEMPORARY_FOLDER_ASKED.fill(
            tmpdir=tmpdir, error=facts.get("asked_error") or "unknown", folder=facts["folder"]
        )
    if not tmpdir and facts.get("default_error"):
        return PhaseMessage.TEMPORARY_FOLDER_UNWRITABLE.fill(
            error=facts["default_error"], folder=facts["folder"]
        )
    if facts["free"] < thresholds.SCRATCH.value:
        return f"{facts['folder']} has {show_bytes(facts['free'])} free"
    if facts["free_inodes"] is not None and facts["free_inodes"] < thresholds.FOLDER_INODES.value:
        return f"{facts['folder']} has {facts['free_inodes']} inodes free"
    return ""


def temporary_path_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if a socket below the temporary folder would have too long a path."""
    length = len(facts["folder"].encode())
    if length + SOCKET_NAME_LETTERS > LONGEST_SOCKET_PATH:
        return PhaseMessage.TEMPORARY_PATH_TOO_LONG.fill(
            folder=facts["folder"], length=length, most=LONGEST_SOCKET_PATH - SOCKET_NAME_LETTERS
        )
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


def stores_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return each full folder that programs of the job write to.

    A site may mount such a folder read-only on purpose. Our own trainer downloads nothing, so the
    default of a variable counts for upstream programs only.
    """
    faults = []
    for variable, store in facts.items():
        is_written = store["is_set"] or expected.framework != "runbook"
        if store["is_full"] and is_written:
            faults.append(PhaseMessage.CACHE_UNWRITABLE.fill(variable=variable, **store))

    return "; ".join(faults)


def ports_fault(facts: NodeFacts, expected: Expectations) -> str:
    """Return what is wrong if the kernel's port range is too small."""
    ports = facts.get("ports")
    if ports is None or ports >= thresholds.PORTS.value:
        return ""
    return f"the kernel chooses from {ports} ports, below {thresholds.PORTS.value:.0f}"


PYTHON_RULE = PlacedRule(
    PreflightCheck.PYTHON_ON_PATH,
    "no other `python` or `python3` precedes the job's Python on PATH",
    "Remove its folder from PATH, or move it to the end: scripts and builds of extensions that "
    "call `python` get a different environment than the training.",
)


FOREIGN_PROGRAMS_RULE = PlacedRule(
    PreflightCheck.FOREIGN_PROGRAMS,
    "no program of this user outside the job is busy on the job's nodes",
    "End the program (kill PID on that node) if an earlier job left it there, or wait "
    "for your other job.",
)
ROUTES_REMEDY = (
    "Give the bridge another network (default-address-pools in Docker's daemon.json), or remove it "
    "(ip link del)."
)
CUT_LIBRARIES_RULE = NodeRule(
    PlacedRule(
        PreflightCheck.CUT_LIBRARIES,
        "each compiled library of a package is as long as its own header states (elf(5))",
        "Install the package again on that node: a copy or an installation was interrupted.",
    ),
    "sources",
    cut_libraries_fault,
    lambda facts: f"{counted(len(facts), 'package')}",
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
        PlacedRule(PreflightCheck.REPLACED_PACKAGES, REPLACED_RULE, REPLACED_REMEDY),
        "software",
        replaced_packages_fault,
        lambda facts: PhaseMessage.PACKAGES_OF_ENVIRONMENT.fill(),
        verdict="warn",
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
        lambda facts: "as the kernel creates them",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.KERNEL_SETTINGS,
            "; ".join(
                f"{name} at least {threshold.value:.0f}: {threshold.source}"
                for name, threshold in thresholds.KERNEL_SETTINGS.items()
            ),
            "Set it on that node (sysctl -w), and in /etc/sysctl.d to keep it after a reboot.",
        ),
        "kernel",
        kernel_fault,
        lambda facts: "at the Linux defaults, or higher",
    ),
    NodeRule(
        FOREIGN_PROGRAMS_RULE,
        "foreign programs",
        foreign_programs_fault,
        lambda facts: "none is busy",
    ),
    NodeRule(
        FOREIGN_PROGRAMS_RULE,
        "foreign programs",
        other_job_fault,
        lambda facts: "none of another job",
        verdict="warn",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.LEFT_PROGRAMS,
            "no program of a job that has ended uses the run's folder",
            "End the program there (kill PID): it writes to the files of the new job.",
        ),
        "foreign programs",
        left_programs_fault,
        lambda facts: "none",
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
            PreflightCheck.TEMPORARY_PATH,
            f"a socket of Python's multiprocessing below it has a path of at most "
            f"{LONGEST_SOCKET_PATH} bytes (unix(7))",
            "Name a folder with a shorter path in TMPDIR.",
        ),
        "scratch",
        temporary_path_fault,
        lambda facts: str(facts["folder"]),
        verdict="warn",
    ),
    NodeRule(
        PlacedRule(
            PreflightCheck.NODE_NAMES,
            "each node resolves the names of the others, and not to its own address, within "
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
            PreflightCheck.ROUTES,
            "no bridge of containers has a network that contains the address of another node",
            ROUTES_REMEDY,
        ),
        "names",
        routes_fault,
        lambda facts: "none",
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
            PreflightCheck.STORES,
            "folders that programs of the job write to have space (no full disk, no used-up quota)",
            "Free space there (the home folder's quota: `quota -s`, `lfs quota`), or set the named "
            "variable to a folder with space, in `environment` of the site file.",
        ),
        "stores",
        stores_fault,
        lambda facts: "space is left",
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
    """Check how the commands set for the site ended on each node, before all other checks.

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
        # Before the comparison, because that does not say which node has the wrong file.
        judge_each_node(CUT_LIBRARIES_RULE, answers, expected),
        sources_check(answers),
        interfaces_check(answers, expected),
        *[judge_each_node(node_rule, answers, expected) for node_rule in rules],
        equal_memory_check(answers),
        home_check(answers, expected),
        scheduler_check(answers, expected),
        host_names_check(answers),
        foreign_addresses_check(answers),
        slow_core_check(answers),
        *set_up_checks(answers, expected),
        *difference_checks(answers),
    ]


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


def equal_memory_check(answers: JobAnswers) -> PlacedCheck:
    """Warn if a node has less main memory than the others, as after a memory module has failed.

    A queue may have two kinds of nodes on purpose, so this is not a defect.
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
        return rule.broken(by_node(faults), list(faults), verdict="warn")
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
    if expected.hides_home:
        return rule.passed(PhaseMessage.HOME_HIDDEN.fill())
    return _defect_of_some_nodes(
        NodeRule(rule, "account", home_fault, lambda facts: facts["home"]), answers, expected
    )


def scheduler_check(answers: JobAnswers, expected: Expectations) -> PlacedCheck:
    """Check that each node has the scheduler's present settings.

    After a change, all nodes differ until the controller reads the file again, so it is a defect
    only if nodes differ.
    """
    rule = PlacedRule(
        PreflightCheck.SCHEDULER_SETTINGS,
        "each node's slurm.conf matches the controller's (HASH_VAL of `scontrol show config`)",
        "Copy slurm.conf to that node, and restart its slurmd: prologs and limits differ there.",
    )
    node_rule = NodeRule(
        rule, "scheduler", scheduler_fault, lambda facts: facts["comparison"] or "not compared"
    )
    return _defect_of_some_nodes(node_rule, answers, expected)


def _defect_of_some_nodes(
    node_rule: NodeRule, answers: JobAnswers, expected: Expectations
) -> PlacedCheck:
    """Apply a rule to each node. If all nodes break it, that is only a warning."""
    check = judge_each_node(node_rule, answers, expected)
    if check.verdict == "fail" and len(check.nodes) == len(answers.nodes):
        return replace(check, verdict="warn")
    return check


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
        return rule.broken(by_node(faults), list(faults))
    models = Counter(node_facts["model"] for node_facts in facts.values())
    return rule.passed(", ".join(models) or "all alike", ", ".join(facts))

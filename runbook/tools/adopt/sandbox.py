"""Sandbox for job scripts: separate namespaces, a root file system in memory, and stub programs.

The job sees programs on this machine read-only, an empty home folder, no network and no devices.
The only user files that it sees are copies of small text files: those next to the script, and those
in the checkout named by the script. Linux user namespaces (`unshare` from util-linux) make this
possible without privileges. If a machine forbids user namespaces, the script is not run at all.
"""

import itertools
import math
import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import psutil

from runbook.core import shell
from runbook.core.errors import ProgramError
from runbook.jobs.script_directives import Directive
from runbook.tools.adopt.messages import AdoptMessage
from runbook.tools.adopt.script import ASSUMED_DEVICES, ASSUMED_NODES, FOLDER, HOME, not_set

SECONDS = 10
"""Time limit for a job, in seconds, on a machine with an idle processor."""
_MOST_TIMES_LONGER = 4
"""Largest factor by which the limit grows if other programs keep the processors busy."""
MOST_PROCESSES = 96
MOST_BYTES = 8 << 20
"""Maximum trace size in bytes. Longer output from a job is cut off."""
STUBS = Path(__file__).parent / "stubs"
LAUNCHERS = ("step", "container", "starter", "submit")
_NOBODY = 65534
_INSTALL = (
    "`runbook adopt` runs the script in a sandbox of Linux user namespaces, and never outside "
    "one. Needed: util-linux (unshare, setpriv, prlimit, flock), bash, coreutils, and a kernel "
    "that lets users create namespaces (sysctl kernel.unprivileged_userns_clone=1 on Debian, "
    "kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu, user.max_user_namespaces above 0 "
    "on RHEL). Run it on a machine that has them, for example your laptop; the script's cluster "
    "is not needed."
)


@dataclass(frozen=True)
class SandboxRun:
    """The trace left by a job in the sandbox, and its time limit."""

    raw: str
    """The unparsed trace of everything started by the job."""
    seconds: int
    """The time limit that was applied."""


def run_job(
    files: Mapping[str, str],
    command: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    missing: Sequence[str] = (),
) -> SandboxRun:
    """Run `command` in a sandbox, and return an unparsed trace of everything it started.

    The sandbox contains `files` in `folder`.

    `missing` lists absolute paths of programs that do not exist here. Each of them is replaced with
    a stub. Raise `ProgramError` if no sandbox can be created.
    """
    seconds = time_limit()
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if absent:
        raise ProgramError(AdoptMessage.NO_BUBBLEWRAP, absent=", ".join(absent), install=_INSTALL)
    with tempfile.TemporaryDirectory(prefix="adopt-") as folder_of_stage:
        stage = Path(folder_of_stage)
        _stage(stage, files, missing)
        variables = [f"{name}={value}" for name, value in environment.items()]
        job = ["env", "-i", *variables, *command]
        arguments = [str(stage / "mount"), str(stage), str(seconds), folder]
        enter = ["bash", "-p", str(STUBS / "enter.sh"), *arguments, *job]
        sandbox = [*_limits(), "unshare", *_NAMESPACES, *enter]
        cut_off = ["bash", "-p", "-c", 'most=$1; shift; "$@" | head -c "$most"', "adopt"]
        finished = shell.run(
            [*cut_off, str(MOST_BYTES), *sandbox],
            timeout=seconds + 20,
            # Our own variables are not passed on, because a job could read them from the outer
            # shell's /proc/$PPID/environ.
            env={**dict.fromkeys(os.environ), "PATH": _PATH},
            check=False,
        )

    if "\036" not in finished.out and "\001" not in finished.out:
        reason = shell.last_lines(finished.err, 2) or "no reason given"
        raise ProgramError(AdoptMessage.NO_SANDBOX, reason=reason, install=_INSTALL)

    return SandboxRun(finished.out, seconds)


def time_limit() -> int:
    """Return the time limit for a job in seconds.

    The limit is longer if multiple programs wait for each processor.
    """
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return math.ceil(SECONDS * min(max(1.0, waiting), _MOST_TIMES_LONGER))


_TOOLS = ("unshare", "setpriv", "prlimit", "bash", "timeout", "head", "flock")


_NAMESPACES = (
    "--user",
    "--map-root-user",
    "--mount",
    "--pid",
    "--ipc",
    "--net",
    "--uts",
    "--fork",
    "--kill-child",
)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _limits() -> list[str]:
    """Return the commands to put before `unshare` to limit the number of processes.

    If this process runs as root, the commands switch to the user nobody, because root has no limit.
    """
    own = os.geteuid()
    user = own or _NOBODY
    # The kernel counts all threads of a user against the limit, including those in other sandboxes.
    limit = [f"--nproc={MOST_PROCESSES + _num_threads_of(user)}"]
    if own == 0:
        nobody = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
        return ["prlimit", *limit, *nobody]

    return ["prlimit", *limit]


def _num_threads_of(user: int) -> int:
    """Count the threads of the user with this id."""
    num_threads = 0
    for process in psutil.process_iter(["uids", "num_threads"]):
        user_ids = process.info["uids"]
        if user_ids and user_ids.real == user:
            num_threads += process.info["num_threads"] or 1

    return num_threads


def _stage(stage: Path, files: Mapping[str, str], missing: Sequence[str]) -> None:
    """Write the job files and the stubs for the sandbox, readable by everyone."""
    os.chmod(stage, 0o755)  # noqa: PTH101 - the sandbox of root is entered as nobody
    (stage / "mount").mkdir()
    for name, text in files.items():
        if name.startswith("../"):
            path = stage / "above" / name[3:]
        else:
            path = stage / "job" / name

        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o755)

    (stage / "job").mkdir(exist_ok=True)
    (stage / "above").mkdir(exist_ok=True)
    shutil.copytree(STUBS, stage / "adopt" / "stubs")
    programs = stage / "adopt" / "bin"
    _write_stubs(programs, stage / "adopt" / "launchers")
    root = stage / "root"
    root.mkdir()
    for absent in missing:
        _stage_missing(root, absent, _program_for(posixpath.basename(absent), files))


def _stage_missing(root: Path, absent: str, program: str) -> None:
    """Write a stub for a program that a job calls by the path `absent`, which does not exist here.

    The path comes from the script, which may be hostile. As in the kernel, `..` does not lead out
    of the sandbox root, and the folder before a `..` must exist. No stub is written to a path
    needed by the sandbox itself, or to one that cannot be a file.
    """
    *folders, name = absent.split("/")
    place = root
    try:
        for part in folders:
            place = _entered(place, part, root)
            if not _is_reserved(place.relative_to(root)):
                place.mkdir(exist_ok=True)
        link = _entered(place, name, root)
        if _is_reserved(link.relative_to(root)) or link.exists():
            return
        link.write_text(f'#!/bin/bash -p\nexec {program} "$@"\n')
        link.chmod(0o755)
    except OSError:  # The name is too long, or part of the path is a file
        return


def _entered(folder: Path, part: str, root: Path) -> Path:
    """Return the path that a component leads to from `folder`, without leaving `root`."""
    if part in ("", "."):
        return folder
    if part != "..":
        return folder / part
    if folder == root:
        return root
    return folder.parent


def _is_reserved(place: PurePath) -> bool:
    """Return whether stubs/enter.sh itself needs a path in the sandbox root."""
    return place.parts[:1] in _RESERVED or place.parts[:2] in _RESERVED


_RESERVED = {
    ("adopt",),
    ("bin",),
    ("dev",),
    ("lib",),
    ("lib32",),
    ("lib64",),
    ("never",),
    ("old",),
    ("proc",),
    ("sbin",),
    ("trace",),
    ("usr",),
    ("etc", "alternatives"),
}


def _write_stubs(programs: Path, launchers: Path) -> None:
    """Write each stub under the names of all programs that it replaces.

    Empty files tell the stubs by name which programs are launchers.
    """
    programs.mkdir()
    launchers.mkdir()
    for kind, names in stub_programs().items():
        for name in names:
            shutil.copyfile(STUBS / f"{kind}.sh", programs / name)
            (programs / name).chmod(0o755)
            if kind in LAUNCHERS:
                (launchers / name).touch()


def _program_for(name: str, files: Mapping[str, str]) -> str:
    """Return the stub for a program called in a job by a path that does not exist here."""
    if any(name in names for names in stub_programs().values()):
        return f"/adopt/bin/{name}"
    if name in files:
        return f'/bin/bash "$ADOPT_FOLDER/{name}"'
    return '/adopt/bin/unknown-program "$0"'


def stub_programs() -> dict[str, list[str]]:
    """Return the names of the programs that each kind of stub replaces.

    >>> "srun" in stub_programs()["step"], "torchrun" in stub_programs()["starter"]
    (True, True)
    """
    programs = {}
    for path in sorted(STUBS.glob("*.sh")):
        text = path.read_text(encoding="utf-8")
        header = re.search(r"^# programs: (.*)$", text, re.MULTILINE)
        if header:
            programs[path.stem] = header[1].split()

    return programs


_GIVEN = re.compile(
    r"(SLURM|PBS|OMPI|PMI|PALS|LSB|SGE|PJM|BASH|COBALT|FUNCNAME|CONDA|EPOCH)_?\w*|HOME|USER|LOGNAME|PATH|PWD|OLDPWD|SHELL|"
    r"HOSTNAME|RANDOM|SECONDS|LINENO|OPTARG|OPTIND|REPLY|IFS|UID|EUID|PPID|TMPDIR|TERM|LANG|PYTHONPATH|"
    r"LD_LIBRARY_PATH|LD_PRELOAD|CUDA_VISIBLE_DEVICES|DEBUG|VERBOSE|SRANDOM|PROMPT_COMMAND|_"
)


@dataclass
class SandboxJob:
    """A job passed to the sandbox."""

    main: str
    files: Mapping[str, str]
    directives: Sequence[Directive]
    exports: Mapping[str, str] = field(default_factory=dict)
    """Variables set in the shell that submitted the job."""
    arguments: tuple[str, ...] = ()
    """Arguments that the submitting script passes to the job."""


_NO_SHELL = (".json", ".py", ".txt", ".yaml", ".yml")
"""File extensions that bash does not run."""
_BLANK = re.compile(r"(?<![<&\w])<([A-Za-z][\w /.,:'-]*[\w.])>(?![>&(])")


def filled_in(name: str, text: str) -> str:
    """Turn placeholders that the author left in a script into markers.

    Bash cannot parse a placeholder such as <path to data>.
    """
    if name.endswith(_NO_SHELL):
        return text
    return _BLANK.sub(lambda blank: not_set(re.sub(r"\W+", "_", blank[1])), text)


@dataclass(frozen=True)
class JobSize:
    """The resources requested by a job from its queue."""

    directives: Mapping[str, str]
    nodes: int
    devices: int
    """Devices per node."""
    tasks: int
    """Tasks per node."""


@dataclass(frozen=True)
class Retry:
    """What to change for the next try if a job did not start training."""

    keep_going: bool = False
    """Whether `exit` is ignored."""
    as_a_rank: bool = False
    """Whether MPI variables identify rank 0, and loops with an unknown count run once."""


FIRST_RUN = Retry()


def environment(job: SandboxJob, retry: Retry) -> dict[str, str]:
    """Return the variables for a job: those set by a queue and a login, and markers.

    Each variable read by the job but set nowhere gets a marker. The job also gets a
    file with its node names.
    """
    size = _job_size(job)
    hosts = "".join(f"node{number}\n" for number in range(1, size.nodes + 1))
    job.files = {**job.files, _NODE_FILE: hosts}
    queue_variables = _queue_variables(job, size)
    return {
        **_unset_variables(job, size, queue_variables),
        **queue_variables,
        **(_rank_variables(size) if retry.as_a_rank else {}),
        **job.exports,
        **_login_variables(size, retry),
    }


def _queue_variables(job: SandboxJob, size: JobSize) -> dict[str, str]:
    """Return the variables set by the queue. For an unknown queue, use those from Slurm."""
    queues = {directive.queue for directive in job.directives}
    # Job options may have been given on the qsub command line
    if "PBS_NODEFILE" in job.files[job.main]:
        queues.add("pbs")
    variables: dict[str, str] = {}
    if queues != {"pbs"}:
        variables |= _slurm_variables(size)
    if "lsf" in queues:
        variables |= {"LSB_JOBID": "4242", "LSB_DJOB_HOSTFILE": f"{FOLDER}/{_NODE_FILE}"}
    if "pbs" in queues:
        variables |= _pbs_variables(size)
    if "sge" in queues:
        variables |= _grid_engine_variables(size)
    if "pjm" in queues:
        variables |= {"PJM_JOBID": "4242", "PJM_NODE": str(size.nodes)}
    return variables


def _grid_engine_variables(size: JobSize) -> dict[str, str]:
    """Return the variables set by Grid Engine in a job on its first node."""
    hosts = f"{FOLDER}/{_NODE_FILE}"
    return {
        "JOB_ID": "4242",
        "NHOSTS": str(size.nodes),
        "NSLOTS": str(size.nodes),
        "SGE_JOB_HOSTLIST": hosts,
        "PE_HOSTFILE": hosts,
        "SGE_O_WORKDIR": FOLDER,
        "SGE_TASK_ID": "undefined",
    }


def _rank_variables(size: JobSize) -> dict[str, str]:
    """Return the variables used by MPI libraries and PyTorch launchers to identify rank 0."""
    world_size = str(size.nodes * size.devices)
    variables = dict.fromkeys(_RANKS, "0")
    variables |= dict.fromkeys(
        ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"), world_size
    )
    variables["OMPI_COMM_WORLD_LOCAL_SIZE"] = str(size.devices)
    return variables


_RANKS = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_NODE_RANK",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMI_RANK",
    "PMIX_RANK",
    "PALS_RANKID",
    "PALS_LOCAL_RANKID",
)
"""Variables for the global and local rank in Open MPI, MVAPICH, Intel MPI, PMI and PALS on Cray."""


def _login_variables(size: JobSize, retry: Retry) -> dict[str, str]:
    """Return the variables set by a login and those read by the stubs."""
    login = {
        "PATH": "/adopt/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": HOME,
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "BASH_ENV": "/adopt/stubs/shell.sh",
        "ADOPT_FOLDER": FOLDER,
        "ADOPT_NODES": str(size.nodes),
        "ADOPT_DEVICES": str(size.devices),
    }
    if retry.keep_going:
        login["ADOPT_KEEP_GOING"] = "1"
    if retry.as_a_rank:
        login["ADOPT_ENTER_LOOPS"] = "1"
    return login


def _unset_variables(
    job: SandboxJob, size: JobSize, queue_variables: Mapping[str, str]
) -> dict[str, str]:
    """Return a marker for each variable read by the job but set nowhere.

    If the job requests nodes, variables for the node count get the requested number.
    """
    unset = {name: not_set(name) for name in _never_set(job) if name not in queue_variables}
    if any(directive.name in _NODES for directive in job.directives):
        unset |= {name: str(size.nodes) for name in _NAMES_OF_NODES if name in unset}
    return unset | _real_run(job)


def _real_run(job: SandboxJob) -> dict[str, str]:
    """Return "no" for each variable whose default makes a script only print its command."""
    answers = {}
    for name, default in _DRY_RUN.findall(_code_that_runs(job)):
        answers[name] = _NO[default]
    return answers


_DRY_RUN = re.compile(r"\$\{(\w*DRY_?RUN):?[-=][\"']?(1|true|True|yes)[\"']?\}")
_NO = {"1": "0", "true": "false", "True": "False", "yes": "no"}
"""For each word used in scripts for "yes", the matching word for "no"."""


_LOOP = re.compile(r"^([ \t]*for\s*\(\([^;\n]*;)([^;\n]*)(;[^\n]*\)\))", re.MULTILINE)


def entered_once(name: str, script: str) -> str:
    """Return a script whose counting loops run at least once even if the count is unknown.

    >>> print(entered_once("job.sh", "for ((i=0; i < N; i++)); do"))
    for ((i=0; (ADOPT_LOOP_1++ < 1) || ( i < N); i++)); do
    """
    if name.endswith(_NO_SHELL):
        return script
    numbers = itertools.count(1)

    def enter(loop: re.Match[str]) -> str:
        start, condition, end = loop.groups()
        return f"{start} (ADOPT_LOOP_{next(numbers)}++ < 1) || ({condition}){end}"

    return _LOOP.sub(enter, script)


_NODE_FILE = ".nodes"
_NAMES_OF_NODES = ("NODES", "NNODES", "NUM_NODES")
"""Variables for the node count.

Scripts compare them as numbers, so they are set to the requested node count.
"""


_NODES = ("nodes", "select", "nnodes")
"""Names for the node count in Slurm, PBS and LSF."""


def _job_size(job: SandboxJob) -> JobSize:
    """Read the nodes, devices and tasks requested by a job.

    For resources that the job does not request, use what the sandbox assumes.
    """
    requests = {directive.name: directive.value for directive in job.directives}
    nodes = 0
    for name in _NODES:
        nodes = nodes or _number(requests.get(name, ""))
    devices = 0
    numbers = re.findall(r"\d+", requests.get("gpus-per-node") or requests.get("gres", ""))
    if numbers:  # The last number is the count, as in gpu:a100:4
        devices = _number(numbers[-1])
    tasks = _number(requests.get("ntasks-per-node", ""))
    return JobSize(requests, nodes or ASSUMED_NODES, devices or ASSUMED_DEVICES, tasks or 1)


def _slurm_variables(size: JobSize) -> dict[str, str]:
    """Return the variables set by Slurm in a job on its first node."""
    requests = size.directives
    nodes = str(size.nodes)
    hosts = "node1" if size.nodes == 1 else f"node[1-{size.nodes}]"
    tasks_per_node = str(size.tasks)
    num_tasks = str(size.nodes * size.tasks)
    devices_per_node = str(size.devices)
    variables = {
        "SLURM_JOB_ID": "4242",
        "SLURM_JOBID": "4242",
        "SLURM_NNODES": nodes,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NODELIST": hosts,
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_NTASKS": num_tasks,
        "SLURM_NPROCS": num_tasks,
        "SLURM_NTASKS_PER_NODE": tasks_per_node,
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_SUBMIT_DIR": FOLDER,
        "SLURM_JOB_NAME": requests.get("job-name", "job"),
        "SLURM_CPUS_ON_NODE": "64",
        "SLURM_TASKS_PER_NODE": tasks_per_node,
        "SLURM_GPUS_ON_NODE": devices_per_node,
        "SLURM_GPUS_PER_NODE": devices_per_node,
        "SLURM_GPUS": str(size.nodes * size.devices),
        "SLURM_CPUS_PER_TASK": requests.get("cpus-per-task", "1"),
        "SLURMD_NODENAME": "node1",
        "SLURM_JOB_PARTITION": requests.get("partition", ""),
        "SLURM_RESTART_COUNT": "0",
    }
    if "array" in requests:
        variables["SLURM_ARRAY_TASK_ID"] = str(_number(requests["array"]))
        variables["SLURM_ARRAY_JOB_ID"] = "4242"

    return variables


def _pbs_variables(size: JobSize) -> dict[str, str]:
    """Return the variables set by PBS in a job on its first node."""
    return {
        "PBS_JOBID": "4242.server",
        "PBS_O_WORKDIR": FOLDER,
        "PBS_NODEFILE": f"{FOLDER}/{_NODE_FILE}",
        "PBS_JOBNAME": size.directives.get("N", "job"),
        "PBS_O_HOST": "node1",
    }


def _number(text: str) -> int:
    """Return the number at the start of a string, or 0 if there is none."""
    match = re.match(r"\d{1,6}(?!\d)", text)
    if match is None:
        return 0
    return int(match[0])


def _never_set(job: SandboxJob) -> list[str]:
    """Return the variables required by the job but set nowhere."""
    text = _SETS_ITSELF.sub(r"\2", _code_that_runs(job))
    required = set(_REQUIRED.findall(text))
    reads = set(re.findall(r"\$\{?#?([A-Za-z_]\w*)", text))
    unset = reads - _names_set(text) - _names_tested(text)
    return sorted(name for name in unset if name in required or not _GIVEN.fullmatch(name))


_REQUIRED = re.compile(r"\$\{([A-Za-z_]\w*):?\?")
_SETS_ITSELF = re.compile(r"(?<!\w)([A-Za-z_]\w*)=[\"']?(\$\{\1(?::?\?|[,^%#/]))")
"""Matches an assignment to a variable that reads the old value.

`NAME=${NAME:?message}` ends a script if NAME is not set elsewhere, and `NAME=${NAME,,}` changes it.
"""


def _code_that_runs(job: SandboxJob) -> str:
    """Join the main script and the files that it names, without comments and quoted text."""
    main = _without_comments(job.files[job.main])
    codes = [main]
    for name, text in job.files.items():
        is_code = not name.endswith(_NO_SHELL)
        if is_code and name != job.main and name.rpartition("/")[2] in main:
            codes.append(_without_comments(text))
    # Text in single quotes is kept if it contains a $, because it may be code for another shell.
    return re.sub(
        r"'[^'\n]*'", lambda quoted: quoted[0] if "$" in quoted[0] else "''", "\n".join(codes)
    )


def _without_comments(script: str) -> str:
    """Return a script without its comment lines."""
    return re.sub(r"(?m)^[ \t]*#.*$", "", script)


def _names_set(text: str) -> set[str]:
    """Return the variables set by shell code, in assignments or by builtins such as `read`."""
    assigned = re.findall(r"(?:^|[\s;({&|`\"'])([A-Za-z_]\w*)(?:\[[^]]*\])?\+?=", text)
    setters = (
        r"\b(?:read|mapfile|readarray|getopts|for|select|unset|export|local|declare)\b([^\n;|]*)"
    )
    arguments = "\n".join(re.findall(setters, text))
    return {*assigned, *_SET_NAME.findall(arguments)}


_SET_NAME = re.compile(r"(?<![\w${/.=:\"'-])[A-Za-z_]\w*")
"""Matches a name that `export` or `read` sets: A in `A=$B/c`, but not B."""


def _names_tested(text: str) -> set[str]:
    """Return the variables that shell code compares or has a default for.

    Variables that the script cannot run without are left out.
    """
    with_default = set(re.findall(r"\$\{([A-Za-z_]\w*)(?:\[[^]]*\])?:?[-=+?]", text))
    required = set(_REQUIRED.findall(text))
    tested = set(re.findall(r"(?:-[znv]|!)\s+\"?\$?\{?([A-Za-z_]\w*)", text))
    compared = set(re.findall(r"\[\[?\s+\"?\$\{?([A-Za-z_]\w*)\}?\"?\s+(?:==?|!=)", text))
    return (with_default | tested | compared) - required


_FUNCTION = re.compile(
    r"^[ \t]*(?:function\s+)?[\w-]+\s*\(\)\s*\{.*?^\s*\}", re.MULTILINE | re.DOTALL
)
_END_OF_BLOCK = re.compile(r"^[ \t]*\}", re.MULTILINE)


def _without_functions(script: str) -> str:
    """Return a script without the functions that it defines.

    The search stops at the last brace, because no function can end after it. Searching further for
    where each function ends would take quadratic time.
    """
    end = 0
    for brace in _END_OF_BLOCK.finditer(script):
        end = brace.end()
    return _FUNCTION.sub("", script[:end]) + script[end:]


def own_code(script: str) -> str:
    """Return a script without comments, functions and text in single quotes.

    In these parts, `$1` is a function argument, or a column in awk.
    """
    text = _FUNCTION_OF_ONE_LINE.sub("", _without_comments(script))
    text = _without_functions(text)
    return re.sub(r"'[^'\n]*'", "''", _AWK_PROGRAM.sub("awk", text))


_FUNCTION_OF_ONE_LINE = re.compile(
    r"^[ \t]*(?:function\s+[\w-]+|[\w-]+\s*\(\))[^\n{]*\{[^\n]*\}[ \t]*$", re.MULTILINE
)
_AWK_PROGRAM = re.compile(r"\b(?:awk|sed)\b[^'\n|;]*'[^']*'")


def needed_arguments(job: SandboxJob) -> list[str]:
    """Return markers for (at least) all arguments that the script reads outside its functions.

    An argument with a default, as in ${4:-MOCK}, is left empty so that the default applies.
    """
    text = _without_functions(job.files[job.main])
    text = re.sub(r"(?m)^[ \t]*#.*$|awk\s+[^|\n]*", "", text)
    # The script parses options, all of which have defaults
    if re.search(r"case\s+\"?\$\{?1\b", text):
        return []
    return _markers_of_arguments(text)


def first_choice(job: SandboxJob) -> list[str]:
    """Return arguments that make a script take a branch in its `case "$1" in`.

    Choose the first branch whose name does not suggest mere preparation, or else the first branch.
    The result is empty if no branch can start anything. All other arguments are markers.
    """
    text = _without_functions(_without_comments(job.files[job.main]))
    head = _CASE_OF_ARGUMENT.search(text)
    if head is None:
        return []
    branches = text[head.end() :].partition("esac")[0]
    choices = [choice for choice in _BRANCH.findall(branches) if choice not in _STARTS_NOTHING]
    if not choices:
        return []
    trainings = [choice for choice in choices if not _PREPARES.match(choice)]
    choice = (trainings or choices)[0]
    return [choice, *_markers_of_arguments(text)[1:]]


_CASE_OF_ARGUMENT = re.compile(r"\bcase\s+\"?\$\{?1\}?\"?\s+in\b")
_BRANCH = re.compile(r"(?:^|;;)\s*\(?[\"']?([A-Za-z0-9][\w.-]*)[\"']?\s*[|)]")
_STARTS_NOTHING = ("help", "usage", "stop", "clean", "status", "kill")
_PREPARES = re.compile(r"(?:install|setup|download|prepare|build|test)(?![A-Za-z0-9])", re.I)
"""Names of branches that only prepare training, such as `install` and `build-image`."""


def _markers_of_arguments(text: str) -> list[str]:
    """Return a marker for each argument that shell code needs. Other arguments are empty."""
    with_default = set(re.findall(r"\$\{([1-9]):?[-=]", text))
    needed = set(re.findall(r"\$\{?([1-9])\b", text)) - with_default
    last = max(map(int, needed), default=0)
    arguments = []
    for number in range(1, last + 1):
        if str(number) in needed:
            arguments.append(not_set(f"argument_{number}"))
        else:
            arguments.append("")
    return arguments

"""Run someone's job script where it can harm nothing: own namespaces, a root in memory, stub programs on its PATH.

The job sees the machine's own programs read-only, an empty home, no network, no device and none of the user's files but
the small text files next to the script, as copies. Linux user namespaces (util-linux's `unshare`) make this possible
without any right; where a machine forbids them, the script is not run at all.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from runbook.core import shell
from runbook.core.errors import ProgramError
from runbook.jobs.directives import Directive
from runbook.tools.adopt.script import ASSUMED_DEVICES, ASSUMED_NODES, FOLDER, not_set

SECONDS = 10
MOST_PROCESSES = 96
MOST_BYTES = 8 << 20
"""Of the trace; a job that writes more is cut off there."""
STUBS = Path(__file__).parent / "stubs"
LAUNCHERS = ("step", "container", "starter", "submit")
_NOBODY = 65534
_INSTALL = (
    "`runbook adopt` runs the script in a sandbox of Linux user namespaces, and never outside one. Needed: "
    "util-linux (unshare, setpriv, prlimit, flock), bash, coreutils, and a kernel that lets users make namespaces "
    "(sysctl kernel.unprivileged_userns_clone=1 on Debian, kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu, "
    "user.max_user_namespaces above 0 on RHEL). Run it on such a machine, for example your laptop; the script's "
    "cluster is not needed."
)


def run_job(
    files: Mapping[str, str],
    command: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    missing: Sequence[str] = (),
    seconds: int = SECONDS,
) -> str:
    """Run `command` in a sandbox that holds `files` in `folder`, and return the raw trace of everything it started.

    `missing` are absolute paths of programs that are not here: a stub takes the place of each. Raises `ProgramError`
    where no sandbox can be made.
    """
    tools = ("unshare", "setpriv", "prlimit", "bash", "timeout", "head", "flock")
    absent = [tool for tool in tools if shutil.which(tool) is None]
    if absent:
        raise ProgramError(f"There is no {', '.join(absent)} here. {_INSTALL}")
    with tempfile.TemporaryDirectory(prefix="adopt-") as place:
        stage = Path(place)
        _stage(stage, files, missing)
        arguments = [str(stage / "mount"), str(stage), str(seconds), folder]
        job = ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), *command]
        inner = [
            *_limits(),
            "unshare",
            *_NAMESPACES,
            "bash",
            "-p",
            str(STUBS / "enter.sh"),
            *arguments,
            *job,
        ]
        said = shell.run(
            [
                "bash",
                "-p",
                "-c",
                'most=$1; shift; "$@" | head -c "$most"',
                "adopt",
                str(MOST_BYTES),
                *inner,
            ],
            timeout=seconds + 20,
            # Nothing of ours: a job reads the environment of the shell around it in /proc/$PPID/environ.
            env={**dict.fromkeys(os.environ), "PATH": _PATH},
            check=False,
        )
    if "\036" not in said.out and "\001" not in said.out:
        raise ProgramError(
            f"No sandbox can be made here: {shell.last_lines(said.err, 2) or 'no reason given'}. {_INSTALL}"
        )
    return said.out


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
    """Programs before `unshare`: few processes, and nobody's rights where we are root (root has no limit)."""
    if os.geteuid() == 0:
        nobody = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
        return ["prlimit", f"--nproc={MOST_PROCESSES}", *nobody]
    # The kernel counts this user's other threads against the same limit.
    processes = [process.info for process in psutil.process_iter(["uids", "num_threads"])]
    own = [info for info in processes if info["uids"] and info["uids"].real == os.geteuid()]
    return ["prlimit", f"--nproc={MOST_PROCESSES + sum(info['num_threads'] or 1 for info in own)}"]


def _stage(stage: Path, files: Mapping[str, str], missing: Sequence[str]) -> None:
    """Write what the sandbox is made of, readable by everyone: the job's files and the stubs under all their names."""
    os.chmod(stage, 0o755)  # noqa: PTH101 - the sandbox of root is entered as nobody
    (stage / "mount").mkdir()
    for name, text in files.items():
        path = stage / "job" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o755)
    (stage / "job").mkdir(exist_ok=True)
    shutil.copytree(STUBS, stage / "adopt" / "stubs")
    programs = stage / "adopt" / "bin"
    launchers = stage / "adopt" / "launchers"
    programs.mkdir()
    launchers.mkdir()
    for kind, names in stub_programs().items():
        for name in names:
            shutil.copyfile(STUBS / f"{kind}.sh", programs / name)
            (programs / name).chmod(0o755)
            if kind in LAUNCHERS:
                (launchers / name).touch()
    (stage / "root").mkdir()
    for absent in missing:
        link = stage / "root" / absent.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        if (programs / link.name).exists():
            becomes = f"/adopt/bin/{link.name}"
        elif link.name in files:
            becomes = f'/bin/bash "$ADOPT_FOLDER/{link.name}"'
        else:
            becomes = '/adopt/bin/unknown-program "$0"'
        if not link.exists():
            link.write_text(f'#!/bin/bash -p\nexec {becomes} "$@"\n')
            link.chmod(0o755)


def stub_programs() -> dict[str, list[str]]:
    """The names of the programs that each kind of stub stands for.

    >>> "srun" in stub_programs()["step"], "torchrun" in stub_programs()["starter"]
    (True, True)
    """
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(STUBS.glob("*.sh"))}
    names = {
        stem: re.search(r"^# programs: (.*)$", text, re.MULTILINE) for stem, text in texts.items()
    }
    return {stem: match[1].split() for stem, match in names.items() if match}


_GIVEN = re.compile(
    r"(SLURM|PBS|OMPI|PMI|PALS|LSB|BASH|COBALT|FUNCNAME|CONDA|EPOCH)_?\w*|HOME|USER|LOGNAME|PATH|PWD|OLDPWD|SHELL|"
    r"HOSTNAME|RANDOM|SECONDS|LINENO|OPTARG|OPTIND|REPLY|IFS|UID|EUID|PPID|TMPDIR|TERM|LANG|PYTHONPATH|"
    r"LD_LIBRARY_PATH|LD_PRELOAD|CUDA_VISIBLE_DEVICES|DEBUG|VERBOSE|SRANDOM|PROMPT_COMMAND|_"
)


@dataclass
class SandboxJob:
    """A job as the sandbox gets it."""

    main: str
    files: Mapping[str, str]
    directives: Sequence[Directive]
    exports: Mapping[str, str] = field(default_factory=dict)
    """What the shell that submitted it had set."""


_BLANK = re.compile(r"(?<![<&\w])<([A-Za-z][\w /.,:'-]*[\w.])>(?![>&(])")


def filled_in(name: str, text: str) -> str:
    """A script with markers for what its author left to fill in, such as <path to data>, which bash cannot read."""
    if name.endswith((".json", ".py", ".txt", ".yaml", ".yml")):
        return text
    return _BLANK.sub(lambda blank: not_set(re.sub(r"\W+", "_", blank[1])), text)


def environment(job: SandboxJob, keep_going: bool) -> dict[str, str]:
    """What a queue and a login set, and a marker for each name that the job reads and nothing sets."""
    asked = {directive.name: directive.value for directive in job.directives}
    nodes = _number(asked.get("nodes", "")) or _number(asked.get("select", "")) or ASSUMED_NODES
    gpus = re.findall(r"\d+", asked.get("gpus-per-node") or asked.get("gres", ""))
    devices = _number(gpus[-1] if gpus else "") or ASSUMED_DEVICES
    tasks = _number(asked.get("ntasks-per-node", "")) or 1
    queues = {directive.queue for directive in job.directives}
    queue: dict[str, str] = {}
    if queues != {"pbs"}:
        names = "node1" if nodes == 1 else f"node[1-{nodes}]"
        queue |= {
            "SLURM_JOB_ID": "4242",
            "SLURM_JOBID": "4242",
            "SLURM_NNODES": str(nodes),
            "SLURM_JOB_NUM_NODES": str(nodes),
            "SLURM_NODELIST": names,
            "SLURM_JOB_NODELIST": names,
            "SLURM_NTASKS": str(nodes * tasks),
            "SLURM_NPROCS": str(nodes * tasks),
            "SLURM_NTASKS_PER_NODE": str(tasks),
            "SLURM_NODEID": "0",
            "SLURM_PROCID": "0",
            "SLURM_LOCALID": "0",
            "SLURM_SUBMIT_DIR": FOLDER,
            "SLURM_JOB_NAME": asked.get("job-name", "job"),
            "SLURM_CPUS_ON_NODE": "64",
            "SLURM_TASKS_PER_NODE": str(tasks),
            "SLURM_GPUS_ON_NODE": str(devices),
            "SLURM_GPUS_PER_NODE": str(devices),
            "SLURM_GPUS": str(nodes * devices),
            "SLURM_CPUS_PER_TASK": asked.get("cpus-per-task", "1"),
            "SLURMD_NODENAME": "node1",
            "SLURM_JOB_PARTITION": asked.get("partition", ""),
            "SLURM_RESTART_COUNT": "0",
        }
        if "array" in asked:
            queue |= {
                "SLURM_ARRAY_TASK_ID": str(_number(asked["array"])),
                "SLURM_ARRAY_JOB_ID": "4242",
            }
    if "pbs" in queues:
        queue |= {
            "PBS_JOBID": "4242.server",
            "PBS_O_WORKDIR": FOLDER,
            "PBS_NODEFILE": f"{FOLDER}/.nodes",
            "PBS_JOBNAME": asked.get("N", "job"),
            "PBS_O_HOST": "node1",
        }
    job.files = {
        **job.files,
        ".nodes": "".join(f"node{number}\n" for number in range(1, nodes + 1)),
    }
    base = {
        "PATH": "/adopt/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/person",
        "USER": "user",
        "LOGNAME": "user",
        "SHELL": "/bin/bash",
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "BASH_ENV": "/adopt/stubs/shell.sh",
        "ADOPT_FOLDER": FOLDER,
        "ADOPT_NODES": str(nodes),
        "ADOPT_DEVICES": str(devices),
        **({"ADOPT_KEEP_GOING": "1"} if keep_going else {}),
    }
    unset = {name: not_set(name) for name in _never_set(job) if name not in queue}
    return {**unset, **queue, **job.exports, **base}


def _number(text: str) -> int:
    """The number that a text begins with; 0 where there is none, or one that no machine has."""
    digits = (re.match(r"\d+", text) or [""])[0]
    return int(digits) if 0 < len(digits) < 7 else 0


def _never_set(job: SandboxJob) -> list[str]:
    """Names that the main script and what it names read, that nothing sets, and whose absence is not provided for."""
    main = job.files[job.main]
    named = [
        text
        for name, text in job.files.items()
        if name != job.main and name.rpartition("/")[2] in main
    ]
    text = "\n".join(re.sub(r"(?m)^\s*#.*$", "", body) for body in (main, *named))
    text = re.sub(r"'[^'\n]*'", lambda quoted: quoted[0] if "$" in quoted[0] else "''", text)
    reads = set(re.findall(r"\$\{?#?([A-Za-z_]\w*)", text))
    sets = set(re.findall(r"(?:^|[\s;({&|`\"'])([A-Za-z_]\w*)(?:\[[^]]*\])?\+?=", text))
    setters = (
        r"\b(?:read|mapfile|readarray|getopts|for|select|unset|export|local|declare)\b([^\n;|]*)"
    )
    sets |= set(re.findall(r"[A-Za-z_]\w*", "\n".join(re.findall(setters, text))))
    tests = set(re.findall(r"\$\{([A-Za-z_]\w*)(?:\[[^]]*\])?:?[-=+?]", text))
    tests -= set(re.findall(r"\$\{([A-Za-z_]\w*):?\?", text))
    tests |= set(re.findall(r"(?:-[znv]|!)\s+\"?\$?\{?([A-Za-z_]\w*)", text))
    tests |= set(re.findall(r"\[\[?\s+\"?\$\{?([A-Za-z_]\w*)\}?\"?\s+(?:==?|!=)", text))
    return sorted(name for name in reads - sets - tests if not _GIVEN.fullmatch(name))


def num_arguments(job: SandboxJob) -> int:
    """How many arguments the script reads outside its functions, at least."""
    text = re.sub(r"(?ms)^\s*(?:function\s+)?[\w-]+\s*\(\)\s*\{.*?^\s*\}", "", job.files[job.main])
    text = re.sub(r"(?m)^\s*#.*$|awk\s+[^|\n]*", "", text)
    if re.search(r"case\s+\"?\$\{?1\b", text):  # it parses options, which all have defaults
        return 0
    return max([int(digit) for digit in re.findall(r"\$\{?([1-9])\b", text)], default=0)

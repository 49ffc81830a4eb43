"""Known failures: the lines that show them in a log, the remedy, and the help page."""

import re
from collections.abc import Iterable
from dataclasses import dataclass


class FailureClass:
    """A way in which training fails, known by its words."""

    def __init__(self, name: str, remedy: str, *patterns: str) -> None:
        self.name, self.remedy, self.patterns = name, remedy, patterns
        self.expression = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


@dataclass
class Failure:
    """A failure found in a log."""

    name: str
    line: int
    """The first line that shows it, counted from 1."""
    evidence: str
    count: int
    remedy: str


CLASSES = (
    FailureClass(
        "device out of memory",
        "Lower training.micro_batch, set training.recompute, or raise parallel.tensor or parallel.pipeline; "
        "`runbook plan RUN` shows the bytes of each layout.",
        r"(?:CUDA|HIP|XPU)(?: error)?:? out of memory",
        r"torch\.(?:cuda\.)?OutOfMemoryError",
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES",
    ),
    FailureClass(
        "host out of memory",
        "Ask for all memory of the node (jobs.<phase>.memory: 0), use fewer data workers, or save in parts.",
        r"oom[-_]kill",
        "Out of memory: Killed process",
        "DefaultCPUAllocator: (?:can't|not enough)",
        "OUT_OF_MEMORY",
        r"tasks? [\d,-]+: Out Of Memory",
    ),
    FailureClass(
        "collective timeout",
        "Look for the rank that stopped first: its own log ends earlier or names another failure. If none did, test "
        "the network between the nodes; raise training.process_group_timeout only if a step can really take so long.",
        "[Ww]atchdog caught collective operation timeout",
        r"Timed out waiting \d+ms for (?:recv|send)",
        "NCCL.{0,40}timed? ?out",
    ),
    FailureClass(
        "no GPU for a rank",
        "Start one rank for each GPU of a node (jobs.<phase>.devices_per_node); nvidia-smi or rocm-smi says how many "
        "it has, 01-environment whether torch is built for them. docs/trainer.md says what a site computes on.",
        "Duplicate GPU detected",
        "has no GPU of its own|, and so has another rank",
        "[Nn]o (?:CUDA GPUs are available|ROCm-capable device is detected)",
        "Found no NVIDIA driver|CUDA driver version is insufficient",
        "built for .{0,20}, sees no GPU here",
    ),
    FailureClass(
        "wrong network interface",
        "Set the interface of the site (NCCL_SOCKET_IFNAME, FI_PROVIDER) in params/sites; `ip -br addr` on a node "
        "names them.",
        "[Bb]ootstrap ?: ?[Nn]o (?:socket|NCCL_SOCKET_IFNAME) interface found",
        r"ncclSocketInit: connecting to address .{0,60}is neither AF_INET",
        "Socket creation failed : Address family not supported",
        "NET/(?:IB|OFI|Socket) ?: ?[Nn]o (?:usable |)?(?:device|interface|listening)",
        "[Uu]nable to find interface",
    ),
    FailureClass(
        "network failure",
        "Usually another rank died first: read the earliest failure of all ranks. If none, test the link of the node.",
        "NCCL WARN.{0,80}(?:error|failed|closed)",
        "ncclRemoteError|ncclSystemError",
        "Connection (?:closed|reset) by peer",
    ),
    FailureClass(
        "launcher needs ssh",
        "The machine has no ssh between nodes: start the ranks with srun or torchrun (launcher of the site), not with "
        "DeepSpeed's own launcher. On PBS, MPICH's mpiexec then waits for the walltime: docs/pbs.md says what to set.",
        r"Permission denied \(publickey",
        "Host key verification failed",
        r"pdsh@\S+: .*exited with exit code",
        "ssh: (?:connect to|Could not)",
    ),
    FailureClass(
        "NaN in the loss",
        "Resume from the last good checkpoint with a lower learning rate or other data; under fp16 try bf16.",
        "found NaN in local forward loss",
        "[Ll]oss is (?:nan|NaN|inf)",
        "Unexpected result nan",
        "number of nan iterations: +[1-9]",
    ),
    FailureClass(
        "loss scale at its floor",
        "fp16 gradients overflow at every scale: the run has diverged. Resume from before it, in bf16 or more slowly.",
        "loss scale already at minimum",
        "[Mm]inimum loss scale reached",
        "overflows at the smallest loss scale",
    ),
    FailureClass(
        "disk full",
        "Free space or raise the quota, keep fewer checkpoints (training.keep_checkpoints), then run again.",
        "[Dd]isk quota exceeded",
        "No space left on device",
        r"\[Errno (?:27|28|122)\]",
        "bytes are free on its disk",
        r"inline_container\.cc:\d+\] \. unexpected pos",  # torch.save on a full disk, where the OSError is lost
    ),
    FailureClass(
        "preempted",
        "Run it again: it resumes from the last checkpoint. Save more often where this happens often.",
        "DUE TO PREEMPTION",
        r"\bPREEMPTED\b",
    ),
    FailureClass(
        "time limit",
        "Run it again: it resumes. Set training.exit_duration a little below the walltime, so that it saves before.",
        "DUE TO TIME LIMIT",
        r"walltime \S+ exceeded",
    ),
    FailureClass(
        "node failure",
        "Exclude the node named (sbatch --exclude), tell the site, and run again: it resumes.",
        "DUE TO NODE FAILURE",
        r"\bNODE_FAIL\b",
        "NVRM: Xid",
        "fallen off the bus",
        "[Uu]ncorrectable ECC",
        "Node failure on",
    ),
    FailureClass(
        "stale lock",
        "If no process of that number runs on that host any more, remove the lock; `runbook run` does so itself and "
        "says it.",
        r"[Ll]ock (?:file )?\S+ (?:already )?exists",
        "FileExistsError.{0,60}lock",
        "could not acquire lock",
        "is held by (?:process|pid)",
    ),
    FailureClass(
        "a rank hung",
        "Its stacks are in the job's folder, ranks/<rank>.stack: the innermost line says what it waited for. Twice at "
        "one step: the program or its data; on one node only: that node.",
        r"rank \d+ \(process \d+ on \S+\) hangs at step",
    ),
    FailureClass(
        "ranks did not meet",
        "The words after it name the cause: a port in use, a rank that failed before, a wrong MASTER_ADDR, a firewall.",
        r"did not meet the others at \S+",
    ),
    FailureClass(
        "device fault",
        "Run it again. Twice on one node: exclude it and tell the site; everywhere: a kernel of the framework is wrong "
        "(switch fused kernels off, another version).",
        "Memory access fault by GPU node",
        "CUDA error: an illegal memory access",
        "HSA_STATUS_ERROR_EXCEPTION",
    ),
    FailureClass(
        "port in use",
        "Another job uses the rendezvous port: choose one from the job's number.",
        "EADDRINUSE",
        "[Aa]ddress already in use",
    ),
    FailureClass(
        "module missing",
        "The job's environment is not the one that was prepared: `runbook doctor` inside the job says what it has.",
        "(?:ModuleNotFoundError|ImportError): ",
    ),
    FailureClass(
        "file missing",
        "Compare the path with run.yaml; inside a container it must also be mounted.",
        "FileNotFoundError: ",
        ": No such file or directory$",
    ),
    FailureClass(
        "process killed",
        "Something outside killed it: look for memory in the node's log (dmesg), or for a scancel.",
        r"exitcode\s*: -9\b",
        r"Signal 9 \(SIGKILL\) received",
        r"died with <Signals\.SIGKILL",
    ),
)
_WORDS = (
    "memory", "MEMORY", "oom", "timeout", "imed out", "interface", "NET/", "NCCL", "nccl", "Connection", "publickey",
    "Host key", "pdsh", "ssh:", "NaN", "nan", "scale", "quota", "space left", "Errno", "PREEMPT", "DUE TO", "walltime",
    "NODE_FAIL", "Xid", "the bus", "ECC", "Node failure", "ock", "EADDRINUSE", "in use", "ImportError", "NotFoundError",
    "No such file", "exitcode", "SIGKILL", "OutOfMemory", "are free", "inline_container", "HSA_STATUS", "Out Of",
    "neither AF", "Address family", "overflows", "hangs at", "not meet", "access fault", "illegal memory", "no GPU",
    "another rank", "Duplicate GPU", "GPUs are available", "ROCm-capable", "NVIDIA driver", "CUDA driver",
)  # fmt: skip
"""Every class's lines hold one of these: looking for words first is ten times as quick as the expressions."""
HANG = FailureClass(
    "fused kernel build hangs",
    "A build that was killed left its lock: delete the build folder (megatron/fused_kernels/build, or torch_extensions "
    "under TORCH_EXTENSIONS_DIR) and build once on one node before the job. github.com/NVIDIA/Megatron-LM/issues/82 "
    "has others who met it.",
    "compiling and loading fused kernels",
    "Emitting ninja build file ",
    "Building extension module ",
    "Allowing ninja to set a default number of workers",
    "Loading extension module ",
    "Detected CUDA files, patching ldflags",
)
"""Only where the log ends with one of these: each is also said by a build that goes well."""
PAGE = (*CLASSES, HANG)
"""Every known failure, in the order of the page docs/when-it-fails.md, which tools/write_help.py writes."""
TITLE = "When it fails"


class FailureFinder:
    """Looks at lines as they come; `found` may be asked for at any time."""

    def __init__(self) -> None:
        self._found: dict[str, Failure] = {}
        self._hang: Failure | None = None
        self._lines_since = 0

    def look(self, line: str, number: int) -> None:
        """Look at one line."""
        self._lines_since += 1
        if any(words in line for words in HANG.patterns):
            self._hang, self._lines_since = Failure(HANG.name, number, line.strip(), 1, HANG.remedy), 0
        if not any(word in line for word in _WORDS):
            return
        for one in CLASSES:
            if one.expression.search(line):
                first = Failure(one.name, number, line.strip()[:300], 0, one.remedy)
                self._found.setdefault(one.name, first).count += 1
                return

    def found(self, *, num_records: int = 0) -> list[Failure]:
        """All failures by first appearance; a kernel build hangs only where it is the log's last word."""
        if self._hang is not None and not num_records and not self._found and self._lines_since <= 3:
            return [self._hang]
        return sorted(self._found.values(), key=lambda failure: failure.line)


def find_failures(lines: Iterable[str]) -> list[Failure]:
    """The failures that these lines name.

    >>> [(one.name, one.line) for one in find_failures(["step 1", "error: *** JOB 7 CANCELLED DUE TO TIME LIMIT ***"])]
    [('time limit', 2)]
    """
    finder = FailureFinder()
    for number, line in enumerate(lines, start=1):
        finder.look(line, number)
    return finder.found()


def anchor(name: str) -> str:
    """The place of a failure on the page, as GitHub and mkdocs name it.

    >>> anchor("NaN in the loss")
    'nan-in-the-loss'
    """
    return name.lower().replace(" ", "-")

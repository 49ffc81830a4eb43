"""Failures that logs name: which class, the line that shows it, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class FailureClass:
    """A way in which training fails, known by its words."""

    name: str
    patterns: tuple[str, ...]
    remedy: str


@dataclass(frozen=True)
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
        (
            r"(?:CUDA|HIP|XPU)(?: error)?:? out of memory",
            r"torch\.(?:cuda\.)?OutOfMemoryError",
            "HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        ),
        "Lower training.micro_batch, set training.recompute, or raise parallel.tensor or parallel.pipeline; "
        "`runbook plan RUN` shows the bytes of each layout.",
    ),
    FailureClass(
        "host out of memory",
        (
            r"oom[-_]kill",
            "Out of memory: Killed process",
            "DefaultCPUAllocator: (?:can't|not enough)",
            "OUT_OF_MEMORY",
            r"tasks? [\d,-]+: Out Of Memory",
        ),
        "Ask for all memory of the node (jobs.<phase>.memory: 0), use fewer data workers, or save in parts.",
    ),
    FailureClass(
        "collective timeout",
        (
            "[Ww]atchdog caught collective operation timeout",
            r"Timed out waiting \d+ms for (?:recv|send)",
            "NCCL.{0,40}timed? ?out",
        ),
        "Look for the rank that stopped first: its own log ends earlier or names another failure. If none did, test "
        "the network between the nodes; raise training.process_group_timeout only if a step can really take so long.",
    ),
    FailureClass(
        "wrong network interface",
        (
            "[Bb]ootstrap ?: ?[Nn]o (?:socket|NCCL_SOCKET_IFNAME) interface found",
            r"ncclSocketInit: connecting to address .{0,60}is neither AF_INET",
            "Socket creation failed : Address family not supported",
            "NET/(?:IB|OFI|Socket) ?: ?[Nn]o (?:usable |)?(?:device|interface|listening)",
            "[Uu]nable to find interface",
        ),
        "Set the interface of the site (NCCL_SOCKET_IFNAME, FI_PROVIDER) in params/sites; `ip -br addr` on a node "
        "names them.",
    ),
    FailureClass(
        "network failure",
        (
            "NCCL WARN.{0,80}(?:error|failed|closed)",
            "ncclRemoteError|ncclSystemError",
            "Connection (?:closed|reset) by peer",
        ),
        "Usually another rank died first: read the earliest failure of all ranks. If none, test the link of the node.",
    ),
    FailureClass(
        "launcher needs ssh",
        (
            r"Permission denied \(publickey",
            "Host key verification failed",
            r"pdsh@\S+: .*exited with exit code",
            "ssh: (?:connect to|Could not)",
        ),
        "The machine has no ssh between nodes: start the ranks with srun or torchrun (launcher of the site), not with "
        "DeepSpeed's own launcher.",
    ),
    FailureClass(
        "NaN in the loss",
        (
            "found NaN in local forward loss",
            "[Ll]oss is (?:nan|NaN|inf)",
            "Unexpected result nan",
            "number of nan iterations: +[1-9]",
        ),
        "Resume from the last good checkpoint with a lower learning rate or other data; under fp16 try bf16.",
    ),
    FailureClass(
        "loss scale at its floor",
        ("loss scale already at minimum", "[Mm]inimum loss scale reached", "overflows at the smallest loss scale"),
        "fp16 gradients overflow at every scale: the run has diverged. Resume from before it, in bf16 or more slowly.",
    ),
    FailureClass(
        "disk full",
        (
            "[Dd]isk quota exceeded",
            "No space left on device",
            r"\[Errno (?:27|28|122)\]",
            "bytes are free on its disk",
            r"inline_container\.cc:\d+\] \. unexpected pos",  # torch.save on a full disk, where the OSError is lost
        ),
        "Free space or raise the quota, keep fewer checkpoints (training.keep_checkpoints), then run again.",
    ),
    FailureClass(
        "preempted",
        ("DUE TO PREEMPTION", r"\bPREEMPTED\b"),
        "Run it again: it resumes from the last checkpoint. Save more often where this happens often.",
    ),
    FailureClass(
        "time limit",
        ("DUE TO TIME LIMIT", r"walltime \S+ exceeded"),
        "Run it again: it resumes. Set training.exit_duration a little below the walltime, so that it saves before.",
    ),
    FailureClass(
        "node failure",
        (
            "DUE TO NODE FAILURE",
            r"\bNODE_FAIL\b",
            "NVRM: Xid",
            "fallen off the bus",
            "[Uu]ncorrectable ECC",
            "Node failure on",
        ),
        "Exclude the node named (sbatch --exclude), tell the site, and run again: it resumes.",
    ),
    FailureClass(
        "stale lock",
        (
            r"[Ll]ock (?:file )?\S+ (?:already )?exists",
            "FileExistsError.{0,60}lock",
            "could not acquire lock",
            "is held by (?:process|pid)",
        ),
        "If no process of that number runs on that host any more, remove the lock; `runbook run` does so itself and "
        "says it.",
    ),
    FailureClass(
        "a rank hung",
        (r"rank \d+ \(process \d+ on \S+\) hangs at step",),
        "Its stacks are in the job's folder, ranks/<rank>.stack: the innermost line says what it waited for. Twice at "
        "one step: the program or its data; on one node only: that node.",
    ),
    FailureClass(
        "ranks did not meet",
        (r"did not meet the others at \S+",),
        "The words after it name the cause: a port in use, a rank that failed before, a wrong MASTER_ADDR, a firewall.",
    ),
    FailureClass(
        "device fault",
        ("Memory access fault by GPU node", "CUDA error: an illegal memory access", "HSA_STATUS_ERROR_EXCEPTION"),
        "Run it again. Twice on one node: exclude it and tell the site; everywhere: a kernel of the framework is wrong "
        "(switch fused kernels off, another version).",
    ),
    FailureClass(
        "port in use",
        ("EADDRINUSE", "[Aa]ddress already in use"),
        "Another job uses the rendezvous port: choose one from the job's number.",
    ),
    FailureClass(
        "module missing",
        ("(?:ModuleNotFoundError|ImportError): ",),
        "The job's environment is not the one that was prepared: `runbook doctor` inside the job says what it has.",
    ),
    FailureClass(
        "file missing",
        ("FileNotFoundError: ", ": No such file or directory$"),
        "Compare the path with run.yaml; inside a container it must also be mounted.",
    ),
    FailureClass(
        "process killed",
        (r"exitcode\s*: -9\b", r"Signal 9 \(SIGKILL\) received", r"died with <Signals\.SIGKILL"),
        "Something outside killed it: look for memory in the node's log (dmesg), or for a scancel.",
    ),
)
_WORDS = (
    "memory", "MEMORY", "oom", "timeout", "imed out", "interface", "NET/", "NCCL", "nccl", "Connection", "publickey",
    "Host key", "pdsh", "ssh:", "NaN", "nan", "scale", "quota", "space left", "Errno", "PREEMPT", "DUE TO", "walltime",
    "NODE_FAIL", "Xid", "the bus", "ECC", "Node failure", "ock", "EADDRINUSE", "in use", "ImportError", "NotFoundError",
    "No such file", "exitcode", "SIGKILL", "OutOfMemory", "are free", "inline_container", "HSA_STATUS", "Out Of",
    "neither AF", "Address family", "overflows", "hangs at",
    "not meet", "access fault", "illegal memory",
)  # fmt: skip
"""Every class's lines hold one of these: looking for words first is ten times as quick as the expressions."""
_HANGS = (
    "compiling and loading fused kernels",
    "Emitting ninja build file ",
    "Building extension module ",
    "Allowing ninja to set a default number of workers",
    "Loading extension module ",
    "Detected CUDA files, patching ldflags",
)
HANG = FailureClass(
    "fused kernel build hangs",
    _HANGS,
    "A build that was killed left its lock: delete the build folder (megatron/fused_kernels/build, or torch_extensions "
    "under TORCH_EXTENSIONS_DIR) and build once on one node before the job.",
)
_EACH = [(one, re.compile("|".join(f"(?:{pattern})" for pattern in one.patterns))) for one in CLASSES]


class FailureFinder:
    """Looks at lines as they come; `found` may be asked for at any time."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, str, FailureClass]] = {}
        self._counts: dict[str, int] = {}
        self._last_words: tuple[int, str] | None = None
        self._lines_since = 0

    def look(self, line: str, number: int) -> None:
        """Look at one line."""
        self._lines_since += 1
        if any(words in line for words in _HANGS):
            self._last_words, self._lines_since = (number, line.strip()), 0
        if not any(word in line for word in _WORDS):
            return
        for one, pattern in _EACH:
            if pattern.search(line):
                self._first.setdefault(one.name, (number, line.strip()[:300], one))
                self._counts[one.name] = self._counts.get(one.name, 0) + 1
                return

    def found(self, *, num_records: int = 0) -> list[Failure]:
        """All failures by first appearance; a kernel build hangs only where it is the log's last word."""
        failures = [
            Failure(name, line, evidence, self._counts[name], one.remedy)
            for name, (line, evidence, one) in self._first.items()
        ]
        if self._last_words is not None and not num_records and not failures and self._lines_since <= 3:
            line, words = self._last_words
            failures.append(Failure(HANG.name, line, words, 1, HANG.remedy))
        return sorted(failures, key=lambda failure: failure.line)


def find_failures(lines: Iterable[str]) -> list[Failure]:
    """The failures that these lines name.

    >>> [(one.name, one.line) for one in find_failures(["step 1", "error: *** JOB 7 CANCELLED DUE TO TIME LIMIT ***"])]
    [('time limit', 2)]
    """
    finder = FailureFinder()
    for number, line in enumerate(lines, start=1):
        finder.look(line, number)
    return finder.found()

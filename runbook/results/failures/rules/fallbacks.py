"""The weakest rules, for general lines no other rule matches."""

from runbook.results.failures.kinds import FABRIC, FILE
from runbook.results.failures.rule import Level, NextStep, Rule

FALLBACK_RULES = (
    Rule(
        kind=FABRIC,
        # An NCCL network warning that is not about memory, devices or settings
        patterns=(
            r"(?:net|ib|ofi|efa|rdma|socket|gdr|ucx|sharp)\w*\.[a-z]+:\d+ NCCL WARN.{0,80}(?:error|failed)",
            r"NCCL WARN NET/.{0,80}(?:error|failed)",
        ),
        unless=(
            r"Cuda failure|proxy\.cc|Proxy Call|socket|\[Service thread\]|bootstrap"
            r"|nvidia-container|mpiexec|pyxis"
        ),
        example="node:9:9 [0] transport/net.cc:1 NCCL WARN the plug-in reports an error",
        counterexample="n1:9:9 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access",
        source="NCCL, its warnings without a known call",
        level=Level.CONSEQUENCE,
        decision=NextStep.FIX_FIRST,
    ),
    # A shell or a command did not find a file. A missing library is a different failure. Lines
    # about cleaning up a container or a folder that cannot be entered do not concern files in the
    # job.
    Rule(
        kind=FILE,
        patterns=(r": No such file or directory$",),
        unless=(
            r"NCCL WARN|pyxis|enroot|slurmstepd|couldn't chdir"
            r"|\.so\b|/ld: cannot find|cannot open shared object"
        ),
        example="job.sh: line 12: ./train.sh: No such file or directory",
        counterexample="slurmstepd: pyxis: could not remove squashfs: No such file or directory",
        source="Bash and the C library, the message of ENOENT",
        level=Level.CONSEQUENCE,
    ),
)

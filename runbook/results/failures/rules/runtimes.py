"""Rules for systems that start, connect and supervise ranks: Flux, Ray, SkyPilot, NVSHMEM, enroot."""

from runbook.results.failures.kinds import (
    CONTAINER,
    DEVICE_MEMORY,
    FABRIC,
    INTERFACE,
    KERNEL,
    LAUNCHER,
    LIMITS,
    PEER_DIED,
    PREEMPTED,
    RENDEZVOUS,
    STORAGE,
    TIME_LIMIT,
)
from runbook.results.failures.rule import Level, NextStep, Rule

RUNTIME_RULES = (
    Rule(
        kind=LAUNCHER,
        patterns=(
            r"flux-shell\[\d+\]: FATAL: task \d+.{0,80}start failed",
            r"job\.exception .{0,80}\btask \d+.{0,80}start failed",
        ),
        example=(
            "0.778s: flux-shell[1]: FATAL: task 0: start failed: stress: No such file or directory"
        ),
        counterexample="flux-shell[0]: FATAL: MPI_Abort: N/A",
        source="flux-framework/flux-core#4195",
    ),
    Rule(
        kind=TIME_LIMIT,
        patterns=(r"job\.exception .{0,60}type=timeout",),
        example="5.488s: job.exception type=timeout severity=0 resource allocation expired",
        counterexample="0.576s: job.exception type=exec severity=0 MPI_Abort: N/A",
        source="flux-framework/flux-core#4195",
        # A job also waits until its time is over if the program did not start on some nodes.
        level=Level.SYMPTOM,
    ),
    Rule(
        kind=PEER_DIED,
        patterns=(
            r"flux-shell\[\d+\]: FATAL: (?:doom|task-exit|MPI_Abort)\b",
            r"job\.exception .{0,60}type=exec severity=0",
        ),
        example=(
            "flux-shell[0]: FATAL: doom: sh: rank 3 on host frontier10490 exited and "
            "exit-timeout=30s has expired"
        ),
        source="flux-framework/flux-core#7037",
        level=Level.CONSEQUENCE,
    ),
    # The launcher says that it lost the daemon on a node, but not why.
    Rule(
        kind=PEER_DIED,
        patterns=(
            r"(?:ORTE|PRTE) has lost communication with a remote daemon",
            r"Task failed because the node it was running on is dead or unavailable",
        ),
        example="ORTE has lost communication with a remote daemon.",
        counterexample="ORTE was unable to reliably start one or more daemons.",
        source="kubeflow/mpi-operator#152",
        level=Level.CONSEQUENCE,
    ),
    Rule(
        kind=PREEMPTED,
        patterns=(r"\bCluster is preempted\b",),
        example=(
            "I 12-10 21:39:39 controller.py:118] Cluster is preempted (status: INIT). Recovering..."
        ),
        source="skypilot-org/skypilot#1500",
        in_warnings=True,
    ),
    Rule(
        kind=FABRIC,
        patterns=(
            r"nvshmem\S*:\d+: non-zero status: ",
            r"nvshmem initialization failed",
            r"nvshmem\S*: Unable to initialize any transports",
        ),
        example=(
            "/sgl-workspace/nvshmem/src/host/init/init.cu:998: non-zero status: 7 building "
            "transport map failed"
        ),
        counterexample="NVSHMEM API called before NVSHMEM initialization has completed",
        source="deepseek-ai/DeepEP#223",
        decision=NextStep.FIX_FIRST,
    ),
    Rule(
        kind=INTERFACE,
        patterns=(
            (
                r"socketStartConnect: Connect to \S+ failed ?: "
                r"(?:No route to host|Network is unreachable)"
            ),
        ),
        example="socketStartConnect: Connect to 192.168.19.14<52822> failed : No route to host",
        counterexample="socketStartConnect: Connect to 192.168.19.14<52822> failed : Connection refused",
        source="hkproj/pytorch-transformer-distributed#1",
    ),
    Rule(
        kind=DEVICE_MEMORY,
        patterns=(
            r"hip_memory\.cpp\b.{0,120}Allocation failed : Device memory",
            r"Video memory allocation failed",
        ),
        example=(
            ":1:memory.cpp               :347 : 9616777840 us: 4277 : [tid:0x7f2accbfe6c0] "
            "Video memory allocation failed!"
        ),
        source="ROCm/legacy-rocm-build#2480",
    ),
    Rule(
        kind=LIMITS,
        patterns=(r"ThreadPoolBuildError \{.{0,80}kind: WouldBlock",),
        example=(
            "thread '<unnamed>' panicked at 'The global thread pool has not been initialized.: "
            "ThreadPoolBuildError { kind: IOError(Os { code: 11, kind: WouldBlock, message: "
            '"Resource temporarily unavailable" }) }\''
        ),
        source="huggingface/tokenizers#444",
    ),
    # enroot could not download an image. A path without a slash is taken for an image in a
    # registry.
    Rule(
        kind=CONTAINER,
        patterns=(r"\bURL https?://\S+ returned error code: \d",),
        example=(
            "URL https://registry-1.docker.io/v2/library/mlperf-nvidia/manifests/minigo returned "
            "error code: 401 Unauthorized"
        ),
        source="NVIDIA/pyxis#70",
    ),
    Rule(
        kind=RENDEZVOUS,
        patterns=(r"DEADLINE_EXCEEDED: Connect\(\) timed out after",),
        example=(
            "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Connect() timed out after 0 "
            "with 1 attempts."
        ),
        source="alpa-projects/alpa#826",
    ),
    # The driver gave up the device, after a fault in a kernel or in the device itself.
    Rule(
        kind=KERNEL,
        patterns=(r"\bUR_RESULT_ERROR_DEVICE_LOST\b",),
        example="RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)",
        source="pytorch/pytorch#190972",
    ),
    Rule(
        kind=STORAGE,
        patterns=(r"File locking failed in ADIOI_",),
        example=(
            "File locking failed in ADIOI_Set_lock. If the file system is NFS, you need to use NFS "
            "version 3"
        ),
        source="pmodels/mpich#316",
    ),
)

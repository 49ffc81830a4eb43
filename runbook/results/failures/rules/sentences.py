"""Rules for complete sentences printed by programs.

They precede the other rules, which match single words in these sentences and would name another
failure.
"""

from runbook.results.failures.kinds import (
    BUILD,
    CANCELLED,
    CHECKPOINT_DAMAGE,
    CHECKPOINT_FIT,
    CONFIGURATION,
    CONTAINER,
    DATA,
    DEVICE_MEMORY,
    DISK,
    FABRIC,
    GPU_STACK,
    HOST_MEMORY,
    INTERFACE,
    KERNEL,
    KILLED,
    LAUNCHER,
    LIMITS,
    MODULE,
    NODE,
    NOTEBOOK,
    PEER_DIED,
    PREEMPTED,
    REFUSED_JOB,
    RENDEZVOUS,
    STORAGE,
    TIME_LIMIT,
    TIMEOUT,
    VISIBILITY,
)
from runbook.results.failures.rule import Level, NextStep, Rule

MEMORY_SENTENCES = (
    Rule(
        kind=DEVICE_MEMORY,
        patterns=(
            r"OOM when allocating tensor",
            r"backend out of memory \(",
            r"insufficient memory on gpu",
            r"Out of memory error on GPU",
        ),
        unless=r"allocator cpu|device:CPU",
        example="ResourceExhaustedError: OOM when allocating tensor with shape[64,512,512] and type float on "
        "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        counterexample="ResourceExhaustedError: OOM when allocating tensor with shape[64] and type float by allocator cpu",
        source="TensorFlow, a message of tensorflow/core/framework/op_kernel.cc",
    ),
    Rule(
        kind=HOST_MEMORY,
        patterns=(
            r"OOM when allocating tensor",
            r"poll\(\): Cannot allocate memory",
            r"(?:job|cgroup|container)\b.{0,60}memory usage exceeded the limit",
            r"memory usage exceeded the limit.{0,60}(?:kill|job|cgroup)",
        ),
        example="ResourceExhaustedError: OOM when allocating tensor with shape[64] and type float by allocator cpu",
        counterexample="GPU memory usage exceeded the limit, offloading to CPU",
        source="TensorFlow, a message of tensorflow/core/framework/op_kernel.cc",
    ),
    # LSF names the limit for which it ended a job.
    Rule(
        kind=HOST_MEMORY,
        patterns=(r"TERM_(?:MEMLIMIT|SWAP): job killed",),
        example="TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
        source="wheaton5/souporcell#20",
    ),
    Rule(
        kind=LIMITS,
        patterns=(
            r"TERM_(?:THREADLIMIT|PROCESSLIMIT): job killed",
            # PBS: the processes use more cores than were requested.
            r"job killed: n?cpus? .{0,40}exceeded limit",
        ),
        example="TERM_THREADLIMIT: job killed after reaching LSF thread limit.",
        source="cdanielmachado/carveme#34",
    ),
    # GNU time, which a script uses to measure a command
    Rule(
        kind=KILLED,
        patterns=(r"^Command terminated by signal 9$",),
        example="Command terminated by signal 9",
        source="ncbi/fcs#69",
    ),
    Rule(
        kind=LIMITS,
        patterns=(r"RLIMIT_MEMLOCK is (?:\d|too)",),
        example="libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.",
        counterexample="RLIMIT_MEMLOCK is unlimited",
        source="rdma-core, a message of libibverbs/init.c",
        level=Level.SYMPTOM,
        in_warnings=True,
    ),
)
DEVICE_SENTENCES = (
    Rule(
        kind=NODE,
        patterns=(r"NodeDiedError",),
        example="ray.exceptions.NodeDiedError: Task failed due to the node dying.",
        source="Ray, python/ray/exceptions.py",
        level=Level.SYMPTOM,
    ),
    Rule(
        kind=VISIBILITY,
        patterns=(r"(?:CUDA|exclusive)\b.{0,60}device already in use",),
        example="Check failed: e == cudaSuccess CUDA: exclusive-thread device already in use by a different thread",
        counterexample="tun0: device already in use, using tun1",
        source="apache/mxnet#2632",
    ),
    Rule(
        kind=GPU_STACK,
        patterns=(r"CUDA driver initialization failed",),
        example="RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu.",
        source="PyTorch, a message of c10/cuda/CUDAFunctions.cpp",
        level=Level.SYMPTOM,
        in_warnings=True,
        also=VISIBILITY,
        check="If nvidia-smi fails on the node, the driver is to blame; otherwise the job got no GPU.",
    ),
    Rule(
        kind=KERNEL,
        patterns=(r"CUDA error: the launch timed out and was terminated",),
        example="RuntimeError: CUDA error: the launch timed out and was terminated",
        source="CUDA, the message of cudaErrorLaunchTimeout",
    ),
    Rule(
        kind=NODE,
        patterns=(
            r"CUDA error: unknown error",
            r"\[Hardware Error\]: (?:Machine check(?! events logged)|Uncorrected)",
        ),
        example="RuntimeError: CUDA error: unknown error",
        counterexample="mce: [Hardware Error]: Machine check events logged",
        source="CUDA, the message of cudaErrorUnknown",
        level=Level.SYMPTOM,
    ),
    # A program started with --nv on a node without a GPU runs on the CPU.
    Rule(
        kind=CONTAINER,
        patterns=(
            r"Could not find any (?:nv|rocm) files on this host",
            r"NVIDIA Driver was not detected",
        ),
        example="WARNING: Could not find any nv files on this host!",
        source="Apptainer, a message of internal/pkg/util/gpu/nvidia.go",
        level=Level.SYMPTOM,
        in_warnings=True,
        may_go_on=True,
    ),
)
RANK_SENTENCES = (
    # The JAX coordination service: processes that never registered, and processes that were lost.
    # Workers in Ray meet at a service called GCS.
    Rule(
        kind=RENDEZVOUS,
        patterns=(
            r"Barrier timed out\. .{0,20}(?:PjRT_Client_Connect|\[Init\])",
            r"coordination service as cluster registration failed",
            r"Unable to connect to GCS at",
        ),
        example="jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: "
        "PjRT_Client_Connect. Timed out task names:",
        counterexample="DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: multihost_broadcast_sync0.",
        source="ayaka14732/llama-2-jax#20",
    ),
    Rule(
        kind=TIMEOUT,
        patterns=(r"DEADLINE_EXCEEDED: Barrier timed out",),
        example="DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: multihost_broadcast_sync0.",
        source="marin-community/levanter#432",
    ),
    Rule(
        kind=PEER_DIED,
        patterns=(
            r"coordination service: UNAVAILABLE: Task",
            r"JAX distributed service detected fatal errors",
            r"Polled an error from coordination service",
            r"Failed to send RPC to coordination service",
        ),
        example="E0929 17:42:48.594192 1044529 coordination_service_agent.cc:332] Polled an error from coordination "
        "service (this can be an error from this or another task).",
        source="jax-ml/jax#39095",
        level=Level.CONSEQUENCE,
    ),
    # The fabric library from Intel and Cornelis
    Rule(
        kind=FABRIC,
        patterns=(r"Assertion failure at psm\d?/",),
        example="machine:rank1: Assertion failure at psm3/ptl_am/ptl.c:196: nbytes == req->req_data.recv_msglen",
        source="uxlfoundation/oneCCL#109",
    ),
    Rule(
        kind=FABRIC,
        patterns=(r"Open MPI failed an OFI Libfabric library call",),
        example="Open MPI failed an OFI Libfabric library call (fi_domain).  This is highly",
        source="open-mpi/ompi#12038",
        also=INTERFACE,
        check="`fi_info -p cxi` (or efa, verbs) inside the job shows whether the provider exists at all.",
    ),
    Rule(
        kind=PEER_DIED,
        patterns=(r"received errors while waiting for send/recv from rank \d+",),
        example="RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting for "
        "send/recv from rank 0. Please check rank 0 logs for faulty rank.",
        counterexample="RuntimeError: Rank 1 failed to pass monitoredBarrier in 30000 ms",
        source="pytorch/pytorch#76198",
        also=TIMEOUT,
        check="The line below names the original exception: a closed connection, or a timeout.",
    ),
    Rule(
        kind=PEER_DIED,
        patterns=(
            r"^-- Process \d+ terminated with the following error:",
            r"^Process \d+ terminated with the following error:",
            r"ProcessExitedException: process \d+ terminated",
            r"ProcessRaisedException",
            r"Horovod has been shut down",
            r"WorkerCrashedError",
            r"Connection was likely closed",
            r"[Ww]orker died or was killed while executing a task",
        ),
        example="(raylet) A worker died or was killed while executing a task by an unexpected system error.",
        source="ray-project/ray#49998",
        level=Level.CONSEQUENCE,
        in_warnings=True,
    ),
    # A terminal or an ssh session hangs up when it is closed.
    Rule(
        kind=CANCELLED,
        patterns=(
            r"Received 1 death signal",
            r"Process \d+ got signal: 1\b",
            r"closing signal SIGHUP",
        ),
        example=(
            "W0920 09:10:41.194000 84933 site-packages/torch/distributed/elastic/agent/server/"
            "api.py:719] Received 1 death signal, shutting down workers"
        ),
        counterexample="Received 15 death signal, shutting down workers",
        source="modelscope/ms-swift#5884",
        level=Level.SYMPTOM,
        also=PEER_DIED,
        check="If the terminal was closed, start the job with sbatch, tmux or nohup.",
        in_warnings=True,
    ),
    # torchrun itself was ended: by its user, by the queue, or by srun after another node ended.
    Rule(
        kind=CANCELLED,
        patterns=(r"Received (?:2|15) death signal",),
        example="torch.distributed.elastic.agent.server.api: [WARNING] Received 15 death signal, shutting down workers",
        source="PyTorch, a message of torch/distributed/elastic/agent/server/api.py",
        level=Level.SYMPTOM,
        also=PEER_DIED,
        check="If another node's log ends earlier or names an error, that node ended first.",
        in_warnings=True,
    ),
    Rule(
        kind=INTERFACE,
        patterns=(
            r"NCCL WARN Error: network .{0,40}not found",
            r"NET/OFI Only EFA provider is supported",
            r"OFI addrinfo\(\) failed",
        ),
        example="n1:1:2 [0] init.cc:433 NCCL WARN Error: network AWS Libfabric not found.",
        source="NVIDIA/nccl, a message of src/init.cc",
    ),
    Rule(
        kind=RENDEZVOUS,
        patterns=(
            r"^RuntimeError: Socket Timeout$",
            r"Timed out waiting for tasks to start",
            r"DEADLINE_EXCEEDED.{0,80}coordinat",
            r"(?:[Jj]ax|[Xx]la|distributed).{0,80}DEADLINE_EXCEEDED.{0,80}connect",
            r"DEADLINE_EXCEEDED.{0,80}connect.{0,80}(?:jax|xla|distributed)",
        ),
        example="RuntimeError: Socket Timeout",
        counterexample="DEADLINE_EXCEEDED: wandb: failed to connect to api",
        source="pytorch/pytorch#55571",
        level=Level.SYMPTOM,
    ),
)
FILE_SENTENCES = (
    # DeepSpeed swaps parameters and optimizer states to a local disk.
    Rule(
        kind=STORAGE,
        patterns=(
            r"buffer nbytes != file bytes",
            r"deepspeed_\w*aio\w*\.cpp:\d+: .{0,300}Assertion",
        ),
        example="/zero_stage_3/optimizer/rank1/1403_gradient_9881.tensor.swp: buffer nbytes != file bytes 301989888 != 0",
        source="deepspeedai/DeepSpeed#1627",
        also=DISK,
        check="`df` and `df -i` of nvme_path on the node show whether the disk is full.",
    ),
    Rule(
        kind=STORAGE,
        patterns=(r"OSError: \[Errno 121\] Remote I/O error",),
        example="OSError: [Errno 121] Remote I/O error",
        source="Linux, the message of EREMOTEIO",
        decision=NextStep.RETRY_AFTER_WAIT,
    ),
    # The kernel continues as soon as the server responds again.
    Rule(
        kind=STORAGE,
        patterns=(r"nfs: server \S+ not responding",),
        example="nfs: server 10.0.0.3 not responding, still trying",
        source="Linux kernel, a message of net/sunrpc/clnt.c",
        level=Level.SYMPTOM,
        decision=NextStep.RETRY_AFTER_WAIT,
        may_go_on=True,
    ),
    Rule(
        kind=DATA,
        patterns=(
            r"\(truncated file: eof = \d+",
            r"DataLossError: (?:truncated|corrupted) record",
            r"UnidentifiedImageError",
        ),
        example="Unable to synchronously open file (truncated file: eof = 590254080, sblock->base_addr = 0, "
        "stored_eof = 806284784)",
        counterexample="Unable to open file (unable to lock file, errno = 11)",
        source="Lifelong-Robot-Learning/LIBERO#76",
        also=CHECKPOINT_DAMAGE,
        check="The lines above name the file: part of the data, or a checkpoint.",
    ),
    Rule(
        kind=CHECKPOINT_FIT,
        patterns=(
            r"Can't find a valid checkpoint at",
            r"zero checkpoints? paths? (?:is|are) missing",
        ),
        example="ValueError: Can't find a valid checkpoint at /ckpt/checkpoint-500",
        source="transformers, a message of src/transformers/trainer.py",
    ),
)
SOFTWARE_SENTENCES = (
    Rule(
        kind=BUILD,
        patterns=(
            r"Could not build wheels for",
            r"CalledProcessError: Command '?\['\S*(?:gcc|g\+\+|/cc|clang|nvcc|hipcc)",
        ),
        example="ERROR: Could not build wheels for transformer-engine, which is required to install "
        "pyproject.toml-based projects",
        source="pip, a message of src/pip/_internal/commands/install.py",
    ),
    Rule(
        kind=BUILD,
        patterns=(r"fatal error: Killed signal terminated program",),
        example="c++: fatal error: Killed signal terminated program cc1plus",
        source="GCC, a message of gcc/gcc.cc",
        also=HOST_MEMORY,
        check="The kernel killed the compiler because memory ran out: build with fewer jobs (MAX_JOBS).",
    ),
    # PyTorch and DeepSpeed compare the versions before they build an extension.
    Rule(
        kind=BUILD,
        patterns=(
            r"detected CUDA version .{0,40}mismatches the version that was used to compile",
            r"CUDAMismatchException",
            r"Op Builder: Installed CUDA version",
        ),
        example="RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to compile "
        "PyTorch (12.1).",
        source="PyTorch, a message of torch/utils/cpp_extension.py",
        also=GPU_STACK,
        check="If the extension was built before, a module or a container has changed the CUDA version.",
    ),
    # A script may continue without an optional package.
    Rule(
        kind=MODULE,
        patterns=(
            r"No matching distribution found for",
            r"Could not find a version that satisfies the requirement",
        ),
        example="ERROR: No matching distribution found for megatron-core==0.99",
        source="pip, a message of src/pip/_internal/resolution/resolvelib/factory.py",
        may_go_on=True,
    ),
    Rule(
        kind=CONFIGURATION,
        patterns=(r"TypeError: (?:\w+\.)*__init__\(\) got an unexpected keyword argument",),
        example="TypeError: Trainer.__init__() got an unexpected keyword argument 'gpus'",
        source="lavis-nlp/jerex#19",
        level=Level.SYMPTOM,
        also=MODULE,
        check=(
            "If the argument is not yours, the program expects a different version of the package."
        ),
    ),
    Rule(
        kind=CONFIGURATION,
        patterns=(
            # Hydra prints the key without the name of the exception.
            r"^Key '[\w.]+' (?:is )?not in (?:struct|'\w+')$",
            r"Please correct the following DeepSpeed config values that mismatch",
            r"error: Key \"[\w.]+\" is not expected",
            r"Target modules? .{0,200}not found in the base model",
            r"Cannot re-initialize CUDA in forked subprocess",
            r"Not enough buffers \d+ for swapping \d+",
        ),
        example="Key 'period' not in 'ModelCheckpointConf'",
        counterexample="Key 'period' not in the cache, it is computed anew",
        source="SeanNaren/deepspeech.pytorch#670",
    ),
)
JOB_SENTENCES = (
    Rule(
        kind=TIME_LIMIT,
        patterns=(r"TERM_CPULIMIT: job killed",),
        example="TERM_CPULIMIT: job killed after reaching LSF CPU usage limit.",
        source="LSF, the termination reasons of bhist and bjobs",
    ),
    Rule(
        kind=REFUSED_JOB,
        patterns=(
            r"nodes are available: .{0,40}Insufficient",
            r"Unable to run job: job rejected",
            r"PodGroup \S+ unschedulable",
        ),
        example="0/12 nodes are available: 12 Insufficient nvidia.com/gpu.",
        counterexample="spec: unschedulable: false",
        source="Kubernetes, an event of the scheduler",
        level=Level.SYMPTOM,
        decision=NextStep.RETRY_AFTER_WAIT,
        in_warnings=True,
    ),
    Rule(
        kind=REFUSED_JOB,
        patterns=(
            r"\b[Jj]ob not submitted\b",
            r"outside the range set by RESRSV_LIMIT",
        ),
        example="value is outside the range set by RESRSV_LIMIT defined in lsb.queues. Job",
        source="bcbio/bcbio-nextgen#2803",
    ),
    Rule(
        kind=CANCELLED,
        patterns=(r"TERM_(?:FORCE_)?(?:OWNER|ADMIN): job killed",),
        example="TERM_OWNER: job killed by owner.",
        source="LSF, the termination reasons of bhist and bjobs",
    ),
    Rule(
        kind=PREEMPTED,
        patterns=(
            r"TERM_PREEMPT: job killed",
            r"^(?:\(\w+\) )?[Pp]reempted by (?:a )?(?:higher|pod|workload|another)",
            r"(?:was|been|got) preempted by (?:a )?(?:higher|pod|workload|another)",
        ),
        example="Preempted by a pod on node gpu-17",
        counterexample="jobs in this partition are preempted by higher-priority jobs",
        source="Kubernetes, an event of the scheduler",
        in_warnings=True,
    ),
    Rule(
        kind=LAUNCHER,
        patterns=(r"Couldn't forward RPC \w+\(", r"^launch failed on \S+: "),
        example="launch failed on x3001c0s1b0n0: Couldn't forward RPC launch(ab751d77) to child x3001c0s31b0n0: "
        "Resource temporarily unavailable",
        source="PALS, a message of mpiexec on Polaris (docs.alcf.anl.gov)",
    ),
    Rule(
        kind=NOTEBOOK,
        patterns=(r"No kernel name found in notebook",),
        example="ValueError: No kernel name found in notebook and no override provided.",
        source="papermill, a message of papermill/utils.py",
    ),
)

SENTENCE_RULES = (
    *MEMORY_SENTENCES,
    *DEVICE_SENTENCES,
    *RANK_SENTENCES,
    *FILE_SENTENCES,
    *SOFTWARE_SENTENCES,
    *JOB_SENTENCES,
)

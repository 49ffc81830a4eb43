"""Rules for running out of memory (devices, hosts, /dev/shm), and for system limits."""

from runbook.results.failures.kinds import (
    DEVICE_MEMORY,
    FABRIC,
    GPU_STACK,
    HOST_MEMORY,
    LIMITS,
    SHARED_MEMORY,
    STORAGE,
)
from runbook.results.failures.rule import Level, NextStep, Rule

_OF_MEMORY = r"(?:[Jj]ob|[Ss]tep|cgroup|[Pp]rocess|[Tt]ask|[Cc]ontainer|[Pp]od|[Nn]ode)"
"""Things with a memory limit set by the system. Programs have their own limits."""

MEMORY_RULES = (
    # The rules for /dev/shm come first, since lines about it also contain "no space left" and
    # "memory".
    Rule(
        kind=SHARED_MEMORY,
        patterns=(
            r"posix_fallocate failed",
            r"[Ee]rror while creating shared memory segment",
            r"failed to extend /dev/shm",
            r"shm_open(?: failed|\(.{0,120}No space)",
            r"/dev/shm/\S*.{0,80}No space left",
            r"No space left on device: '/dev/shm/",
        ),
        example="include/shm.h:28 NCCL WARN Call to posix_fallocate failed: No space left on device",
        source="NVIDIA/nccl#342",
    ),
    # UCX shares this buffer between the ranks on a node, and then crashes without it.
    Rule(
        kind=SHARED_MEMORY,
        patterns=(r"mm_iface failed to allocate receive FIFO",),
        example="mm_iface failed to allocate receive FIFO",
        counterexample="mm_iface.c:123 UCX DEBUG allocated receive FIFO",
        source="NVIDIA/ai-cloud-validation#643",
    ),
    Rule(
        kind=SHARED_MEMORY,
        patterns=(
            r"killed by signal: Bus error",
            r"insufficient shared memory",
            r"out of shared memory",
            r"unable to (?:write to|mmap|resize) (?:shared memory|file </torch_)",
        ),
        example="RuntimeError: DataLoader worker (pid 325) is killed by signal: Bus error.",
        source="msr-fiddle/pipedream#28",
    ),
    # Each of these objects is also an open file.
    Rule(
        kind=SHARED_MEMORY,
        patterns=(r"unable to open (?:shared memory|file </torch_)",),
        unless=r"Too many open files",
        example="RuntimeError: unable to open shared memory object </torch_30997_2076642173> in read-write mode",
        source="facebookresearch/maskrcnn-benchmark#158",
        level=Level.SYMPTOM,
        also=LIMITS,
        check="If the log also says too many open files, raise `ulimit -n`.",
    ),
    Rule(
        kind=SHARED_MEMORY,
        patterns=(
            r"[Uu]nexpected bus error encountered in worker",
            r"\bBus error\b",
            r"(?:[Nn]ot enough|[Ii]nsufficient).{0,40}shared memory",
            r"\(core dumped\).*SIGBUS",
            r"signal 7\b.{0,20}[Bb]us error",
            r"exitcode\s*: -7\b",
            r"exits with return code = -7\b",
            r"<Signals\.SIGBUS",
        ),
        example="ERROR: Unexpected bus error encountered in worker. This might be caused by "
        "insufficient shared "
        "memory (shm).",
        source="msr-fiddle/pipedream#28",
    ),
    Rule(
        kind=SHARED_MEMORY,
        patterns=(
            r"ncclShm",
            r"shmutils\.cc.{0,20}NCCL WARN",
            r"shm\.cc.{0,30}NCCL WARN",
        ),
        example="host:9:9 [3] misc/shmutils.cc:112 NCCL WARN Error while creating shared memory "
        "segment "
        "/dev/shm/nccl-KWfVyt (size 5967872)",
        source="NVIDIA/nccl-tests#166",
    ),
    # UCX opens every device in the node, and reports this even for a device no rank uses.
    Rule(
        kind=LIMITS,
        patterns=(r"\bUCX +ERROR \S+: ibv_create_cq\(\) failed: Cannot allocate memory",),
        example=(
            "ib_log.c:246  UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory. "
            "Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)"
        ),
        source="openucx/ucx#8746",
        level=Level.SYMPTOM,
        may_go_on=True,
    ),
    Rule(
        kind=LIMITS,
        patterns=(
            (
                r"ibv_(?:create_cq|reg_mr\w*|create_qp|alloc_pd|reg_dmabuf_mr)\w*.{0,40}(?:Cannot "
                r"allocate memory|ENOMEM|errno 12)"
            ),
            r"register(?:ed)? memory.{0,60}locked memory",
            r"mlock\w* failed",
            r"[Uu]nable to (?:lock|register) memory",
        ),
        error_patterns=(
            r"RLIMIT_MEMLOCK",
            r"[Mm]emlock.{0,40}(?:limit|too)",
            r"locked.memory limit",
            r"max locked memory",
        ),
        example=(
            "misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error Cannot "
            "allocate memory"
        ),
        source="NVIDIA/nccl#1191",
    ),
    # NCCL before 2.14 prints no reason. In every public thread that reports a solution, the limit
    # on locked memory was the reason why a queue or a region could not be created.
    Rule(
        kind=LIMITS,
        patterns=(r"ibv_(?:create_cq|reg_mr\w*)(?:\(\))? failed\s*$",),
        example="spark01:9:9 [0] misc/ibvwrap.cc:268 NCCL WARN Call to ibv_create_cq failed",
        source="NVIDIA/nccl#380, cause as in openucx/ucx#8229",
        also=FABRIC,
        check="`ulimit -l` inside the job: if it is unlimited, the fault is the fabric's.",
    ),
    # System V segments have separate limits (ipcs -l), which do not apply to /dev/shm.
    Rule(
        kind=LIMITS,
        patterns=(
            r"shm(?:get|at)\(.{0,80}fail",
            r"check shared memory limits",
            r"semget\(?.{0,60}fail",
        ),
        example="sys.c:619  UCX  ERROR shmget(size=2097152 flags=0xfb0) for mm_recv_desc failed: Operation not "
        "permitted, please check shared memory limits by 'ipcs -l'",
        counterexample="sys.c:619  UCX  ERROR failed to open the device: Operation not permitted",
        source="open-mpi/ompi#6084",
    ),
    Rule(
        kind=LIMITS,
        patterns=(
            r"UCX.{0,60}ERROR.{0,80}Cannot allocate memory",
            r"Failed to create UC[PT].{0,40}Cannot allocate memory",
            r"fi_(?:mr_reg|cq_open|endpoint).{0,60}Cannot allocate memory",
        ),
        example="UCX  ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory",
        source="openucx/ucx, a message of ib_iface.c",
    ),
    Rule(
        kind=LIMITS,
        patterns=(
            r"[Tt]oo many open files",
            r"\[Errno (?:23|24)\]",
            r"EMFILE",
            r"received 0 items of ancdata",
            r"[Ff]ile table overflow",
            r"\bArgument list too long\b",
        ),
        error_patterns=(
            r"ulimit -n",
            r"max_map_count",
        ),
        example=(
            "RuntimeError: Too many open files. Communication with the workers is no longer "
            "possible."
        ),
        source="zju3dv/NeuralRecon#91",
    ),
    # fork() and flock() report the same error.
    Rule(
        kind=LIMITS,
        patterns=(r"BlockingIOError: \[Errno 11\]",),
        unless=r"retrying|\bf?lock",
        example="BlockingIOError: [Errno 11] Resource temporarily unavailable",
        source="Python, the exception of EAGAIN",
        also=STORAGE,
        check="The traceback shows a fork (limit) or a flock (another process holds the file).",
    ),
    Rule(
        kind=LIMITS,
        patterns=(
            r"pthread_create(?: failed|\(\)|:)",
            r"RLIMIT_NPROC",
            r"can't start new thread",
            r"fork: (?:retry: )?(?:Resource temporarily|No child processes)",
            r"(?:thread|fork|clone|spawn|[Cc]an't create|Errno 11\]).{0,60}Resource temporarily unavailable",
            r"libgomp: Thread creation failed",
            # The constructor of std::thread
            r"what\(\): +Resource temporarily unavailable",
            r"OMP: Error #34",
            r"(?:[Ff]ailed|[Uu]nable) to (?:create|start) (?:an? )?(?:\w+ )?threads?\b",
        ),
        error_patterns=(r"inotify (?:watch|instance)",),
        unless=r"retrying|\bf?lock|srun: .*[Ss]tep creation",
        example="OpenBLAS blas_thread_init: pthread_create: Resource temporarily unavailable",
        source="willsheffler/worms#2",
    ),
    Rule(
        kind=DEVICE_MEMORY,
        patterns=(
            r"(?:CUDA|Cuda|HIP|XPU|NPU)(?: driver)?(?: [Ee]rror)?:? out of memory",
            r"OutOfMemoryError: Out of memory allocating",
            r"torch\.(?:cuda\.|xpu\.)?OutOfMemoryError",
            r"hipErrorOutOfMemory",
            r"cudaErrorMemoryAllocation",
            r"CUDA_ERROR_OUT_OF_MEMORY",
            r"OUT_OF_DEVICE_MEMORY",
            r"HSA_STATUS_ERROR_OUT_OF_RESOURCES",
            r"CUBLAS_STATUS_ALLOC_FAILED",
            r"CUDNN_STATUS_ALLOC_FAILED",
            r"RESOURCE_EXHAUSTED: .{0,80}(?:OOM|allocat(?:e|ing)\b|[Oo]ut of memory)",
            # The allocator for TPUs
            r"Attempting to (?:allocate|reserve) .{0,60}That was not possible",
            r"CUDNN_STATUS_INTERNAL_ERROR_\w*ALLOCATION_FAILED",
            r"NVML_ERROR_INSUFFICIENT_MEMORY",
            r"NCCL WARN Cuda failure (?:\d+ )?'?out of memory",
            r"Cuda failure .{0,40}out of memory",
            r"GPU (?:is )?out of memory",
            r"[Oo]ut of device memory",
            r"failed to allocate .{0,40} from device",
        ),
        example="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        source="mistralai/mistral-finetune#69",
        in_warnings=True,
    ),
    Rule(
        kind=DEVICE_MEMORY,
        patterns=(
            r"CU(?:BLAS|DNN)_STATUS_NOT_INITIALIZED",
            r"cublas runtime error : library not init",
        ),
        example="RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        source="milesial/Pytorch-UNet#372",
        level=Level.SYMPTOM,
        also=GPU_STACK,
        check="If nvidia-smi shows free memory on the device, compare its CUDA version with torch's.",
    ),
    Rule(
        kind=HOST_MEMORY,
        patterns=(
            r"oom[-_ ]kill",
            r"OOM[- ]?[Kk]ill(?:ed|er)?",
            r"Out of memory: Kill(?:ed)? process",
            r"[Mm]emory cgroup out of memory",
            r"\bOUT_OF_MEMORY\b",
            r"tasks? [\d,-]+: Out Of Memory",
            r": Out Of Memory$",
            r"[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure",
        ),
        example="slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step "
        "tasks have been "
        "OOM Killed.",
        source="chrisknewman/tusas#149",
    ),
    Rule(
        kind=HOST_MEMORY,
        patterns=(
            r"DefaultCPUAllocator: (?:can't|not enough)",
            r"std::bad_alloc",
            r"\[Errno 12\] Cannot allocate memory",
            r"\bMemoryError\b",
            r"(?:malloc|mmap|fork|os\.fork).{0,40}Cannot allocate memory",
            r"[Uu]nable to allocate .{0,40}(?:[KMGT]i?B|bytes)",
            r"numpy\.core\._exceptions\._ArrayMemoryError",
            r"unable to mmap .{0,200}Cannot allocate memory",
            r"cudaHostAlloc.{0,40}out of memory",
            r"Not enough (?:host )?memory",
        ),
        unless=r"ibv_|hugepage|If MemoryError",
        example="DefaultCPUAllocator: can't allocate memory: you tried to allocate 4009910272 "
        "bytes. Error code 12 "
        "(Cannot allocate memory)",
        source="OptimalScale/LMFlow#90",
    ),
    Rule(
        kind=HOST_MEMORY,
        patterns=(
            r"DataLoader worker \(pid.{0,20}\) is killed by signal: (?:Killed|Terminated)",
            r"A process in the process pool was terminated abruptly",
            r"BrokenProcessPool",
            r"worker .{0,40}killed.{0,40}memory",
            r"Ray.{0,60}killed.{0,60}(?:memory|OOM)",
            r"killed due to .{0,20}node running low on memory",
        ),
        example="RuntimeError: DataLoader worker (pid 19597) is killed by signal: Killed. ",
        source="hezhangsprinter/DCPDN#12",
    ),
    # The worker may also have raised an error itself. In that case, its traceback is above.
    Rule(
        kind=HOST_MEMORY,
        patterns=(r"DataLoader worker \(pid.{0,60}\) exited unexpectedly",),
        example="RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly",
        source="PyTorch, torch/utils/data/dataloader.py",
        level=Level.SYMPTOM,
        decision=NextStep.UNKNOWN,
        also=SHARED_MEMORY,
        check=(
            "Run with 0 data workers: an error of the data set then shows its traceback. "
            "`sacct -o MaxRSS,State` or dmesg names a process killed because of its memory use, "
            "`df -h /dev/shm` a full /dev/shm."
        ),
    ),
    Rule(
        kind=HOST_MEMORY,
        patterns=(
            r"(?:mem|pmem|vmem|pvmem|memory).{0,30} exceeded (?:limit|resource)",
            r"job killed: (?:mem|vmem)",
            rf"exceed(?:s|ed|ing) (?:\w+ ){{0,2}}{_OF_MEMORY} (?:\w+ )?memory (?:\w+ )?limit",
            rf"{_OF_MEMORY}\b.{{0,60}} exceed(?:s|ed|ing) (?:\w+ ){{0,3}}memory (?:\w+ )?limit",
            r"Exceeded .{0,20}memory (?:limit|allocation)",
            r"cgroup mem(?:ory)? limit exceeded",
            r"exceeded virtual memory limit",
            r"[Kk]illed .{0,40}exceeded .{0,30}memory",
            r"Some of your processes may have been killed by the cgroup",
        ),
        example="=>> PBS: job killed: mem 131334144kb exceeded limit 125829120kb",
        source="OpenPBS, a message of pbs_mom",
    ),
    Rule(
        kind=HOST_MEMORY,
        patterns=(r"Killing subprocess \d+",),
        after=r"CPU Virtual Memory: +used = .*percent = (?:[89]\d|100)",
        example_before="CPU Virtual Memory:  used = 26.4 GB, percent = 84.6%",
        example="[2024-01-22 16:50:49,553] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 1080504",
        source="deepspeedai/DeepSpeed#4571",
        level=Level.SYMPTOM,
        in_warnings=True,
    ),
    Rule(
        kind=HOST_MEMORY,
        patterns=(
            r"lowmemorykiller",
            r"low on resource: memory",
            # The status of a Kubernetes pod
            r"\bOutOfmemory\b",
            r"Killed process \d+ .{0,60}(?:total-vm|anon-rss)",
        ),
        example="Killed process 4711 (python) total-vm:210034512kB, anon-rss:120034512kB",
        source="Linux kernel, a message of mm/oom_kill.c",
        decision=NextStep.FIX_FIRST,
    ),
)

"""Rules for GPU failures: visibility to ranks, software, hardware and kernels."""

from runbook.results.failures.kinds import (
    CONFIGURATION,
    CONTAINER,
    GPU_STACK,
    KERNEL,
    NODE,
    VISIBILITY,
)
from runbook.results.failures.rule import Level, NextStep, Rule

DEVICE_RULES = (
    # According to the Xid table from NVIDIA, these errors come from the program, not the hardware.
    Rule(
        kind=KERNEL,
        patterns=(r"Xid.{0,40}[): ](?:13|31|43|45|68|69)\b",),
        # A broken link to one GPU also stops other GPUs.
        unless=r"caused by previous Xid (?:48|6[34]|7[49]|9[245]|119|14\d)",
        example="NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python, MMU Fault: ENGINE GRAPHICS",
        source="NVIDIA, XID Errors (docs.nvidia.com/deploy/xid-errors)",
    ),
    Rule(
        kind=NODE,
        patterns=(
            r"[Uu]ncorrectable (?:ECC|NVLink|memory|hardware)",
            r"NVRM: Xid",
            # A switch between the GPUs
            r"\bSXid \(PCI:\S+\): \d+, Fatal",
            # Kernel reports about processors and memory
            r"\[Hardware Error\]: CPU \d+: Machine Check",
            r"\bEDAC \S+ \d+ UE\b",
            r"\bX[Ii][Dd] \d+",
            r"fallen off the bus",
            r"GPU_IS_LOST",
            r"GPU is lost",
            r"ECC_UNCORRECTABLE",
            r"cudaErrorECCUncorrectable",
            r"row.?remap.{0,30}fail",
            r"nvlink.{0,30}(?:fatal|down)",
            r"ERROR_GPU",
            r"Unable to determine the device handle for (?:GPU|gpu)",
            r"cudaErrorHardwareStackError",
            r"CUDA error: hardware stack error",
            r"HW Exception by GPU",
            r"AER: Uncorrected \(Fatal\)",
            r"RmInitAdapter failed",
            r"GPU (?:has|is) (?:fallen|hung)",
            r"CUDA_ERROR_(?:ECC|HARDWARE|UNKNOWN)",
            r"amdgpu.{0,60}(?:GPU reset|ring .{0,20}timeout)",
            r"amdgpu.{0,80}(?:reset|test|resume).{0,40}(?:\bfailed\b|unrecoverable)",
            r"HSA_STATUS_ERROR_(?:FATAL|HARDWARE)",
            r"NVML: (?:GPU is lost|Unknown Error)",
            r"CUDA_ERROR_CONTAINED|cudaErrorContained",
            r"over nvlink or a hardware error",
            r"\bRAS\b.{0,30}(?:uncorrectable|poison)",
        ),
        error_patterns=(
            r"DBE\b.{0,20}error",
            r"NVLink.{0,40}error",
        ),
        example="RuntimeError: CUDA error: uncorrectable ECC error encountered",
        source="jade-hpc-gpu/jade-hpc-gpu.github.io#194",
        in_warnings=True,
    ),
    Rule(
        kind=NODE,
        patterns=(
            r"Node failure on",
            r"\bNODE_FAIL\b",
            r"DUE TO NODE FAILURE",
            r"node (?:went )?down",
            r"[Nn]ode .{0,40}(?:is not responding|unreachable)",
            r"Aborting, node failure",
            r"Head node .{0,20}(?:lost|down)",
            r"fabric.?manager.{0,40}(?:not running|fail)",
            r"system not yet initialized",
            r"CUDA_ERROR_SYSTEM_NOT_READY",
            r"Error 802",
        ),
        example="salloc: error: Node failure on worker-1",
        source="nebius/soperator#854",
    ),
    # Ray lost a node. Its daemon may also have crashed.
    Rule(
        kind=NODE,
        patterns=(r"has been marked dead because the detector",),
        example="WARNING worker.py:1462 -- The node with node id: 8f20 and ip: 10.128.0.103 has been marked dead "
        "because the detector has missed too many heartbeats from it.",
        source="ray-project/ray#22349",
        level=Level.SYMPTOM,
        in_warnings=True,
    ),
    Rule(
        kind=NODE,
        patterns=(
            r"nvls\.cc:\d+ NCCL WARN Cuda failure",
            r"[Ff]ailed to \w+ (?:NVLink SHARP|NVLS|\w{0,10} ?[Mm]ulticast)",
            r"error in the Fabric Manager or NVSwitches",
        ),
        example="gpu46:78367:78492 [0] transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'",
        counterexample="n1:99:99 [0] NCCL INFO NVLS multicast support is not available on dev 0",
        source="NVIDIA/nccl#1562",
        also=GPU_STACK,
        check="If nvidia-fabricmanager is active on the node, NCCL_NVLS_ENABLE=0 shows whether NVLS is to blame.",
    ),
    Rule(
        kind=VISIBILITY,
        patterns=(
            r"Duplicate GPU detected",
            r"has no GPU of its own",
            r"and another rank both have GPU|, and so has another rank",
            r"invalid device ordinal",
            r"hipErrorInvalidDevice\b",
            r"cudaErrorInvalidDevice\b",
        ),
        example=(
            "vm:9:9 [1] NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device "
            "4000"
        ),
        source="horovod/horovod#3929",
    ),
    Rule(
        kind=VISIBILITY,
        patterns=(r"ncclInvalidUsage", r"invalid usage, NCCL version"),
        example="ncclInvalidUsage: This usually reflects invalid usage of NCCL library (such as too many async ops)",
        source="TencentARC/GFPGAN#154",
        level=Level.SYMPTOM,
        also=CONFIGURATION,
        check="NCCL_DEBUG=WARN prints the call that was wrong: two ranks on one GPU, or arguments that differ.",
    ),
    Rule(
        kind=VISIBILITY,
        patterns=(
            r"devices?(?:\(s\))? (?:is/are|are|is) busy or unavailable",
            r"cudaErrorDevicesUnavailable",
            r"CUDA_ERROR_DEVICE_UNAVAILABLE",
        ),
        example="RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
        source="BUTSpeechFIT/safe_gpu#1",
    ),
    Rule(
        kind=VISIBILITY,
        patterns=(
            (
                r"[Nn]o (?:CUDA GPUs are available|ROCm-capable device is detected|CUDA-capable "
                r"device is detected|HIP GPUs are available|XPU devices are available|CUDA "
                r"devices)"
            ),
            r"built for .{0,20}, sees no GPU here",
            r"CUDA_ERROR_NO_DEVICE",
            r"cudaErrorNoDevice",
            r"hipErrorNoDevice",
            r"No devices were found",
            r"Invalid device id",
            r"hsa_init.{0,30}(?:fail|error)",
            r"device < num_gpus",
            r"ProcessGroupNCCL is only supported with GPUs, no GPUs found",
            r"Attempting to deserialize object on (?:a )?CUDA device",
            r"Attempting to deserialize object on CUDA device \d+ but",
            r"gres/gpu count (?:reported )?lower",
            r"[Yy]ou requested (?:gpu|GPU)s?: \[",
            r"is_available\(\) is False",
            r"Can't find any GPU",
            r"The TPU is already in use by",
        ),
        error_patterns=(
            # JAX, which tries the other backends only with a warning
            r"Unable to initialize backend '\w+'",
            r"num_gpus.{0,20}\b0\b.{0,30}available",
            r"no GPUs? found",
            r"CUDA_VISIBLE_DEVICES.{0,40}(?:invalid|empty|not set)",
            r"requested \d+ GPUs?,? but only",
            r"No GPU\(s\)",
            r"local rank .{0,30}(?:exceeds|larger than).{0,30}GPU",
        ),
        example="RuntimeError: No CUDA GPUs are available",
        source="PyTorch, a message of torch/csrc/cuda/Module.cpp",
        in_warnings=True,
    ),
    Rule(
        kind=CONTAINER,
        patterns=(r"libcuda\.so(?:\.1)?: cannot open shared object file",),
        example="ImportError: libcuda.so.1: cannot open shared object file: No such file or "
        "directory",
        source="pytorch/pytorch#3221",
        also=GPU_STACK,
        check=(
            "Outside a container, the driver is not installed on the node (nvidia-smi fails "
            "there, too)."
        ),
    ),
    Rule(
        kind=GPU_STACK,
        patterns=(
            r"no kernel image is available",
            r"Value '(?:sm|compute)_\w+' is not defined for option",
            r"hipErrorNoBinaryForGpu",
            r"CUDA_ERROR_NO_BINARY_FOR_GPU",
            r"Missing CO for these ISAs",
            r"invalid device function",
            r"Unable to find code object",
            r"shared object initialization failed",
            r"not compiled with CUDA enabled",
            r"is not compatible with the current PyTorch installation",
            r"CUDA capability sm_\d+",
            r"unsupported gpu architecture",
            r"no ROCm code for",
            r"rocBLAS error: .{0,60}TensileLibrary",
            r"Cannot read .{0,80}TensileLibrary",
            r"named symbol not found",
            r"No valid (?:execution plan|engine config)",
            r"device kernel image is invalid",
            r"the provided PTX was compiled with an unsupported toolchain",
            r"cudaErrorUnsupportedPtxVersion",
            r"CUDA driver is a stub library",
            r"cudaErrorStubLibrary",
            r"cudaErrorSystemDriverMismatch",
            r"unable to find an engine to execute this computation",
            r"CUDA error: operation not supported",
            r"FlashAttention only supports .{0,30}GPUs",
            r"requires compute capability",
            r"Torch not compiled with",
            r"requires? .{0,10}(?:Ampere|Hopper) GPUs?",
            r"bf16.{0,60}(?:not supported|requires).{0,40}(?:GPU|device|Ampere)",
            r"Unsupported GPU",
            r"compute capability .{0,40}(?:less|lower|not supported)",
        ),
        example="CUDA error: no kernel image is available for execution on the device",
        source="hustvl/Vim#42",
        in_warnings=True,
    ),
    # NCCL prints the message from the CUDA runtime about a kernel this GPU cannot load.
    Rule(
        kind=GPU_STACK,
        patterns=(
            r"(?:Cuda|HIP) failure (?:\d+ )?'(?:invalid kernel file|invalid device function|named symbol"
            r"|device kernel image|no kernel image)",
        ),
        example="n1:774:739 [0] enqueue.cc:66 NCCL WARN Cuda failure 'invalid kernel file'",
        counterexample="n1:774:739 [0] enqueue.cc:66 NCCL WARN Cuda failure 'out of memory'",
        source="ROCm/rccl#876",
    ),
    # Two ranks on the same node share GPU memory through such a handle.
    Rule(
        kind=GPU_STACK,
        patterns=(
            r"\b(?:hip|cuda)Ipc\w+ (?:failed|.{0,40}\berror\b)",
            r"failed to open (?:CUDA|HIP) IPC handle",
        ),
        example="guest:51:96 [1] transport/p2p.cc:239 NCCL WARN hipIpcGetMemHandle failed : invalid argument",
        counterexample="n1:9:9 [0] NCCL INFO cudaIpcGetMemHandle is supported",
        source="ROCm/rccl-tests#120",
        also=CONTAINER,
        check="If each rank has its own container, give them one IPC namespace (--ipc=host).",
    ),
    # A library requires a different CUDA version, or a newer GPU.
    Rule(
        kind=GPU_STACK,
        patterns=(
            r"invalid value for --gpu-arch",
            r"CU(?:BLAS|SPARSE|SOLVER)_STATUS_(?:NOT_SUPPORTED|ARCH_MISMATCH)",
            r"setup doesn't support bf16/gpu",
        ),
        error_patterns=(
            (
                r"(?:CUDA|[Cc]u(?:DNN|BLAS|blas|dnn)\w*|ROCm|[Dd]river)\b.{0,40}"
                r"(?:>= ?\d|or (?:higher|newer|later)\b)"
            ),
            r"[Rr]equires? (?:at least )?(?:CUDA|cuDNN|ROCm|Ampere|Ada|Hopper|Blackwell|sm_?\d)\b",
        ),
        example="AssertionError: CublasLt version 12.1.3.x or higher required for FP8 execution on Ada.",
        counterexample="Found CUDA >= 12.1, FP8 execution is possible",
        source="NVIDIA/TransformerEngine#2538",
    ),
    Rule(
        kind=GPU_STACK,
        patterns=(
            r"[Ff]ound no NVIDIA driver",
            r"CUDA driver version is insufficient",
            r"NVIDIA driver (?:on your system )?is too old",
            r"[Dd]river/library version mismatch",
            r"forward compatibility was attempted",
            r"CUDA_ERROR_COMPAT",
            r"cudaErrorInsufficientDriver",
            r"not supported in the installed CUDA driver",
            r"cuDNN Error: .{0,40}No execution plan",
            r"system has unsupported display driver",
            r"unsatisfied condition: cuda",
            r"CUDA unknown error",
            r"CUDA error: initialization error",
            r"Cuda failure (?:\d+ )?'initialization error'",
            r"doesn't have (?:NCCL|MPI|GLOO|Gloo|UCC) built in",
            r"Unexpected error from cudaGetDeviceCount",
            r"driver .{0,30}(?:too old|insufficient)",
            r"hipErrorInsufficientDriver",
            r"NVIDIA-SMI has failed",
            r"HSA_STATUS_ERROR_(?:INCOMPATIBLE|INVALID_ISA)",
            r"[Rr]eboot .{0,40}driver",
            r"cuInit\w* .{0,30}(?:fail|error)",
            r"detected CUDA version .{0,40}mismatches",
            r"unsupported CUDA version",
            r"CUDA version .{0,60}(?:mismatch|does not match)",
            r"Installed CUDA version .{0,60}does not match",
            r"ROCk module is NOT loaded",
            r"Unable to open /dev/kfd",
            r"amdgpu .{0,40}not (?:loaded|found)",
        ),
        example="RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
        source="PyTorch, a message of torch/csrc/cuda/Module.cpp",
        in_warnings=True,
    ),
    Rule(
        kind=GPU_STACK,
        patterns=(
            r"[Nn]o (?:\w+ ){0,4}(?:backend|kernel)s? (?:is|are) available",
            r"No available kernel",
        ),
        # A program that has an alternative implementation continues with it.
        unless=(
            r"(?i:\bfall(?:s|ing)? back\b|\bfallback\b"
            r"|\busing (?:the )?(?:unfused|math|torch|native|eager)\b)"
        ),
        example="ValueError: No dot product attention backend is available for the provided inputs",
        counterexample="No available kernel for flash attention, using math",
        source="NVIDIA/TransformerEngine#2285",
        also=CONFIGURATION,
        check="The lines of NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 name what rules each backend out: a version or a setting.",
    ),
    # cuDNN rejects a graph this version or GPU does not support. Other rules cover cuDNN status
    # codes.
    Rule(
        kind=GPU_STACK,
        patterns=(
            r"cuDNN [Ee]rror: (?!CUDNN_STATUS_(?!NOT_SUPPORTED|ARCH_MISMATCH|VERSION_MISMATCH))",
        ),
        example="RuntimeError: fused_attn/fused_attn_fp8.cu:2066 in function operator(): cuDNN Error: Tensor "
        "'sdpa_fp8::Amax_O' strides not set.",
        counterexample="RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        source="mlcommons/training_results_v4.0#6",
        level=Level.SYMPTOM,
        also=CONFIGURATION,
        check="Another attention backend (NVTE_FUSED_ATTN=0) shows whether cuDNN is to blame.",
    ),
    Rule(
        kind=KERNEL,
        patterns=(
            r"[Mm]emory access fault by GPU",
            r"an illegal memory access",
            r"device-side assert",
            r"unspecified launch failure",
            r"HSA_STATUS_ERROR_(?:EXCEPTION|MEMORY_APERTURE|ILLEGAL|INVALID_PACKET)",
            r"misaligned address",
            r"illegal instruction was encountered",
            r"CUDA error: an? (?:illegal|invalid program counter)",
            r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|INVALID_VALUE)",
            r"CUDNN_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)",
            r"hipErrorIllegalAddress",
            r"hipErrorLaunchFailure",
            # If Inductor leaves out a kernel variant, it prints the message without the exception.
            r"triton\.\S{0,40}OutOfResources: ",
            r"cudaErrorIllegalAddress",
            r"cudaErrorLaunchFailure",
            r"cudaErrorAssert",
            r"\.cuh?:\d+: .{0,200}Assertion",
            r"indexSelect\w*Index.{0,60}Assertion",
            r":\d+: .{0,120}: block: \[\d+,\d+,\d+\], thread: \[",
            r"too many resources requested for launch",
            r"invalid configuration argument",
            r"(?:Cuda|HIP) failure .{0,40}(?:illegal|launch|assert|invalid argument)",
            r"Page not present or supervisor privilege",
            r"VM_L2_PROTECTION_FAULT",
            r"PTX JIT compilation failed",
            r"Triton Error \[(?:CUDA|HIP)\]: (?:an illegal|device|misaligned|invalid)",
            r"CUDA_EXCEPTION_\d+",
            r"CUDA Exception: \w",
            # CUDA error numbers for errors raised by a kernel
            r"(?:CUDA|[Cc]uda|CU|cu)\w*(?:Error|ERROR|failure)\b.{0,12}?[\[( ]7(?:00|1[0-9])\b",
        ),
        unless=r"launcher|AssertionError|^\s*Compile with",
        example="RuntimeError: CUDA error: device-side assert triggered",
        source="jwkirchenbauer/lm-watermarking#16",
    ),
    Rule(
        kind=KERNEL,
        patterns=(
            r"srcIndex < srcSelectDimSize",
            r"\bindex (?!out of range in self).{0,40}out of (?:range|bounds)",
            r"Target \d+ is out of bounds",
            r"indices\[.{0,20}\] = -?\d+ is not in \[0,",
        ),
        error_patterns=(r"index out of range in self",),
        # Index errors from Python sequences and str.format do not come from a kernel.
        unless=(
            r"\b(?:list|tuple|string|array|bytearray|deque|range object|pop|assignment) index out of"
            r"|Replacement index|(?:Value|Assertion|Key)Error: "
        ),
        example="IndexError: index out of range in self",
        counterexample="IndexError: list index out of range",
        source="PyTorch, a message of aten/src/ATen/native/Embedding.cpp",
        decision=NextStep.FIX_FIRST,
    ),
    # DeepSpeed, LightSeq and Transformer Engine print the status from cuBLAS.
    Rule(
        kind=KERNEL,
        patterns=(
            r"kernel execution error\. \(",
            r"cuBLAS Error: (?:an (?:unsupported|internal)|the (?:GPU program|requested|function))",
        ),
        example="!!!! kernel execution error. (m: 2304, n: 512, k: 768, error: 13)",
        counterexample="retries after a kernel execution error: 3",
        source="bytedance/lightseq#444",
        also=GPU_STACK,
        check="If the first call of the job fails, the library was built for another GPU or CUDA version.",
    ),
    # PyTorch destructors cannot raise exceptions, so they print a warning.
    Rule(
        kind=KERNEL,
        patterns=(
            r"CUDA warning: (?:an illegal memory access|unspecified launch failure|device-side assert)",
        ),
        example="[W CUDAGuardImpl.h:46] Warning: CUDA warning: an illegal memory access was encountered "
        "(function destroyEvent)",
        source="PyTorch, a message of c10/cuda/impl/CUDAGuardImpl.h",
        in_warnings=True,
    ),
    Rule(
        kind=KERNEL,
        patterns=("unhandled cuda error", r"ncclUnhandledCudaError"),
        example="NCCL error in: ProcessGroupNCCL.cpp:1269, unhandled cuda error, NCCL version "
        "2.14.3",
        source="NCCL, ncclGetErrorString",
        level=Level.SYMPTOM,
    ),
)

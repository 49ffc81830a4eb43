"""Rules for software failures: broken builds, libraries, modules and compile caches."""

from runbook.results.failures.kinds import ABI, BUILD, COMPILE_CACHE, MODULE, STALE_LOCK, STORAGE
from runbook.results.failures.rule import Level, NextStep, Rule

_CACHE_PATH = (
    r"(?:\.triton|triton[_/-]cache|triton/compiler|torchinductor|inductor|torch_extensions"
    r"|nv/ComputeCache|fn_cache|kernel_cache|\.ttir|\.cubin|\.hsaco)"
)
_FILE_ERROR = (
    r"(?:FileNotFoundError|FileExistsError|PermissionError|OSError|EOFError|JSONDecodeError"
    r"|Stale file handle|No such file|Errno)"
)

SOFTWARE_RULES = (
    Rule(
        kind=COMPILE_CACHE,
        patterns=(
            rf"{_FILE_ERROR}.{{0,200}}{_CACHE_PATH}",
            rf"{_CACHE_PATH}.{{0,200}}(?:Stale file handle|No such file|Directory not empty)",
            rf"{_CACHE_PATH}.{{0,200}}(?:file too short|invalid ELF header)",
            rf"{_CACHE_PATH}.{{0,200}}(?:Device or resource busy|File exists)",
        ),
        unless=r"No space left|quota|Read-only",
        example="FileNotFoundError: [Errno 2] No such file or directory: "
        "'/mnt/fs/user/.triton/cache/cff6/"
        "_rms_norm_bwd_dx_fused.ttir.tmp.pid_15735_304289'",
        source="triton-lang/triton#2688",
    ),
    Rule(
        kind=COMPILE_CACHE,
        patterns=(
            r"Stale file handle",
            r"Device or resource busy",
            r"Directory not empty",
        ),
        after=_CACHE_PATH + r"|triton/|\w_compile\b|[Cc]ompil(?:e_|er|ing)",
        unless=r"\s'?/\w",
        example_before='  File "torch/_inductor/codecache.py", line 120, in write',
        example="OSError: [Errno 116] Stale file handle",
        source="opendatahub-io/distributed-workloads#844",
        also=STORAGE,
        check=(
            "If the path in the traceback is not in a compile cache, the shared file system "
            "replaced an open file."
        ),
    ),
    # Two ranks wrote the same cache file, and a third rank read it while it was incomplete.
    Rule(
        kind=COMPILE_CACHE,
        patterns=(
            r"JSONDecodeError: ",
            r"EOFError: Ran out of input",
            r"UnpicklingError: ",
        ),
        after=r"torch/_inductor/|\.triton|triton/runtime/|autotune_cache",
        unless=r"Weights only load failed",
        example_before='  File "torch/_inductor/runtime/autotune_cache.py", line 112, in read_best',
        example="json.decoder.JSONDecodeError: Extra data: line 1 column 345 (char 344)",
        source="pytorch/pytorch#153791",
    ),
    Rule(
        kind=COMPILE_CACHE,
        patterns=(
            r"OSError: \[Errno 16\] Device or resource busy(?!: '\.nfs)",
            r"build failed\. Log: .{0,300}Stale file handle",
            r"fatal error: .{0,200}Stale file handle",
        ),
        example="OSError: [Errno 16] Device or resource busy",
        source="triton-lang/triton#11512",
        also=STORAGE,
        check=(
            "If the path in the traceback is not in a compile cache, another node still has the "
            "file open."
        ),
    ),
    Rule(
        kind=STORAGE,
        patterns=(
            r"Stale (?:NFS )?file handle",
            # A file deleted while a process has it open
            r"Device or resource busy: '(?:\S*/)?\.nfs\w+'",
            r"\[Errno 116\]",
            r"ESTALE",
        ),
        example="OSError: [Errno 116] Stale file handle:",
        source="hiyouga/LlamaFactory#3243",
        decision=NextStep.RETRY_SAME,
        also=COMPILE_CACHE,
        check=(
            "If the path in the traceback is a compile cache (.triton, torchinductor, "
            "torch_extensions), move it to a node's disk."
        ),
    ),
    # Files left in /dev/shm by a killed job keep the next job from creating its own.
    Rule(
        kind=STALE_LOCK,
        patterns=(r"FileExistsError: \[Errno 17\] File exists: '/[^/']+'$",),
        after=r"shm_open|shared_memory|SharedMemory",
        example_before="[rank7]:     self._fd = _posixshmem.shm_open(",
        example="FileExistsError: [Errno 17] File exists: '/000010_locals'",
        source="mosaicml/streaming#781",
    ),
    Rule(
        kind=STALE_LOCK,
        patterns=(r"Reused local directory",),
        example="ValueError: Reused local directory: ['/data/train_small'] vs",
        source="mosaicml/llm-foundry#436",
    ),
    Rule(
        kind=STALE_LOCK,
        patterns=(
            r"[Ll]ock (?:file )?\S+ (?:already )?exists",
            r"FileExistsError.{0,60}lock",
            r"could not acquire lock",
            r"is held by (?:process|pid)",
            r"Waiting for (?:file )?lock",
            r"filelock\.\S*Timeout",
            r"The file lock .{0,80}could not be acquired",
        ),
        unless=r"apt|dpkg",
        example="lock file /opt/build/lock already exists",
        source="PyTorch, the lock of torch/utils/file_baton.py",
    ),
    Rule(
        kind=BUILD,
        patterns=(
            r"Error building extension",
            r"Failed to (?:compile|make|build|JIT).{0,80}(?:helper|extension|kernel|wheel|op\b)",
            r"Unable to JIT load",
            r"[Hh]elpers? module failed",
            r"\['which', '(?:c\+\+|g\+\+|gcc|hipcc|nvcc|ninja)'\]",
            r"No targets specified and no makefile",
            r"python3?-config: (?:[Cc]ommand )?not found",
            r"cannot import name 'helpers'",
            r"fatal error: .{0,80}\.(?:h|hpp|cuh)(?:pp)?: No such file",
            r"ninja: (?:build stopped|error)",
            r"nvcc fatal",
            r"can't find Rust compiler",
            r"Microsoft Visual C\+\+ .{0,20}is required",
            r"CUDA_HOME (?:environment variable is not set|does not exist)",
            r"ld(?:\.\w+)?: cannot find -l",
            r"nvcc: (?:[Cc]ommand )?not found",
            r"Ninja is required to load",
            r"FAILED: .{0,80}\.(?:o|so)\b",
            r"collect2: error: ld returned",
            r"error: command .{0,120}(?:gcc|g\+\+|nvcc|ninja|cc|hipcc).{0,60}failed",
            r"Could not (?:find|locate) (?:a )?(?:compiler|ninja|nvcc|CUDA)",
            r"[Nn]o (?:C|C\+\+|g\+\+|gcc)? ?compiler",
            r"Failed to find C compiler",
            r"InvalidCxxCompiler",
            r"CppCompileError",
            r"subprocess-exited-with-error",
            r"(?:setup\.py|wheel|pyproject\.toml\)) .{0,40}did not run successfully",
            r"\d+ errors? detected in the compilation of",
            r"Failed building wheel for",
            r"g\+\+: (?:error|[Cc]ommand not found|not found)",
            r"Error compiling objects for extension",
            r"\.(?:h|hpp|cuh?|c|cc|cpp|cxx)[:(]\d+(?:[:,]\d+)*\)?: (?:fatal |internal compiler )?error:",
            r"error: identifier \".{0,60}\" is undefined",
            r"unsupported GNU version",
            r"installed version of \S+ \(.{0,20}\) is (?:less|greater) than the (?:min|max)imum required",
            r"make: \*\*\*",
            r"error: #error",
            r"make: .{0,60}[Cc]ommand not found",
            r"returned non-zero exit status 1.{0,80}ninja",
            r"\['ninja'",
            r"ptxas`?\W{0,3}(?:failed|fatal|error)",
            r"(?:PTX|Triton|LLVM) (?:codegen|compilation) (?:error|failed)",
            r"hipcc.{0,60}error",
            r"Compilation failed",
            r"-- Configuring incomplete, errors occurred",
            r"\bCMake Error\b",
            r"error: expected .{0,30} before",
            r"No such file or directory: '?\S*(?:nvcc|ninja|gcc|g\+\+)'?$",
            r"OpBuilderException",
            r"CUDAMismatchException",
            r">- DeepSpeed Op Builder: Installed CUDA version",
            r"pybind11.{0,60}(?:not found|No such file|No module)",
            r"Python\.h: No such file",
        ),
        unless=r"no work to do",
        example="nvcc fatal   : Value 'c++17' is not defined for option 'std'",
        source="deepspeedai/DeepSpeedExamples#594",
    ),
    Rule(
        kind=BUILD,
        patterns=(r"BackendCompilerFailed: .{0,40}raised",),
        unless=r"out of memory|No space left|Triton Error",
        example="torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
        source="PyTorch, a message of torch/_dynamo/exc.py",
        level=Level.SYMPTOM,
    ),
    Rule(
        kind=BUILD,
        patterns=(r"has no attribute 'ds_opt_\w+'",),
        example="AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'",
        source="deepspeedai/DeepSpeed#1846",
        level=Level.SYMPTOM,
    ),
    Rule(
        kind=BUILD,
        patterns=(
            r"^CalledProcessError\b",
            r"subprocess\.CalledProcessError",
        ),
        after=r"Building extension module|ninja|Emitting ninja build",
        # A launcher command has nothing to do with a build another rank prints.
        unless=r"Command '?\[?'?(?:\S*/)?(?:ssh|pdsh|srun|mpirun|mpiexec|git)\b",
        example="CalledProcessError                        Traceback (most recent call last)",
        counterexample="subprocess.CalledProcessError: Command 'ssh n1 hostname' returned non-zero exit status 255.",
        source="deepspeedai/DeepSpeed#885",
    ),
    Rule(
        kind=BUILD,
        patterns=(
            (
                r"(?:No module named|cannot import name) '?(?:fused_adam|cpu_adam|fused_lamb"
                r"|utils_op|async_io|transformer_inference|scaled_upper_triang\w*"
                r"|scaled_masked_softmax\w*|scaled_softmax\w*|fused_mix_prec\w*|helpers_cpp"
                r"|helpers|cpu_adagrad|fused_weight_gradient\w*)'?"
            ),
        ),
        unless=r"fused_weight_gradient_mlp_cuda",
        example="ImportError: No module named 'fused_adam'",
        source="deepspeedai/DeepSpeed#694",
        also=MODULE,
        check=(
            "If no build was tried before the line, the package was installed without its "
            "operators."
        ),
    ),
    Rule(
        kind=ABI,
        patterns=(
            r"undefined symbol",
            r"symbol lookup error",
            r"GLIBC(?:XX)?_[\d.]+'? not found",
            r"version `[\w.]+' not found",
            r"wrong ELF class",
            r"cannot open shared object file",
            r"DLL load failed",
            r"libstdc\+\+\.so.{0,60}not found",
            r"numpy\.dtype size changed",
            r"_ARRAY_API not found",
            (
                r"compiled (?:against|using|with) (?:a (?:module|different|newer|older)|NumPy 1"
                r"|API version)"
            ),
            r"incompatible (?:ABI|architecture)",
            r"relocation error",
            r"file too short",
            r"invalid ELF header",
            r"binary incompatibility",
            r"libcud(?:nn|art).{0,60}(?:Could not load|version)",
            r"Could not load (?:dynamic )?library",
            r"Unable to load any of \{?libcudnn",
            r"cuDNN version (?:incompatibility|mismatch)",
            r"requires glibc",
            r"module was compiled against",
            r"cannot allocate memory in static TLS block",
            r"PyTorch has CUDA Version=.{0,60}torchvision has",
            r"operator torchvision::nms does not exist",
            # Two threading libraries in the same process
            r"MKL_THREADING_LAYER=\w+ is incompatible",
            r"OMP: Error #15",
        ),
        example=(
            "ImportError: /opt/conda/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x"
            "86_64-linux-gnu.so: undefined symbol: _ZN2at4_ops5zeros4callE"
        ),
        # TensorFlow looks for optional libraries when the TensorBoard writer imports TensorFlow.
        unless=r"\bW tensorflow/\S*dso_loader",
        counterexample="W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic "
        "library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file",
        source="Dao-AILab/flash-attention#854",
        in_warnings=True,
    ),
    Rule(
        kind=MODULE,
        patterns=(
            r"[Nn]o module named",
            r"cannot import name",
            r"ModuleNotFoundError",
            r"PackageNotFoundError",
            r"DistributionNotFound",
            r"VersionConflict",
            r"ImportError: .{0,80}(?:requires|needs|not installed|version)",
            r"has no attribute '?__version__",
            r"module '\S+' has no attribute",
        ),
        error_patterns=(
            r"is required but not installed",
            r"(?:please|Please) (?:pip )?install",
            r"requires the .{0,40} (?:library|package)",
            r"which is not installed",
            r"is not installed",
            r"but found .{0,20}==",
            r"apex (?:is )?(?:not|required)",
            r"Package .{0,40}not found",
        ),
        unless=r"ipykernel|No such kernel",
        example="ModuleNotFoundError: No module named 'amp_C'",
        source="NVIDIA/apex#1208",
    ),
    Rule(
        kind=MODULE,
        patterns=(
            r"NameError: name '(?:TE\w+|te|tex|nltk|apex|amp_C|flash_attn\w*|transformer_engine\w*)' is",
            r"NameError: name '(?:Fused|fused)\w+' is",
        ),
        example="NameError: name 'TENorm' is not defined",
        source="NVIDIA/Megatron-LM#1049",
        counterexample="NameError: name 'batch' is not defined",
    ),
    Rule(
        kind=MODULE,
        patterns=(
            r"^ImportError: ",
            r"\bImportError: ",
        ),
        unless=r"\.so\b",
        example="ImportError: attempted something that the package lacks",
        source="Python, the exception's name",
    ),
    # A script continues after these errors, so an error from a program it starts explains more.
    Rule(
        kind=MODULE,
        patterns=(
            r"^The following module\(s\) are unknown:",
            r"Lmod has detected the following error:",
            r"[Uu]nable to locate a modulefile for",
            r"^EnvironmentNameNotFound: ",
            r"^EnvironmentLocationNotFound: ",
            r"^CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'",
            r"^CondaError: Run 'conda init'",
        ),
        example="Lmod has detected the following error:  The following module(s) are unknown: "
        '"cuda/12.4"',
        source="Lmod and conda, their own messages",
        level=Level.CONSEQUENCE,
        may_go_on=True,
    ),
)

"""All known kinds of failure with remedies, in the same order as in docs/when-it-fails.md."""

from dataclasses import dataclass

from runbook.results.failures.rule import FailureKind, Level, NextStep

DEVICE_MEMORY = FailureKind(
    name="device out of memory",
    remedy=(
        "Lower training.micro_batch, set training.recompute, or raise parallel.tensor or "
        "parallel.pipeline. `runbook plan RUN` shows the memory of each layout. If the message "
        "reports a lot of free memory, the driver does not match the libraries, or another process "
        "uses the device (nvidia-smi, rocm-smi)."
    ),
)
HOST_MEMORY = FailureKind(
    name="host out of memory",
    remedy=(
        "Request all memory of the node (jobs.<phase>.memory: 0), use fewer data workers, or save "
        "in parts. After the alarm `memory leak`, which reports bytes per step, look for what "
        "each step keeps. Stopping and resuming frees the leaked memory."
    ),
)
SHARED_MEMORY = FailureKind(
    name="shared memory too small",
    remedy="/dev/shm is too small: start the container with more (docker --shm-size=16g or "
    "--ipc=host, a memory "
    "volume in Kubernetes), or use fewer data workers. `df -h /dev/shm` inside the job shows it.",
)
LIMITS = FailureKind(
    name="limit of the system",
    remedy=(
        "Raise the limit named in the line, inside the job: `ulimit -l unlimited` for locked "
        "memory, `ulimit -n` for open files, `ulimit -u` or OMP_NUM_THREADS for threads. For a "
        "container, set it at the start (docker --ulimit memlock=-1). On Slurm, "
        "PropagateResourceLimits passes on the limits of the login node."
    ),
)
TIMEOUT = FailureKind(
    name="collective timeout",
    remedy=(
        "Look for the rank that stopped first: its own log ends earlier or names a different failure. "
        "If no rank did, test the network between the nodes. Raise "
        "training.process_group_timeout only if a step can take that long."
    ),
    decision=NextStep.RETRY_SAME,
    level=Level.SYMPTOM,
)
COLLECTIVES_DIFFER = FailureKind(
    name="collectives differ",
    remedy=(
        "The ranks call different collectives, or the same one with tensors of different shapes. "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL prints ranks, operation and shapes. Look for a branch, a "
        "setting or a number of samples that is not the same on every rank."
    ),
)
RANK_HUNG = FailureKind(
    name="a rank hung",
    remedy=(
        "The stacks of the hung rank are in the job's folder, ranks/<rank>.stack: the innermost "
        "line shows what the rank waited for. If it hangs twice at one step, suspect the program "
        "or its data; if it hangs on one node only, suspect that node."
    ),
    decision=NextStep.RETRY_SAME,
    level=Level.SYMPTOM,
)
PEER_DIED = FailureKind(
    name="another rank ended first",
    remedy=(
        "This log shows only a lost connection. Read the earliest failure in the logs of all "
        "ranks. If there is no earlier failure, look for the node in the scheduler's log (`runbook "
        "status RUN`), and test its link."
    ),
    level=Level.CONSEQUENCE,
)
INTERFACE = FailureKind(
    name="wrong network interface",
    remedy=(
        "Set the interface of the site (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, FI_PROVIDER) in "
        "params/sites. `ip -br addr` and `fi_info -l` on a node list them. A container must be "
        "given access to the fabric's devices."
    ),
)
FABRIC = FailureKind(
    name="fabric error",
    remedy=(
        "The transport between two hosts fails. Run again without the node named in the line, and "
        "report it to the site. If every node has the error, the card, port or service of the "
        "fabric is wrong (NCCL_IB_HCA, FI_PROVIDER), or the job was started without access to it."
    ),
    decision=NextStep.RETRY_OTHER_NODE,
)
RENDEZVOUS = FailureKind(
    name="ranks did not meet",
    remedy=(
        "Count the ranks that started: every rank from 0 to the world size minus 1 must appear "
        "exactly once. Then check that every node resolves MASTER_ADDR and reaches its port, and that "
        "no earlier run still uses the store."
    ),
)
PORT = FailureKind(
    name="port in use",
    remedy=(
        "Another job, or a left-over process of an earlier job, uses the rendezvous port. Derive "
        "the port from the job's number, as rendered scripts do, and stop left-over processes."
    ),
)
VISIBILITY = FailureKind(
    name="no GPU for a rank",
    remedy=(
        "Start one rank for each GPU of a node (jobs.<phase>.devices_per_node). nvidia-smi or "
        "rocm-smi shows the GPUs and who uses them; 01-environment shows whether torch is built "
        "for them. docs/trainer.md explains what a site computes on."
    ),
)
GPU_STACK = FailureKind(
    name="GPU software does not fit",
    remedy=(
        "Driver, CUDA or ROCm, and the architectures that a library was built for do not match. "
        "Compare nvidia-smi's CUDA version with torch.version.cuda and "
        "torch.cuda.get_arch_list(); build extensions on the device they run on "
        "(TORCH_CUDA_ARCH_LIST, PYTORCH_ROCM_ARCH)."
    ),
)
NODE = FailureKind(
    name="node failure",
    remedy=(
        "A GPU, link or node is broken. Exclude the named node (sbatch --exclude), report it to "
        "the site, and run again: it resumes."
    ),
    decision=NextStep.RETRY_OTHER_NODE,
)
KERNEL = FailureKind(
    name="device fault",
    remedy=(
        "A kernel accessed invalid memory, or an assertion on the device failed. The usual cause "
        "is an index outside a table: compare the vocabulary with the token ids, and run once "
        "with CUDA_LAUNCH_BLOCKING=1. If all nodes fail, try another version of the kernel. If "
        "only one does, exclude it and report it to the site."
    ),
)
BUILD = FailureKind(
    name="extension build failed",
    remedy=(
        "Read the compiler's first error above. The major version of nvcc must equal that of "
        "torch.version.cuda, and compiler, ninja, Python headers (python3-config, pybind11) and "
        "CUDA libraries must be on the paths. If the compiler does not know the GPU's "
        "architecture, use a newer toolkit (TRITON_PTXAS_PATH for Triton). Build once on one node "
        "before the job, in a writable folder."
    ),
)
HANGING_BUILD = FailureKind(
    name="fused kernel build hangs",
    remedy=(
        "A killed build left its lock: delete the build folder (megatron/fused_kernels/build, or "
        "torch_extensions under TORCH_EXTENSIONS_DIR) and build once on one node before the job. "
        "See github.com/NVIDIA/Megatron-LM/issues/82 for other cases."
    ),
)
ABI = FailureKind(
    name="library does not fit",
    remedy=(
        "A binary was built against different libraries from those that are loaded. Reinstall the "
        "package named in the line against the installed torch (pip install --no-build-isolation "
        "--force-reinstall), or correct LD_LIBRARY_PATH; `ldd FILE.so` shows what is missing."
    ),
)
MODULE = FailureKind(
    name="module missing",
    remedy=(
        "The job's environment is not the one that was prepared: `runbook doctor` inside the job "
        "shows what it has, and `module avail` or `conda env list` what the node offers. amp_C and "
        "fused_layer_norm_cuda come with apex built with --cpp_ext "
        "--cuda_ext."
    ),
)
NAN = FailureKind(
    name="NaN in the loss",
    remedy=(
        "Resume from the last good checkpoint with a lower learning rate or other data. With "
        "fp16, try bf16."
    ),
)
LOSS_SCALE = FailureKind(
    name="loss scale at its floor",
    remedy=(
        "fp16 gradients overflow at every scale: the run has diverged. Resume from an earlier "
        "checkpoint, in bf16 or with a lower learning rate."
    ),
)
DISK = FailureKind(
    name="disk full",
    remedy=(
        "Free space or raise the quota (bytes and number of files), keep fewer checkpoints "
        "(training.keep_checkpoints), then run again. HF_HOME moves the caches out of the home "
        "folder, and APPTAINER_TMPDIR or ENROOT_TEMP_PATH moves a container's temporary folder. "
        "The alarm `disk low` names, in advance, the save that will fail; training.alarm_webhook "
        "or an alarm command sends it."
    ),
)
STORAGE = FailureKind(
    name="file system fault",
    remedy=(
        "The file system refused an operation or failed. Permission denied or read-only: choose a folder that "
        "the job may write to. Input/output error or stale handle: run again, and report it to "
        "the site if it happens again."
    ),
)
COMPILE_CACHE = FailureKind(
    name="shared compile cache",
    remedy=(
        "Ranks disturb each other in one cache of compiled kernels. Put TRITON_CACHE_DIR, "
        "TORCHINDUCTOR_CACHE_DIR and TORCH_EXTENSIONS_DIR on a disk of the node (for example "
        "under $TMPDIR)."
    ),
)
STALE_LOCK = FailureKind(
    name="stale lock",
    remedy=(
        "If the process with that ID is no longer running on that host, remove the lock, or the "
        "files that the process left in /dev/shm. `runbook run` does so automatically and reports it."
    ),
)
DATA = FailureKind(
    name="data files",
    remedy=(
        "A file of the training data or its index is missing, cut off, or in the wrong format. "
        "Check it with `runbook data verify PREFIX`. Every node must see the index cache, so "
        "build it once before the job."
    ),
)
FILE = FailureKind(
    name="file missing",
    remedy="Compare the path with run.yaml. In a container the path must also be mounted.",
    level=Level.SYMPTOM,
)
CHECKPOINT_FIT = FailureKind(
    name="checkpoint does not fit",
    remedy=(
        "The checkpoint belongs to a different model, layout or program version. Compare layers, "
        "hidden size, sequence length and padded vocabulary. ZeRO's state can be loaded only on "
        "the same number of ranks, or from a universal checkpoint; `runbook import` reads only "
        "weights. If PyTorch refuses a file of your own because it loads weights only, allow the "
        "types that it names (add_safe_globals)."
    ),
)
CHECKPOINT_DAMAGE = FailureKind(
    name="checkpoint damaged",
    remedy=(
        "The file was cut off while it was written or downloaded. Delete it and download it "
        "again, or resume from the previous checkpoint."
    ),
)
CONFIGURATION = FailureKind(
    name="settings do not fit",
    remedy=(
        "Two settings contradict each other, or an option is unknown; the line names them. "
        "`runbook check RUN` finds such contradictions before a job starts."
    ),
)
REFUSED_JOB = FailureKind(
    name="job refused",
    remedy=(
        "The scheduler did not accept the job. The line names the limit: time, nodes, account, "
        "partition or QOS. Set jobs.<phase>.walltime, nodes, partition or account; `sinfo`, "
        "`sacctmgr show assoc` or `qstat -Q` show what is allowed."
    ),
)
PREEMPTED = FailureKind(
    name="preempted",
    remedy=(
        "Run it again: it resumes from the last checkpoint. Save more often if this happens often."
    ),
    decision=NextStep.RETRY_SAME,
)
TIME_LIMIT = FailureKind(
    name="time limit",
    remedy=(
        "Run it again: it resumes. Set training.exit_duration a little below the walltime, so "
        "that it saves in time, or request more time (jobs.<phase>.walltime, with a partition "
        "that allows it)."
    ),
)
CANCELLED = FailureKind(
    name="job cancelled",
    remedy=(
        "A user or the scheduler ended the job. `sacct -j ID` or `qstat -xf ID` shows who. Run "
        "it again: it resumes."
    ),
    decision=NextStep.RETRY_SAME,
    level=Level.SYMPTOM,
)
LAUNCHER = FailureKind(
    name="launcher failed",
    remedy=(
        "srun, mpiexec or torchrun could not start the ranks. Use the launcher of the site's MPI "
        "with its own options (srun --mpi=list shows Slurm's; Open MPI uses -x, MPICH --env), and "
        "request as many slots as ranks."
    ),
)
UNREACHED = FailureKind(
    name="node out of reach",
    remedy=(
        "srun could not start the ranks on the node named in the line: its slurmd did not answer "
        "in time. The program is not to blame. If the node has just come back or the network is "
        "busy, this is temporary. If it happens again, exclude the node (sbatch --exclude) and "
        "report it to the site. `sinfo -N` shows the node's state; if clocks differ between "
        "nodes, credentials expire."
    ),
    decision=NextStep.RETRY_AFTER_WAIT,
)
CREDENTIAL = FailureKind(
    name="munge credential refused",
    remedy=(
        "A Slurm daemon did not accept another host's credential. Compare `date`, the munge key "
        "and the user's id on the nodes and on the login node, and run `munge -n | unmunge` on a "
        "node. Credentials expire if clocks differ by minutes, a node is overloaded or munged was "
        "restarted; the last two pass. If the socket is missing, munged does not run, or the "
        "container does not mount /run/munge. If it happens again, exclude the node named in the "
        "line (sbatch --exclude) and report it to the site."
    ),
    decision=NextStep.RETRY_AFTER_WAIT,
)
SSH = FailureKind(
    name="launcher needs ssh",
    remedy=(
        "The machine has no ssh between nodes: start the ranks with srun or torchrun (launcher of "
        "the site), not with DeepSpeed's own launcher. On PBS, MPICH's mpiexec would wait until "
        "the walltime: see docs/pbs.md."
    ),
)
CONTAINER = FailureKind(
    name="container failed",
    remedy=(
        "The container was not imported, started or mounted. Name a file by its path "
        "(./image.sqsh), and an image of enroot by its registry (registry#path:tag), with its "
        "credentials in enroot's file. Mount points must exist in the image, you need write "
        "access to enroot's folders on the node (ENROOT_RUNTIME_PATH, ENROOT_CACHE_PATH, "
        "ENROOT_DATA_PATH), and the container needs access to the GPUs (--nv, --rocm, --gpus "
        "all)."
    ),
)
HUB = FailureKind(
    name="hub refused or out of reach",
    remedy=(
        "Compute nodes often have no internet. Download models and data on a login node, set "
        "HF_HOME to that folder and HF_HUB_OFFLINE=1. If a model or dataset is gated or private, "
        "accept the terms and set HF_TOKEN in the job; object storage needs valid credentials "
        "there, too. After error 429, wait or use one packed copy."
    ),
)
TRACKER = FailureKind(
    name="experiment tracker",
    remedy=(
        "The experiment tracker has no key in the job, or its server is out of reach. Set the key "
        "in the job (WANDB_API_KEY, or `wandb login` once), let it write offline "
        "(WANDB_MODE=offline, then `wandb sync`), or train without it (training.trackers; "
        "report_to=none in other programs)."
    ),
)
NOTEBOOK = FailureKind(
    name="notebook kernel",
    remedy=(
        "The notebook's kernel does not exist here or died, or a cell took longer than allowed. "
        "`jupyter kernelspec list` lists the kernels (papermill --kernel NAME selects one). A "
        "kernel that died usually ran out of memory. `runbook run` starts long work detached from "
        "the kernel."
    ),
)
KILLED = FailureKind(
    name="process killed",
    remedy=(
        "Something outside the process killed it: look in the node's log (dmesg) for a process "
        "killed for lack of memory, or for a scancel."
    ),
    decision=NextStep.RETRY_SAME,
    level=Level.SYMPTOM,
)
PROGRAM_ENDED = FailureKind(
    name="process ended by a signal",
    remedy=(
        "The process crashed. The innermost frame shows where: the first after `Fatal Python "
        "error` or after the signal (frame #0), or in the core file. If it happens on one node "
        "only, exclude it."
    ),
    decision=NextStep.RETRY_SAME,
    level=Level.SYMPTOM,
)
OWN_ERROR = FailureKind(
    name="error of the program",
    remedy=(
        "No rule explains this error further. The file and line refer to the innermost frame "
        "outside libraries, in the rank that raised it first; the other ranks' lost connections "
        "are consequences. A wrong type, name, argument or assertion will fail again. Otherwise, "
        "look at what is specific to this rank: its node and its data."
    ),
    decision=NextStep.UNKNOWN,
)
OWN_ERROR_EXAMPLES = (
    ("TypeError: 'NoneType' object is not callable", "Python, below a traceback"),
    ("AssertionError", "Megatron-LM e958b2ca without apex, below `assert len(steps) == 1`"),
    (
        "terminate called after throwing an instance of 'std::runtime_error'",
        "libstdc++, a message of its terminate handler",
    ),
)
"""Examples of program errors.

No rule matches these lines. They can be recognized because the process prints nothing after them.
"""

TITLE = "When it fails"

KINDS = (
    DEVICE_MEMORY,
    HOST_MEMORY,
    SHARED_MEMORY,
    LIMITS,
    TIMEOUT,
    COLLECTIVES_DIFFER,
    RANK_HUNG,
    PEER_DIED,
    INTERFACE,
    FABRIC,
    RENDEZVOUS,
    PORT,
    VISIBILITY,
    GPU_STACK,
    NODE,
    KERNEL,
    BUILD,
    HANGING_BUILD,
    ABI,
    MODULE,
    NAN,
    LOSS_SCALE,
    DISK,
    STORAGE,
    COMPILE_CACHE,
    STALE_LOCK,
    DATA,
    FILE,
    CHECKPOINT_FIT,
    CHECKPOINT_DAMAGE,
    CONFIGURATION,
    REFUSED_JOB,
    PREEMPTED,
    TIME_LIMIT,
    CANCELLED,
    LAUNCHER,
    UNREACHED,
    CREDENTIAL,
    SSH,
    CONTAINER,
    HUB,
    TRACKER,
    NOTEBOOK,
    KILLED,
    PROGRAM_ENDED,
    OWN_ERROR,
)


@dataclass(frozen=True)
class SilentEnd:
    """A failure that shows only in the last lines in a log.

    Healthy logs contain these words too, but do not end with them.
    """

    kind: FailureKind
    words: tuple[str, ...]
    ends: tuple[str, ...]
    """Lines the program prints if it succeeds."""
    source: str


BUILD_HANGS = SilentEnd(
    HANGING_BUILD,
    (
        "compiling and loading fused kernels",
        "Emitting ninja build file ",
        "Building extension module ",
        "Allowing ninja to set a default number of workers",
        "Loading extension module ",
        "Detected CUDA files, patching ldflags",
    ),
    ("Time to load ", "done with compiling", "ninja: no work to do"),
    "NVIDIA/Megatron-LM#82",
)

"""Every known kind of failure with its remedy, in the order of docs/when-it-fails.md."""

from dataclasses import dataclass

from runbook.results.failures.rule import FailureKind, Level, NextStep

DEVICE_MEMORY = FailureKind(
    name="device out of memory",
    remedy="Lower training.micro_batch, set training.recompute, or raise parallel.tensor or "
    "parallel.pipeline. "
    "`runbook plan RUN` shows the bytes of each layout. If the message says that much memory is "
    "free, the "
    "driver does not fit the libraries, or another process holds the device (nvidia-smi, "
    "rocm-smi).",
)
HOST_MEMORY = FailureKind(
    name="host out of memory",
    remedy="Ask for all memory of the node (jobs.<phase>.memory: 0), use fewer data workers, or "
    "save in parts. "
    "After the alarm `memory leak`, which names bytes per step, look for what each step keeps. "
    "Stopping and "
    "resuming frees it.",
)
SHARED_MEMORY = FailureKind(
    name="shared memory too small",
    remedy="/dev/shm is too small: start the container with more (docker --shm-size=16g or "
    "--ipc=host, a memory "
    "volume in Kubernetes), or use fewer data workers. `df -h /dev/shm` inside the job shows it.",
)
LIMITS = FailureKind(
    name="limit of the system",
    remedy="Raise the limit that the line names, inside the job: `ulimit -l unlimited` for locked "
    "memory, "
    "`ulimit -n` for open files, `ulimit -u` or OMP_NUM_THREADS for threads. In a container, its "
    "starter sets "
    "them (docker --ulimit memlock=-1). On Slurm, PropagateResourceLimits passes on those of the "
    "login node.",
)
TIMEOUT = FailureKind(
    name="collective timeout",
    remedy="Look for the rank that stopped first: its own log ends earlier or names another "
    "failure. If none did, "
    "test the network between the nodes. Raise training.process_group_timeout only if a step can "
    "take so long.",
    decision=NextStep.RETRY_SAME,
    level=Level.SYMPTOM,
)
COLLECTIVES_DIFFER = FailureKind(
    name="collectives differ",
    remedy="The ranks call different collectives, or one with tensors of different shapes. "
    "TORCH_DISTRIBUTED_DEBUG=DETAIL names ranks, operation and shapes. Look for a branch, a setting or a "
    "number of samples that is not the same on every rank.",
)
RANK_HUNG = FailureKind(
    name="a rank hung",
    remedy="Its stacks are in the job's folder, ranks/<rank>.stack: the innermost line says what "
    "it waited for. "
    "If it hangs twice at one step, suspect the program or its data; if on one node only, that "
    "node.",
    decision=NextStep.RETRY_SAME,
    level=Level.SYMPTOM,
)
PEER_DIED = FailureKind(
    name="another rank ended first",
    remedy=(
        "This log shows only a lost connection. Read the earliest failure in the logs of all "
        "ranks. If there is none, look for the node in the scheduler's log (`runbook status RUN`), "
        "and test its link."
    ),
    level=Level.CONSEQUENCE,
)
INTERFACE = FailureKind(
    name="wrong network interface",
    remedy=(
        "Set the interface of the site (NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME, FI_PROVIDER) in "
        "params/sites. `ip -br addr` and `fi_info -l` on a node list them. In a container, the "
        "fabric's devices must be passed in."
    ),
)
FABRIC = FailureKind(
    name="fabric error",
    remedy="The transport between two hosts fails. Run again without the node that the line names, "
    "and tell the "
    "site. If every node shows it: the card, port or service of the fabric is chosen wrongly "
    "(NCCL_IB_HCA, "
    "FI_PROVIDER), or the job was started without access to it.",
    decision=NextStep.RETRY_OTHER_NODE,
)
RENDEZVOUS = FailureKind(
    name="ranks did not meet",
    remedy="Count the ranks: as many must start as the world size says, each once. Then check that "
    "every node "
    "resolves MASTER_ADDR and reaches its port, and that no earlier run still holds the store.",
)
PORT = FailureKind(
    name="port in use",
    remedy="Another job, or a process that an earlier one left behind, holds the rendezvous port. "
    "Choose one from "
    "the job's number, as rendered scripts do, and end what is left.",
)
VISIBILITY = FailureKind(
    name="no GPU for a rank",
    remedy="Start one rank for each GPU of a node (jobs.<phase>.devices_per_node). nvidia-smi or "
    "rocm-smi says how "
    "many it has and who uses them, 01-environment whether torch is built for them. "
    "docs/trainer.md says what "
    "a site computes on.",
)
GPU_STACK = FailureKind(
    name="GPU software does not fit",
    remedy="Driver, CUDA or ROCm, and the architectures that a library was built for do not fit "
    "each other. Compare "
    "nvidia-smi's CUDA version with torch.version.cuda and torch.cuda.get_arch_list(); build "
    "extensions on the "
    "device they run on (TORCH_CUDA_ARCH_LIST, PYTORCH_ROCM_ARCH).",
)
NODE = FailureKind(
    name="node failure",
    remedy="A GPU, link or node is broken. Exclude the node named (sbatch --exclude), tell the "
    "site, and run again: "
    "it resumes.",
    decision=NextStep.RETRY_OTHER_NODE,
)
KERNEL = FailureKind(
    name="device fault",
    remedy="A kernel touched memory it may not, or an assertion on the device failed. An index "
    "outside a table is "
    "the usual cause: compare the vocabulary with the token ids, and run once with "
    "CUDA_LAUNCH_BLOCKING=1. "
    "Everywhere: try another version of the kernel. On one node only: exclude it and tell the "
    "site.",
)
BUILD = FailureKind(
    name="extension build failed",
    remedy="Read the first error of the compiler above. nvcc must be of torch.version.cuda's major "
    "version, and "
    "compiler, ninja, Python headers (python3-config, pybind11) and CUDA libraries must be on the "
    "paths. "
    "Build once on "
    "one node before the job, in a folder that is writable.",
)
HANGING_BUILD = FailureKind(
    name="fused kernel build hangs",
    remedy="A build that was killed left its lock: delete the build folder "
    "(megatron/fused_kernels/build, or "
    "torch_extensions under TORCH_EXTENSIONS_DIR) and build once on one node before the job. "
    "github.com/NVIDIA/Megatron-LM/issues/82 has others who met it.",
)
ABI = FailureKind(
    name="library does not fit",
    remedy="A binary was built against other libraries than are loaded. Reinstall the package that "
    "the line names "
    "against the installed torch (pip install --no-build-isolation --force-reinstall), or correct "
    "LD_LIBRARY_PATH; `ldd FILE.so` shows what is missing.",
)
MODULE = FailureKind(
    name="module missing",
    remedy="The job's environment is not the one that was prepared: `runbook doctor` inside the "
    "job says what it "
    "has. amp_C and fused_layer_norm_cuda come with apex built with --cpp_ext --cuda_ext.",
)
NAN = FailureKind(
    name="NaN in the loss",
    remedy=(
        "Resume from the last good checkpoint with a lower learning rate or other data. Under "
        "fp16 try bf16."
    ),
)
LOSS_SCALE = FailureKind(
    name="loss scale at its floor",
    remedy="fp16 gradients overflow at every scale: the run has diverged. Resume from before it, "
    "in bf16 or with a "
    "lower learning rate.",
)
DISK = FailureKind(
    name="disk full",
    remedy="Free space or raise the quota (bytes and number of files), keep fewer checkpoints "
    "(training.keep_checkpoints), then run again. Caches in the home folder move with HF_HOME, and "
    "a container's "
    "temporary folder with APPTAINER_TMPDIR or ENROOT_TEMP_PATH. The alarm `disk low` names the "
    "save that will "
    "fail before it does: training.alarm_webhook or an alarm command sends it.",
)
STORAGE = FailureKind(
    name="file system fault",
    remedy="The file system refused or failed. Permission or read-only: name a folder that the job "
    "may write to. "
    "Input/output error or stale handle: run again, and tell the site if it comes back.",
)
COMPILE_CACHE = FailureKind(
    name="shared compile cache",
    remedy="Ranks disturb each other in one cache of compiled kernels. Put TRITON_CACHE_DIR, "
    "TORCHINDUCTOR_CACHE_DIR and TORCH_EXTENSIONS_DIR on a disk of the node (for example under "
    "$TMPDIR).",
)
STALE_LOCK = FailureKind(
    name="stale lock",
    remedy="If no process of that number runs on that host any more, remove the lock, or its files in "
    "/dev/shm. `runbook "
    "run` does so itself "
    "and says it.",
)
DATA = FailureKind(
    name="data files",
    remedy="A file of the training data or its index is missing, cut off, or of another format. "
    "Compare it with "
    "`runbook data verify PREFIX`; every node must see the index cache, so build it once before "
    "the job.",
)
FILE = FailureKind(
    name="file missing",
    remedy="Compare the path with run.yaml. Inside a container it must also be mounted.",
    level=Level.SYMPTOM,
)
CHECKPOINT_FIT = FailureKind(
    name="checkpoint does not fit",
    remedy="The checkpoint is of another model, layout or program version than the run. Compare "
    "layers, hidden "
    "size, sequence length and padded vocabulary. ZeRO's state of another number of ranks needs "
    "the same number "
    "or a universal checkpoint; `runbook import` takes weights alone.",
)
CHECKPOINT_DAMAGE = FailureKind(
    name="checkpoint damaged",
    remedy="The file was cut off while it was written or downloaded. Delete it and download again, "
    "or resume from "
    "the checkpoint before it.",
)
CONFIGURATION = FailureKind(
    name="settings do not fit",
    remedy="Two settings contradict each other, or an option is unknown: the line names them. "
    "`runbook check RUN` "
    "finds such contradictions before a job starts.",
)
REFUSED_JOB = FailureKind(
    name="job refused",
    remedy="The scheduler did not take the job. The line names the limit: time, nodes, account, "
    "partition or QOS. "
    "Set jobs.<phase>.walltime, nodes, partition or account; `sinfo`, `sacctmgr show assoc` or "
    "`qstat -Q` show "
    "what is allowed.",
)
PREEMPTED = FailureKind(
    name="preempted",
    remedy=(
        "Run it again: it resumes from the last checkpoint. Save more often where this happens "
        "often."
    ),
    decision=NextStep.RETRY_SAME,
)
TIME_LIMIT = FailureKind(
    name="time limit",
    remedy="Run it again: it resumes. Set training.exit_duration a little below the walltime, so "
    "that it saves "
    "before, or ask for more time (jobs.<phase>.walltime, with the partition that allows it).",
)
CANCELLED = FailureKind(
    name="job cancelled",
    remedy="Somebody or the scheduler ended the job. `sacct -j ID` or `qstat -xf ID` says who. Run "
    "it again: it "
    "resumes.",
    decision=NextStep.RETRY_SAME,
    level=Level.SYMPTOM,
)
LAUNCHER = FailureKind(
    name="launcher failed",
    remedy="srun, mpiexec or torchrun could not start the ranks. Use the launcher of the site's "
    "MPI with its own "
    "options (srun --mpi=list names what Slurm has; Open MPI uses -x, MPICH --env), and ask for as "
    "many slots as "
    "ranks.",
)
UNREACHED = FailureKind(
    name="node out of reach",
    remedy="srun could not start the ranks on the node that the line names: its slurmd did not "
    "answer, or answered too "
    "late. The program is not to blame. A node that has just come back, or a busy network, passes; "
    "where it comes "
    "back, exclude the node (sbatch --exclude) and tell the site. `sinfo -N` shows the node's "
    "state, and clocks that "
    "differ between nodes let credentials expire.",
    decision=NextStep.RETRY_AFTER_WAIT,
)
CREDENTIAL = FailureKind(
    name="munge credential refused",
    remedy="A daemon of Slurm did not accept another host's credential. Compare `date` on the nodes "
    "and on the login node, and run `munge -n | unmunge` on a node: clocks that differ by minutes, an "
    "overloaded node or a restarted munged let credentials expire, and pass. If it comes back, exclude "
    "the node that the line names (sbatch --exclude), and tell the site.",
    decision=NextStep.RETRY_AFTER_WAIT,
)
SSH = FailureKind(
    name="launcher needs ssh",
    remedy="The machine has no ssh between nodes: start the ranks with srun or torchrun (launcher "
    "of the site), not "
    "with DeepSpeed's own launcher. On PBS, MPICH's mpiexec then waits for the walltime: "
    "docs/pbs.md says what "
    "to set.",
)
CONTAINER = FailureKind(
    name="container failed",
    remedy="The container was not imported, started or mounted. Mount points must exist in the "
    "image, enroot's "
    "folders (ENROOT_RUNTIME_PATH, ENROOT_CACHE_PATH, ENROOT_DATA_PATH) must be writable for you "
    "on the node, "
    "and GPUs must be passed in (--nv, --rocm, --gpus all).",
)
HUB = FailureKind(
    name="hub refused or out of reach",
    remedy="Compute nodes often have no internet. Download models and data on a login node, set "
    "HF_HOME to that "
    "folder and HF_HUB_OFFLINE=1. Gated or private: accept the terms and give HF_TOKEN to the job. "
    "429: wait, "
    "or use one packed copy.",
)
NOTEBOOK = FailureKind(
    name="notebook kernel",
    remedy="The notebook's kernel does not exist here, died, or a cell took longer than allowed. "
    "`jupyter "
    "kernelspec list` names the kernels (papermill --kernel NAME chooses one). A kernel that died "
    "usually ran out "
    "of memory. `runbook run` starts long work detached from the kernel.",
)
KILLED = FailureKind(
    name="process killed",
    remedy=(
        "Something outside killed it: look for memory in the node's log (dmesg), or for a scancel."
    ),
    decision=NextStep.RETRY_SAME,
    level=Level.SYMPTOM,
)
PROGRAM_ENDED = FailureKind(
    name="process ended by a signal",
    remedy="The process crashed. The innermost frame says where: the first below `Fatal Python error` "
    "or below the signal (frame #0), or the core file. If it happens on one node only, exclude it.",
    decision=NextStep.RETRY_SAME,
    level=Level.SYMPTOM,
)
OWN_ERROR = FailureKind(
    name="error of the program",
    remedy=(
        "No rule says more about this error. The file and line are those of the innermost frame outside "
        "libraries, in the rank that raised it first; lost connections of other ranks follow from "
        "it. A wrong type, name, argument or assertion comes again. Else look at what this rank "
        "alone has: its node and its data."
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
"""Examples of program errors. No rule detects them, only that no other line follows."""

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
    NOTEBOOK,
    KILLED,
    PROGRAM_ENDED,
    OWN_ERROR,
)


@dataclass(frozen=True)
class SilentEnd:
    """A failure that shows only in the last lines of a log.

    Healthy logs contain the same words, but do not end with them.
    """

    kind: FailureKind
    words: tuple[str, ...]
    ends: tuple[str, ...]
    """Lines that the program prints after success."""
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

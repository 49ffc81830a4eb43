"""Rules for messages from the scheduler, the launcher, the container and the notebook."""

from runbook.results.failures.kinds import (
    CANCELLED,
    COLLECTIVES_DIFFER,
    CONTAINER,
    CREDENTIAL,
    DISK,
    HUB,
    LAUNCHER,
    NODE,
    NOTEBOOK,
    OWN_ERROR,
    PEER_DIED,
    PREEMPTED,
    REFUSED_JOB,
    SSH,
    STORAGE,
    TIME_LIMIT,
    UNREACHED,
)
from runbook.results.failures.rule import Level, NextStep, Rule

_OF_DISKS = r"(?:[Dd]isk|[Ff]iles?|[Uu]ser|[Gg]roup|[Bb]lock|[Ii]node|[Ss]torage|[Ss]pace|your)"
"""Words showing that a quota belongs to a file system. Programs have their own quotas."""

_UNREACHED = (
    r"(?:Name or service not known|failure in name resolution|not resolve host|unable to resolve"
    r"|No route to host|Network is unreachable|Connection (?:refused|timed out)|[Cc]annot connect to host)"
)
"""Messages printed by programs that cannot reach a host."""
_WEB_ADDRESS = (
    r"(?:https?://|s3://|gs://|HTTPS?Connection|HTTP request|urlopen error|[\w.-]+\.\w+:443\b)"
)

JOB_RULES = (
    # The kernel returns ENOSPC because the limit on namespaces is reached or zero, although no disk
    # is full.
    Rule(
        kind=CONTAINER,
        patterns=(r"failed to create (?:a )?(?:new )?(?:user )?namespace",),
        example="slurmstepd: error: pyxis:     enroot-nsenter: failed to create user namespace: No space left on device",
        counterexample="slurmstepd: error: pyxis:     Write failed because No space left on device",
        source="NVIDIA/pyxis#93",
    ),
    Rule(
        kind=DISK,
        patterns=(
            r"[Dd]isk quota exceeded",
            r"[Nn]o space left on device",
            r"\[Errno (?:27|28|122)\]",
            r"bytes are free on its disk",
            r"[Qq]uota (?:has been )?exceeded",
            rf"exceed(?:s|ed|ing) (?:\w+ ){{0,3}}{_OF_DISKS} quota",
            rf"{_OF_DISKS}\b.{{0,40}} exceed(?:s|ed|ing) (?:\w+ ){{0,4}}quota",
            r"EDQUOT",
            r"ENOSPC",
            r"[Nn]ot enough (?:free )?(?:disk )?space",
            r"file (?:size|count) limit exceeded",
            r"[Ff]ile too large",
            r"over (?:disk )?quota",
            # The limit on a Kubernetes pod
            r"local storage usage exceeds the total limit",
            r"low on resource: ephemeral-storage",
            r"[Ii]nsufficient (?:disk )?space",
            r"There is not enough space",
            r"unexpected pos \d+ vs \d+",
            r"\d+ requested and \d+ written",
            r"PytorchStreamWriter failed writing file",
            r"\bdisk (?:is )?full\b",
            r"write error: (?:No space|wrote \d+ blocks instead)",
            r"filesystem full",
            r"[Nn]o space available",
        ),
        error_patterns=(r"inode.{0,30}(?:exhausted|quota|limit)",),
        example="OSError: [Errno 122] Disk quota exceeded",
        source="ayaanzhaque/instruct-nerf2nerf#86",
        in_warnings=True,
    ),
    Rule(
        kind=NODE,
        patterns=(r"job preempted \(node failure\)",),
        example="job preempted (node failure)",
        source="cBio/cbio-cluster#188",
        also=PREEMPTED,
        check=(
            "The scheduler's record shows which of them it was: a failed node is down in sinfo or "
            "pbsnodes."
        ),
        decision=NextStep.RETRY_SAME,
    ),
    Rule(
        kind=PREEMPTED,
        patterns=(
            r"DUE TO PREEMPTION",
            r"\bPREEMPTED\b",
            r"[Jj]ob (?:is |was |has been )?preempted",
            r"being preempted",
            r"DUE TO JOB REQUEUE",
            r"job requeued",
            r"[Pp]reemption (?:notice|signal)",
            r"[Ss]pot (?:instance )?interruption .{0,20}(?:received|detected)",
            r"SIGUSR.{0,40}preempt",
        ),
        example=(
            "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO "
            "PREEMPTION ***"
        ),
        source="Slurm, a message of slurmstepd",
        in_warnings=True,
    ),
    Rule(
        kind=TIME_LIMIT,
        patterns=(
            r"DUE TO TIME LIMIT",
            r"walltime \S+ exceeded",
            r"exceeded wallclock limit",
            r"walltime .{0,20}exceeded limit",
            r"TERM_RUNLIMIT",
            r"[Ww]all ?time (?:limit )?(?:exceeded|reached)",
            r"exceed(?:s|ed) (?:\w+ ){0,2}(?:wall ?(?:clock|time)|run ?time|time)[ -]?limit",
            r"\bTIMEOUT\b.{0,30}(?:JOB|job)",
            r"job .{0,20}hit .{0,10}time limit",
            r"job exceeded (?:its )?(?:time|wall)",
        ),
        example=(
            "slurmstepd: error: *** STEP 32233190.0 ON nid01934 CANCELLED AT 2020-07-03T02:59:56 "
            "DUE TO TIME LIMIT ***"
        ),
        source="desihub/desitarget#628",
        in_warnings=True,
    ),
    # These rules come before the rules for rejected jobs and launchers, which would match the
    # second half of the line.
    Rule(
        kind=UNREACHED,
        patterns=(
            r"unable to run job, (?:MOM rejected|send to MOM)",
            # The plural matters: srun waits for the daemons on its nodes, not for the controller.
            r"slurm_receive_msgs: .{0,80}failed: ",
            r"^(?:srun|sbatch|salloc): (?:error|fatal): .{0,80}Unable to contact slurm controller",
            r"Unable to establish control machine address",
            r"^(?:\S*/)?pbsdsh: cannot connect to server",
            r"slurmstepd: error: Unable to resolve ",
            r"prolog(?:ue)?(?:/epilog)? failed",
            (
                r"(?:[Tt]ask launch for .{0,60}failed on node \S+|Application launch failed): "
                r"(?:Communication connection failure|Unable to contact|Socket timed out"
                r"|Message (?:receive|send) failure|Zero Bytes|Job credential (?:expired|revoked)"
                r"|Connection (?:refused|timed out)|No route to host|Transport endpoint)"
            ),
        ),
        example=(
            "srun: error: Task launch for 73706.26 failed on node c002n0032: Communication "
            "connection failure"
        ),
        source="geopm/geopm#1020",
        counterexample=(
            "srun: error: Task launch for StepId=5.0 failed on node n1: Invalid job credential"
        ),
    ),
    # A script only asks the server for information, and continues without the answer.
    Rule(
        kind=UNREACHED,
        patterns=(r"^(?:\S*/)?(?:qstat|qdel|pbsnodes): cannot connect to server",),
        example="qstat: cannot connect to server pbs01 (errno=111)",
        source="OpenPBS, a message of src/cmds/qstat.c",
        level=Level.SYMPTOM,
        may_go_on=True,
    ),
    # The nodes have different keys, clocks or users, so another launcher does not help.
    Rule(
        kind=CREDENTIAL,
        patterns=(
            r"Invalid job credential",
            r"[Cc]redential (?:signature check|replayed)",
        ),
        example="srun: error: Task launch for StepId=13.0 failed on node n1: Invalid job credential",
        counterexample="srun: error: Task launch for StepId=13.0 failed on node n1: Job credential expired",
        source="NVIDIA/deepops#1179",
        decision=NextStep.FIX_FIRST,
    ),
    # If the socket is missing, munge does not run on this host, or a container does not see it.
    Rule(
        kind=CREDENTIAL,
        patterns=(r"[Mm]unge encode failed: Failed to access .{0,120}No such file",),
        example=(
            'srun: error: Munge encode failed: Failed to access "/var/run/munge/munge.socket.2": '
            "No such file or directory"
        ),
        counterexample="slurmstepd: error: Munge encode failed: Failed to access socket",
        source="LilyDaytoy/OpenPVSG#17",
        decision=NextStep.FIX_FIRST,
    ),
    Rule(
        kind=CREDENTIAL,
        patterns=(
            r"[Mm]unge[ _](?:de|en)code failed",
            r"^(?!srun: ).*slurm_\w+: Zero Bytes were transmitted",
        ),
        example="error: Munge decode failed: Expired credential",
        source="clustervision/trinity#424",
    ),
    Rule(
        kind=REFUSED_JOB,
        patterns=(
            (
                r"(?:sbatch|srun|salloc): error: (?:Unable to allocate resources|Batch job "
                r"submission failed|QOS|AssocMax|AssocGrp|Invalid (?:account|partition|qos)"
                r"|invalid partition|Requested (?:node|time|partition)|Job (?:violates|request)"
                r"|Unable to (?:submit|create job(?! step))|Memory specification|More processors|CPU count"
                r"|Node count)"
            ),
            r"Batch job submission failed",
            r"Job violates accounting/QOS policy",
            r"Requested node configuration is not available",
            r"Requested time limit is invalid",
            r"Invalid account or account/partition",
            r"QOSM(?:in|ax)\w+",
            (
                r"qsub: (?![Ww]arning).{0,20}"
                r"(?:Job (?:exceeds|violates|rejected|has|not)|would exceed|Unknown"
                r"|Illegal|Unauthorized|Bad UID|Access|Invalid|cannot|illegally|Maximum|Queue"
                r"|directive|No default)"
            ),
            # Apart from these errors, qsub prints only warnings and the progress of an interactive
            # job.
            (
                r"^(?:\S*/)?qsub: (?!waiting for job|[Jj]ob \S+ (?:ready|completed)"
                r"|Maximum server|[Ww]arning)\S"
            ),
            r"Job rejected by all possible destinations",
            r"Job exceeds queue (?:resource )?limits",
            r"cannot satisfy queue",
            r"PBS: Job rejected",
            r"\[ERR\.\] PJM \d+ pjsub\b",
            r"^flux-\w+: (?:ERROR|.{0,40}reject)",
            r"invalid (?:partition|qos|account) specified",
            r"Unauthorized Request",
            r"Submission rejected",
            r"bsub: .{0,60}(?:error|rejected|not)",
            r"Node count specification invalid",
            r"Invalid (?:qos|feature|generic resource) specification",
            r"allocation failure: ",
            r"Access/permission denied.{0,30}(?:job|submi)?",
            r"Job dependency problem",
            r"Job credential (?:revoked|expired)",
            r"Requested partition configuration not available",
            r"nodes are busy$",
            r"[Jj]ob cannot run in partition",
            r"[Nn]odes required for job are DOWN",
            r"PartitionTimeLimit",
            r"PartitionNodeLimit",
            r"ReqNodeNotAvail",
            r"AssocMax\w+",
            r"AssocGrp\w+",
        ),
        error_patterns=(
            r"job submit limit",
            r"(?:must|have to) specify an? (?:account|project|partition|wall ?time|time limit)\b",
            r"(?:[Pp]roject|[Aa]ccount|[Aa]llocation) .{0,30}\bexpired\b",
        ),
        unless=r"retrying",
        example=(
            "srun: error: Unable to allocate resources: Requested time limit is invalid (missing "
            "or exceeds some limit)"
        ),
        counterexample="qsub: warning: no project",
        source="desihub/desitarget#628",
    ),
    Rule(
        kind=REFUSED_JOB,
        patterns=(
            r"Job violates accounting/QOS policy",
            r"would exceed .{0,60}(?:limit|per-user)",
            r"Resource temporarily unavailable.{0,20}sbatch",
            r"slurm_receive_msg",
            r"Socket timed out on send/recv",
        ),
        error_patterns=(r"job submit limit",),
        unless=r"slurm_receive_msgs: ",
        example=(
            "Output: 'sbatch: error: Batch job submission failed: Job violates accounting/QOS "
            "policy (job submit limit, user's size and/or time limits)'"
        ),
        source="mlr-org/batchtools#199",
        decision=NextStep.RETRY_AFTER_WAIT,
    ),
    # Messages from pyxis itself. The indented lines below them contain the reason, taken from the
    # enroot log.
    Rule(
        kind=CONTAINER,
        patterns=(
            r"pyxis: (?:child \d+ failed|failed to import|container start failed|couldn't start container)",
            r"spank: required plugin spank_pyxis\.so",
        ),
        example="slurmstepd: error: pyxis: child 52574 failed with error code: 1",
        counterexample="slurmstepd: error: pyxis:     enroot-mount: failed to mount: /data: Permission denied",
        source="NVIDIA/enroot#83",
        level=Level.SYMPTOM,
    ),
    Rule(
        kind=CONTAINER,
        patterns=(
            r"pyxis: .{0,60}(?:fail|error|couldn't|unable)",
            r"pyxis: +\[ERROR\] ",
            # An enroot program, at the start of its own message
            r"enroot-\w+: ",
            r"seccomp filter failed",
            r"container creation failed",
            r"\benroot\b.{0,80}(?:ERROR|rror|fail)",
            r"could not select device driver",
            (
                r"(?:docker|nvidia-container-cli|nvidia-container-runtime|runc|podman|crun"
                r"|buildah)(?:-cli)?: .{0,120}(?:rror|fail|denied)"
            ),
            r"OCI runtime",
            (
                r"(?:FATAL|ERROR): .{0,60}(?:container|image|mount|overlay|bind|squashfs"
                r"|squashfuse|SIF|sif|unpack|build)"
            ),
            # Singularity and Apptainer separate the fields with spaces.
            r"^(?:FATAL: {3}|ERROR: {3}|ERROR {2}: )\S",
            r"failed to (?:import|pull|start|create) .{0,30}(?:image|container)",
            r"[Ee]rror response from daemon",
            r"Cannot connect to the Docker daemon",
            r"^\[ERROR\] (?:No such file|Command not found|Could not|Download|URL)",
            r"manifest (?:for .{0,80} )?(?:unknown|not found)",
            r"pull access denied",
            r"toomanyrequests",
            r"could not open image",
            r"no such image",
            r"unauthorized: authentication required",
            r"invalid (?:container )?mount",
            r"bind (?:path|point)s? .{0,40}(?:does|do) ?n.?t exist",
            r"destination .{0,80}doesn't exist in container",
            r"while mounting",
            r"(?:squashfuse\w*|fuse(?:2fs|-overlayfs|3)?|fusermount\d?)(?![a-z_]).{0,60}(?:fail|not found|rror)",
            r"[Ss]ingularity.{0,60}(?:fail|command not found)",
            r"apptainer.{0,40}command not found",
            r"user namespaces? .{0,40}(?:disabled|not|fail)",
            r"newuidmap",
            r"nv(?:idia)?-?container.{0,40}(?:fail|error)",
            r"mksquashfs .{0,40}(?:fail|not found)",
            r"exec format error",
            r"image .{0,60}(?:platform|architecture).{0,40}does not match",
            r"ImagePullBackOff",
            r"ErrImagePull",
            r"[Bb]ack-off pulling image",
            r"container name .{0,80}already in use",
            r"\.singularity\.d/actions/\w+: .{0,40}not found",
        ),
        error_patterns=(r"spank_pyxis",),
        unless=r"could not remove squashfs|Cleanup error|no space left|quota",
        example="slurmstepd: error: pyxis: seccomp filter failed: Function not implemented",
        counterexample="spank: /etc/slurm/plugstack.conf.d/pyxis.conf:1: Loaded plugin spank_pyxis.so",
        source="NVIDIA/pyxis#42",
    ),
    # This line does not say why the container keeps restarting; another line gives the reason.
    Rule(
        kind=CONTAINER,
        patterns=(r"CrashLoopBackOff", r"[Bb]ack-?off .{0,30}restarting failed container"),
        example="      Reason:       CrashLoopBackOff",
        source="Martouta/speech_processor#59",
        level=Level.CONSEQUENCE,
        in_warnings=True,
    ),
    Rule(
        kind=SSH,
        patterns=(
            r"Permission denied(?: \([a-z][a-z,-]+\)|, please try again)",
            r"Host key verification failed",
            r"pdsh@\S+: .*ssh exited with exit code 255",
            r"ssh: (?:connect to|Could not)",
            r"Command 'ssh .{0,120}returned non-zero",
            r"was not reachable via ssh",
            r"ssh_exchange_identification",
            r"pdsh: command not found",
            r"ssh .{0,60}(?:timed out|refused)",
            r"Could not create directory '.{0,60}\.ssh'",
            r"RuntimeError: launcher 'pdsh' not installed",
            r"KeyError: 'PDSH_",
        ),
        example=(
            "subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no "
            "192.168.3.100 hostname' returned non-zero exit status 255."
        ),
        source="deepspeedai/DeepSpeed#4907",
    ),
    # Slurm's PMIx plug-in reports data it cannot exchange between ranks, both when the ranks start
    # and after some have ended.
    Rule(
        kind=LAUNCHER,
        patterns=(r"error:\s+mpi/pmi\w+: .*\bpmixp?_?\w+\.c:\d+",),
        unless=r"[Tt]imeout|coll_(?:ring|tree)",
        example=(
            "slurmstepd: error: mpi/pmix_v5: _dmdx_req: owl1 [0]: pmixp_dmdx.c:319: Bad request "
            "from owl2"
        ),
        counterexample=(
            "slurmstepd: error: mpi/pmix_v3: pmixp_coll_ring_reset_if_to: n1 [0]: "
            "pmixp_coll_ring.c:742: collective timeout seq=0"
        ),
        source="openpmix/openpmix#3320",
        level=Level.SYMPTOM,
    ),
    # MPI has rejected the arguments in a call. No connection was lost, and the launcher is not the
    # cause.
    Rule(
        kind=COLLECTIVES_DIFFER,
        patterns=(
            r"Fatal error in (?!internal_Init|P?MPI_Init)\w+: Message truncated",
            r"truncated; \d+ bytes received but buffer size",
            r"message sizes do not match across processes",
            r"MPI_ERR_TRUNCATE\b",
        ),
        example="Fatal error in PMPI_Allreduce: Message truncated, error stack:",
        counterexample="logger: Message truncated at 4000 characters",
        source="MPICH, a message of src/mpi/errhan/errnames.txt",
    ),
    Rule(
        kind=OWN_ERROR,
        patterns=(
            (
                r"Fatal error in (?!internal_Init|P?MPI_Init)\w+: "
                r"Invalid (?:rank|tag|communicator|buffer|count|datatype|root)\b"
            ),
            r"MPI_ERR_(?:RANK|TAG|BUFFER|COUNT|TYPE|ROOT): invalid",
        ),
        example="Fatal error in PMPI_Send: Invalid rank, error stack:",
        counterexample="Fatal error in PMPI_Init: Invalid rank, error stack:",
        source="MPICH, a message of src/mpi/errhan/errnames.txt",
        decision=NextStep.FIX_FIRST,
    ),
    Rule(
        kind=LAUNCHER,
        patterns=(
            r"not enough slots available",
            (
                r"(?:mpiexec|mpirun|srun|aprun|prun|palsrun)(?:\.\w+)?: .{0,30}(?:unrecognized"
                r"|unknown|invalid|illegal|no such) (?:option|argument)"
            ),
            r"\[(?:mpiexec|proxy)[^]]*\] .{0,80}(?:unrecognized argument|execvp error)",
            r"long invalid MPI type",
            r"invalid MPI type",
            r"mpi plugin",
            r"mpi/pmi\w*: can(?: ?not|'t) load",
            r"CPU binding outside of job step allocation",
            r"[Uu]nable to set CPU binding",
            r"daemon was unable to complete a TCP connection",
            r"\baprun: .{0,60}not found",
            r"No slot '\d+' specified on host",
            r"specified plugin name for mpi",
            r"PM[Ix2]+_Init",
            # The process management library from Cray
            r"\b_pmi(?:_\w+)?_(?:init|sync)\b.{0,80}fail",
            r"alps response not OKAY",
            r"PMI\d?_?Init\w* .{0,20}(?:fail|intialize)",
            r"\b(?:pmix|orte)_\w+ failed",
            r"requested component was not found, or was unable to be opened",
            r"PMIX[ _]ERROR",
            r"instead of PMIX_SUCCESS",
            r"OMPI was not built with",
            r"does not find an installed OpenMPI",
            r"application appears to have been direct launched",
            r"ORTE (?:was unable|has lost|does not know)",
            r"daemon has unexpectedly failed",
            r"aborted before step completely launched",
            r"PRTE? .{0,40}(?:unable|lost)",
            r"unable to (?:find|launch) the specified (?:executable|application)",
            r"could not find the executable",
            r"execve\(\): .{0,120}(?:No such|denied)",
            r"(?:task(?: \d+)?|step) launch failed",
            r"[Tt]ask launch for .{0,60}failed",
            r"Unable to confirm allocation",
            r"srun: fatal",
            (
                r"srun: error: .{0,40}(?:Unable to create (?:job )?step|Invalid|task launch|credential"
                r"|_server_read|Zero Bytes)"
            ),
            r"Unable to create (?:job )?step",
            r"[Cc]redential (?:expired|revoked)",
            r"More (?:tasks|processors) requested than",
            r"Task count specification",
            r"There are not enough slots",
            r"hydra_pmi_proxy",
            r"HYD\w+ .{0,80}(?:error|fail|unable to connect)",
            r"detected an attempt to run as root",
            r"(?:\w+_)?bstrap(?![a-z])",
            r"proxy:\d+:\d+@.{0,120}(?:error|unable)",
            r"MPI_Init_?\w*.{0,30}(?:fail|error|abort)",
            r"MPI_ERR_\w+",
            r"PMI\d?_KVS_\w+ returned -1",
            r"PMI\d?_SUCCESS' failed",
            r"PMII?_singinit",
            r"process manager support was required",
            r"GTL library is not linked",
            r"PALS.{0,60}(?:rror|fail|denied)",
            r"pals_\w+.{0,60}fail",
            r"apshepherd",
            r"cannot (?:bind|launch) .{0,40}(?:rank|task)s?",
            r"Unable to start (?:a daemon|one or more)",
            r"unable to reliably start",
            r"tree_?spawn",
            r"torchrun: (?:error|command not found)",
            r"mpiexec: command not found",
            r"srun: command not found",
            r"deepspeed: command not found",
        ),
        error_patterns=(
            r"PMI .{0,30}(?:fail|not|error)",
            r"open-?mpi .{0,60}(?:not|fail)",
            r"nproc_per_node .{0,40}(?:invalid|not)",
            r"launcher .{0,30}not (?:found|installed)",
        ),
        unless=r"sent help message|mpi4py.{0,30}No module",
        example="There are not enough slots available in the system to satisfy the 2 slots ",
        source="horovod/horovod#978",
    ),
    # The first line in an MPI error stack names the call. A later line often contains the reason.
    Rule(
        kind=LAUNCHER,
        patterns=(
            r"An error occurred in MPI_Init",
            r"Fatal error in (?:internal_Init|P?MPI_Init)\w*",
            r"MPI_INIT failed",
        ),
        example="Abort(1090831) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:",
        counterexample="Abort(539602063) (rank 519 in comm 0): Fatal error in PMPI_Iprobe: Other MPI error, error stack:",
        source="JCSDA-internal/soca#682",
        level=Level.SYMPTOM,
    ),
    Rule(
        kind=PEER_DIED,
        patterns=(
            r"Fatal error in (?:internal_|P?MPI_)\w+",
            r"An error occurred in MPI_\w+",
            r"application called MPI_Abort",
            r"MPI_ERRORS_ARE_FATAL",
            r"MPICH ERROR \[Rank",
        ),
        example="MPICH ERROR [Rank 1] [job id f1ce81c3] [x3109c0s19b1n0] - Abort(1) (rank 1 in comm 0): application "
        "called MPI_Abort(MPI_COMM_WORLD, 1) - process 1",
        source="shankar1729/jdftx#336",
    ),
    # The Slurm plug-in for private job folders could not create these folders on the node.
    Rule(
        kind=LAUNCHER,
        patterns=(r"slurmstepd: error: container_[pg]_\w+\b",),
        example="slurmstepd: error: container_p_join: open failed .../119383/.active: No such file or directory",
        source="ArjunaCluster/ArjunaUsers#123",
        decision=NextStep.RETRY_OTHER_NODE,
    ),
    Rule(
        kind=NOTEBOOK,
        patterns=(
            r"DeadKernelError",
            r"Kernel died",
            r"NoSuchKernel",
            r"No such kernel",
            r"CellTimeoutError",
            r"Timeout waiting for (?:execute reply|IOPub)",
            r"kernel_info",
            r"Kernel didn't respond",
            r"heartbeat from kernel",
            r"kernel will be automatically restarted",
            r"Kernel (?:is )?dead",
            r"ZMQ.{0,40}(?:fail|error)",
            r"IOPub timeout",
            r"A cell timed out",
            r"Timeout waiting for IOPub output",
            r"kernel .{0,40}(?:died|has died|restarting|failed to start|not found)",
            r"[Kk]ernelspec .{0,60}not found",
            r"ipykernel.{0,60}(?:not|No module)",
            r"No module named '?ipykernel",
            r"jupyter-?\w*: .{0,30}not found",
            r"Failed to start (?:the )?kernel",
            r"papermill.{0,40}Dead",
            r"AsyncIOLoopKernelRestarter",
        ),
        unless=r"Missing CO|kernel image|launch|CUDA|Linux",
        example="traitlets - No such kernel named pyproject_local_kernel_use_venv",
        source="cal-itp/data-analyses#2044",
        in_warnings=True,
    ),
    Rule(
        kind=HUB,
        patterns=(
            r"couldn't connect to 'https?://",
            r"Couldn't (?:reach|connect|find cache for)",
            r"HfHubHTTPError",
            (
                r"huggingface\.co.{0,160}(?:Max retries|timed out|refused"
                r"|(?<!\w)(?:40[134]|429|50[0234])(?!\w))"
            ),
            r"gated repo",
            r"requested files in the cached path",
            r"GatedRepoError",
            r"Incorrect path_or_model_id",
            r"HFValidationError",
            r"RepositoryNotFoundError",
            r"LocalEntryNotFoundError",
            r"(?:40[134]|429|50[0234]) (?:Client|Server) Error",
            r"Too Many Requests",
            r"outgoing traffic has been disabled",
            r"in offline mode at",
            r"offline mode is enabled",
            r"OfflineModeIsEnabled",
            r"is not a local folder and is not a valid model identifier",
            (
                r"HTTPSConnectionPool\(host='(?:huggingface|cdn-lfs|hf|api\.wandb|s3|openaipublic"
                r"|raw\.github|pypi|download)"
            ),
            r"(?:ProxyError|SSLError)\b",
            r"ConnectionError: .{0,60}(?:Couldn't reach|HTTPS)",
            r"EntryNotFoundError",
            r"RevisionNotFoundError",
            r"Access to model .{0,80}is restricted",
            r"Repository Not Found",
            r"Name or service not known.{0,60}(?:huggingface|hf|github)",
            r"hf_hub_download.{0,80}fail",
            r"Can't load (?:the )?(?:tokenizer|configuration|config|model|feature extractor) for",
            r"does not appear to have a file named",
            r"DatasetNotFoundError",
            r"doesn't exist on the Hub",
            r"modelscope.{0,60}(?:not exist|fail)",
        ),
        error_patterns=(
            r"Invalid (?:user|username|token)",
            r"Unauthorized",
            r"api[_ -]key .{0,40}(?:not|invalid)",
        ),
        example=(
            "OSError: We couldn't connect to 'https://huggingface.co' to load this file, "
            "couldn't find it in the cached files"
        ),
        # wget announces a download. The 404 in the line is part of the file number, not a status
        # code.
        counterexample="--2024-09-08 22:57:37--  https://huggingface.co/datasets/a/resolve/main/part_140460.jsonl",
        source="hustvl/Matte-Anything#15",
    ),
    # A web request failed in the network. Servers inside the site have names without a domain.
    Rule(
        kind=HUB,
        patterns=(
            rf"{_WEB_ADDRESS}.{{0,300}}{_UNREACHED}",
            rf"{_UNREACHED}.{{0,300}}{_WEB_ADDRESS}",
            rf"^(?:curl|wget|git|pip|conda)\b.{{0,200}}{_UNREACHED}",
        ),
        unless=r"https?://[\w-]+[:/]|localhost|127\.0\.0\.1|pypi|wandb",
        example="Cause: com.amazonaws.SdkClientException: Unable to execute HTTP request: No route to host",
        counterexample="API request to http://mlflow:5000 failed with exception Connection refused",
        source="AlexsLemonade/scpca-nf#204",
    ),
    Rule(
        kind=HUB,
        patterns=(_UNREACHED,),
        after=(
            r"urllib/request\.py|urllib3/|requests/(?:adapters|sessions)\.py|http/client\.py"
            r"|huggingface_hub/|[Dd]ownloading:? .{0,20}https?://"
        ),
        unless=r"c10d|TCPStore|gloo|host not found|localhost|127\.0\.0\.1",
        example_before='  File "/usr/lib/python3.11/urllib/request.py", line 1348, in do_open',
        example="OSError: [Errno -3] Temporary failure in name resolution",
        counterexample="ValueError: host not found: Name or service not known",
        source="jade-hpc-gpu/jade-hpc-gpu.github.io#184",
    ),
    Rule(
        kind=HUB,
        patterns=(
            r"429 Client Error",
            r"Too Many Requests",
            r"50[234] (?:Server Error|Bad Gateway|Gateway)",
        ),
        error_patterns=(r"rate.?limit(?:ed)?",),
        example="429 Client Error: Too Many Requests",
        source="embeddings-benchmark/mteb#2659",
        decision=NextStep.RETRY_AFTER_WAIT,
    ),
    # torchrun itself was ended by its user, by the queue, or by srun after another node ended.
    Rule(
        kind=CANCELLED,
        patterns=(r"Process \d+ got signal: (?:2|15)\b",),
        example="torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 15",
        source="PyTorch, a message of torch/distributed/elastic/multiprocessing/api.py",
        level=Level.SYMPTOM,
        also=PEER_DIED,
        check="If another node's log ends earlier or names an error, that node ended first.",
    ),
    # Sites add rules for job submission, each with a different message.
    Rule(
        kind=REFUSED_JOB,
        patterns=(r"\bsbatch: error: ",),
        unless=r"Unable to contact|slurm_receive_msg|Socket timed out|step creation",
        example="sbatch: error: Parameter --gres=gpu:1 no longer acceptable, please switch to --gpus=1",
        source="facebookincubator/submitit#1710",
    ),
    Rule(
        kind=CANCELLED,
        patterns=(r"STEPD TERMINATED", r"JOB NOT ENDING WITH SIGNALS", r"Kill task failed"),
        example="error: *** STEP 63532.0 STEPD TERMINATED ON cn106 AT 2020-12-14T09:44:56 DUE TO "
        "JOB NOT ENDING WITH SIGNALS ***",
        source="ai4d-iasc/trixie#45",
        also=STORAGE,
        check="Processes that no signal ends wait for a file system or a device: sinfo -R names the node.",
    ),
    Rule(
        kind=CANCELLED,
        patterns=(
            r"\*\*\* (?:JOB|STEP) .{0,120}CANCELLED AT",
            r"\bJob .{0,20}cancelled",
            r"[Jj]ob deleted",
            r"Force Terminated job",
            r"Exit_status=271",
            r"\bby qdel\b",
            r"(?:[Rr]eceived|[Gg]ot|[Cc]aught) (?:signal )?SIGTERM",
            r"\bby scancel\b",
            r"killed by (?:the )?(?:user|administrator|scheduler)",
            r"job killed: (?!mem|vmem|walltime)",
        ),
        unless=r"DUE TO",
        example="slurmstepd: error: *** JOB 9411285 ON gpu20-15 CANCELLED AT 2022-05-17T17:58:10 "
        "***",
        source="Slurm, a message of slurmstepd",
    ),
)

"""Recognizes harmless lines that look like failures."""

import re

from runbook.results.failures.error_lines import (
    continues,
    denies_failure,
    echoes_command,
    supposes,
)

_HARMLESS = re.compile(
    "|".join(
        (
            r"destroy_process_group|process group has NOT been destroyed",
            (
                r"using (?:best-guess )?GPU \d+ (?:to perform|as device used by) barrier|to "
                r"perform barrier as devices"
            ),
            r'Missing "(?:amd_)?iommu=',
            r"Unable to register cu(?:DNN|BLAS|FFT) factory|computation placer already registered",
            r"Passed unknown parameter",
            r"Exceeded step memory limit at some point",
            r"leaked (?:semaphore|shared_memory) ",
            r"Unable to find hostfile",
            r"step creation (?:temporarily|still) disabled, retrying",
            (
                r"Skipping step\. Attempted loss scale: "
                r"(?P<scale>[\d.]+), (?!reducing to (?P=scale)(?![\d.]))"
            ),
            (
                r"could not find the metadata file|will not load any checkpoints and will start "
                r"from random"
            ),
            r"Failed to find nccl(?:Net|CollNet|Tuner|Profiler)\w* symbol",
            r"sent help message|orte_base_help_aggregate",
            r"Not enough SMs to use max_autotune",
            r"No preset parameters were found",
            r"stripe already set",
            # PMIx then locks its store in a different way, and the ranks start.
            r"PMIX ERROR: ERROR in file \S*gds_ds12_lock_pthread\.c",
            r"fork\(\) support|Setting RDMAV_FORK_SAFE",
            r"number of nan iterations:\s+0\b.*number of skipped|\(errors?: 0\)|\b0 errors?\b",
            r"TF-TRT Warning: Could not find TensorRT",
            r"overriding env\. variables|is deprecated",
            r"socket\.cpp:\d+\] \[c10d\] The (?:client|server) socket .*(?:cannot be "
            r"initialized|has failed to connect) "
            r".*errno: 9[79]",
            r"libibverbs: Warning: couldn't (?:open config directory|load driver)",
            r"sparse_attn requires|Please specify the CUTLASS|async_io requires the dev libaio",
            r"no version information available",
            # NCCL tries plug-ins, networks and features, and reports missing ones. If ranks share a
            # log, a warning from another rank may be in the same line.
            r"^(?!.*NCCL WARN).*NCCL INFO",
            # The NCCL monitoring server, and a query a device need not answer
            r"\bras/\w+\.cc:\d+ NCCL WARN",
            r"NCCL WARN NET/Plugin\b.{0,200}No plugin found",
            r"ibv_query_\w+ failed .{0,40}[Nn]ot supported",
            # MPICH waits for the other ranks by querying a key before it exists.
            r"NONEXIST-KEY|PMI2_KVS_Get:_pmi2_kvs_get failed",
            # A system script, such as a scheduler prolog, fails, but the job starts anyway.
            # However, a full disk or a lack of memory would also stop the training.
            (
                r"^/etc/\S+: line \d+: "
                r"(?!.*(?:[Nn]o space|[Qq]uota|Read-only|Cannot allocate))"
            ),
            # A container tries to clean up its read-only image at start-up.
            r"^rm: cannot remove|chmod: changing permissions",
            # libfabric queries every provider in turn.
            r"fi_getinfo: provider \S+ returned -61|OFI_MRAIL_ADDR_STRC",
            # A program statement, as printed in tracebacks and by trainers that log source code.
            r"^\s*(?:\w+(?:, ?\w+)* = |return )[\w.]+\(.*[),]$",
            r"^\s*assert \S",
            r"^\s*warnings\.warn\(",
            r"(?:not installed|not available|No module named \S+?)[.,;:] (?:[Ff]alling|[Ff]alls) back",
            # A folder or a link from an earlier job already exists.
            r"^(?:mkdir|ln): .*: File exists",
            # The dynamic loader leaves out a library the site preloads into every program.
            r"from LD_PRELOAD cannot be preloaded .*: ignored",
            # A shell or a command that may not change a limit or a priority keeps the current
            # value.
            r"\bulimit: .*cannot modify limit|^(?:re)?nice: ",
            # Open MPI tries each component, and leaves out those for which libraries are missing.
            r"openmpi/mca_\w+: .*\(ignored\)$",
            # A command that bash echoes (set -x), or the machine report from the MLPerf harness
            r"^\++ \S|:::SYSJSON",
            r"Your compiler \(",
            # Matplotlib (3.11, matplotlib/__init__.py) falls back to a temporary folder. A full
            # disk would also stop the training.
            r"mkdir -p failed for path \S*matplotlib\S*: (?!.*(?:[Qq]uota|No space))",
            r"matplotlib\S* is not a writable|Matplotlib (?:created a temporary|is building the font)",
            r"Failed to load image Python extension",
            r"The IPv6 network addresses of .* cannot be retrieved",
            # JAX tries backends for other vendors. If it lacks the requested one, it raises an
            # error.
            r"xla_bridge\.py:\d+\] Unable to initialize backend '",
            # Slurm leaves out an optional plug-in, and says so if a plug-in is required.
            r"error: spank: (?!required)\S+: Plugin file not found",
            # UCX watches a folder to provide statistics.
            r"vfs_fuse\.c",
            r"^modprobe: ",
            # Without devices, the UCX connection manager does not start, and Open MPI uses another
            # transport. If a worker fails for another reason, the line before names the reason.
            r"rdma_create_event_channel failed: No such device|failed to open CM on component rdmacm",
            r"Failed to create UCP worker\s*$",
            # An experiment tracker that retries does not delay training, and reports when it gives
            # up.
            r"Network error \(\w+\), entering retry loop|Network error resolved",
            # A script asks the kernel and the system about node hardware, and continues.
            (
                r"^(?:cat|ls|grep|sed|find|head|tail): (?:.*[ '‘])?/(?:dev|etc|proc|run|sys)/.*"
                r"No such file"
            ),
            r"line \d+: : No such file",
            # A file system query that does not end the program if it fails
            r"^(?:df|du|stat): .*No such file",
            # onnxruntime loads a provider if possible, and otherwise uses the CPU.
            r"onnxruntime.{0,200}(?:libonnxruntime_providers_|CUDAExecutionProvider)",
            # Jupyter leaves out output printed too fast. The cell continues.
            r"IOPub (?:data|message) rate exceeded",
            # torch looks for monitoring libraries for GPUs from other vendors.
            r"libamd_smi\.so: cannot open",
            r"Terminating (?:StepId|job step)|Job step aborted: Waiting",
            # A package manager that a notebook or a script calls without root privileges
            r"^[EW]: .*/(?:lib|cache)/(?:dpkg|apt)/",
            # A program that finds no tuned settings continues with its default settings.
            r"[Uu]sing (?:the )?defaults?\b.{0,120}\bnot found\b",
            r"\bnot found\b.{0,120}\busing (?:the )?defaults?\b",
        )
    )
)
_INFORMATION = re.compile(
    "|".join(
        (
            # An INFO line from NCCL is examined here only if a warning from another rank is mixed
            # into it. In a hint to set NCCL_DEBUG=INFO, the word INFO is not the log level.
            r"(?<![\w=-])(?<!NCCL )INFO\b",
            # Slurm commands write log levels in lower case: "srun: debug2: "
            r"\b(?:DEBUG|VERBOSE)\b|\bdebug\d?: ",
            r"(?<!NCCL )\bWARNING\b",
            r"(?:^|[\s:])[Ww]arning: |\w+Warning:",
            # libfabric writes the log level after the place:
            # "libfabric:85:...:core:fi_getinfo_():1392<info>"
            r"\blibfabric:\d+:\S{0,120}<(?:info|debug|trace)>",
            r"^\[?W\d* ",
            r"\[NeMo [DIW] ",
            r"\[W\d* ",
            r"^\[?I\d{4} |\bI tensorflow/",
        )
    )
)


_FATAL_FIRST = re.compile(r"(?:FATAL|CRITICAL)\b")
"""The log level is at the start of a line.

The rest of the line may quote a warning from a different program.
"""
_NO_FIRST_ERROR = re.compile(
    "|".join(
        (
            # Programs ask git for their version, even outside a checkout.
            r"not a git repository|detected dubious ownership|unsafe repository",
            # Megatron first tries kernels from Apex and Transformer Engine, and then torch kernels.
            r"using (?:the )?(?:torch|default|native|python|slow|fallback)\b",
            # How a program says that it continues without something
            r"(?i:\bus(?:e|es|ing) (?:the )?defaults?\b|\bfall(?:s|ing)? back\b"
            r"|\bcontinu(?:es|ing) without\b|\bdisabl(?:ed|ing)\b|\brebuilding\b"
            r"|\bwill not be (?:used|computed|available|registered)\b)",
            r"[Cc]ould not find arguments in the checkpoint",
            # A warning from a shell, a Slurm command, or Perl
            r"(?:^|[\s:])[Ww]arning: ",
            # A command in a job script before or after the training
            (
                r"^(?:\S+: (?:line \d+: )?)?(?:perl|id|groups|mkdir|ln|rm|rmdir|chmod|chown|chgrp|mv"
                r"|kill|pkill|touch|find|stty|mesg|tput|xauth|sysctl|rsync|tar|git)\b: "
            ),
            r"cannot find name for (?:user|group) ID|: No such process$",
            r"bash: cannot set terminal process group",
            r"pip's dependency resolver does not",
            r"modulefile error|modulecmd",
            # A script looks for devices from other vendors.
            (
                r"(?:nvidia-smi|rocm-smi|xpu-smi|hl-smi|ibstat|ibv_devinfo|numactl|module|ml|git|conda"
                r"|lspci|lscpu): (?:command )?not found"
            ),
            r"\bcpuinfo: ",
            # A measured difference, such as the largest error in a kernel's output
            r"\berrors?\s?[:=]\s?\d+(?:\.\d|e-\d)",
            # Without InfiniBand, Open MPI uses a different transport.
            r"was unable to find any relevant network interfaces",
            # Facts about the machine that NCCL reads at start-up
            r"(?:\bgraph/xml|\bnvmlwrap)\.\w+:\d+ NCCL WARN",
            r"NCCL WARN (?:Could not find real path|NUMA auto balancing)",
            # NCCL without InfiniBand, and messages from the subnet manager
            r"Failed to open libibverbs\.so|async event ?: client reregistration",
            # If an experiment tracker fails, it does not end the training.
            r"^wandb: ",
        )
    )
)
"""Lines a program or a job script prints at start-up before it continues.

Some of these lines are known failures, so the rules are applied to them too.
"""


def is_harmless(text: str) -> bool:
    """Return whether a line is known to be harmless in spite of the words in it."""
    return bool(_HARMLESS.search(text))


def is_information(text: str) -> bool:
    """Return whether a program marks a line as information or as a warning."""
    return bool(_INFORMATION.search(text)) and not _FATAL_FIRST.match(text)


def is_beside_the_point(text: str) -> bool:
    """Return whether a line cannot explain a later failure."""
    if is_harmless(text) or is_information(text):
        return True
    if continues(text) or denies_failure(text) or supposes(text) or echoes_command(text):
        return True
    return bool(_NO_FIRST_ERROR.search(text))

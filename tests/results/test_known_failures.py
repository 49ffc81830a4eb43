from __future__ import annotations

import json
from pathlib import Path
from re import _parser as regex_parser

import pytest
from click.testing import CliRunner
from suite.messages import says

from runbook.cli.logs import logs
from runbook.log_readers.read import parse_files
from runbook.results.failures import kinds
from runbook.results.failures.finder import FailureFinder, find_cause, find_failures
from runbook.results.failures.first_error import SIGNS
from runbook.results.failures.kinds import BUILD_HANGS, COMPILE_CACHE, KINDS
from runbook.results.failures.kinds import OWN_ERROR as PROGRAM
from runbook.results.failures.rule import FailureKind, Level, NextStep, Rule
from runbook.results.failures.rules import RULES
from runbook.results.failures.signal_words import SIGNAL_WORDS
from runbook.results.messages import ResultMessage
from runbook.tools.logs.messages import SummaryMessage

SAMPLES = Path(__file__).parents[1] / "samples"
SHOWN = {
    "device out of memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "host out of memory": "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=77.0. Some of the step was killed",
    "collective timeout": "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)",
    "no GPU for a rank": "vm:9:9 [1] NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000",
    "wrong network interface": "node1:99:99 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
    "another rank ended first": "RuntimeError: [gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:3421",
    "node out of reach": "srun: error: Task launch for StepId=20.0 failed on node n-33: Socket timed out on send/recv "
    "operation",
    "launcher needs ssh": "me@nid005003: Permission denied (publickey,keyboard-interactive).",
    "NaN in the loss": "RuntimeError: Rank 5: found NaN in local forward loss calculation. Device: 1, node: n1",
    "loss scale at its floor": "Exception: Current loss scale already at minimum - cannot decrease scale anymore.",
    "disk full": "OSError: [Errno 122] Disk quota exceeded: '/scratch/x/iter_0000100'",
    "preempted": "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO PREEMPTION ***",
    "time limit": "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***",
    "node failure": "srun: error: Node failure on n17",
    "stale lock": "lock file /home/x/build/lock already exists",
    "a rank hung": "rank 1 (process 4711 on n3) hangs at step 9: no sign of life for 7 s (limit 6 s); it is ended.",
    "ranks did not meet": "rank 1 of 2 did not meet the others at n1:29500: timed out. Cause: rank 0 does not answer",
    "device fault": "Memory access fault by GPU node-4 (Agent handle: 0x152e220) on address (nil).",
    "port in use": "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
    "module missing": "ModuleNotFoundError: No module named 'apex'",
    "file missing": "FileNotFoundError: [Errno 2] No such file or directory: '/opt/run/start.sh'",
    "data files": "FileNotFoundError: [Errno 2] No such file or directory: 'corpus.idx'",
    "process killed": "  exitcode  : -9 (pid: 4112)",
}


@pytest.mark.parametrize("name", SHOWN)
def test_failure_is_known_by_its_words(name):
    (found,) = find_failures(["all is well", SHOWN[name], "end"])
    assert (found.name, found.line, found.count) == (name, 2, 1)
    assert found.evidence == SHOWN[name].strip()
    assert found.remedy


# Lines from other people's failed jobs, read in public issue threads on 2026-11-21 (numbers
# changed).
SEEN = {
    "collective timeout": "[rank0]:[E321 02:07:08.408 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds before",
    "loss scale at its floor": "Exception: Current loss scale already at minimum - cannot decrease scale anymore.",
    "host out of memory": "slurmstepd: error: Detected 1 oom_kill event in StepId=440575.0. Some of the step tasks "
    "have been OOM Killed.",
    "wrong network interface": "[trainer0|0]:ncclSocketInit: connecting to address  with family 59936 is neither "
    "AF_INET(2) nor AF_INET6(10)",
    "device out of memory": "### HCC STATUS_CHECK Error: HSA_STATUS_ERROR_OUT_OF_RESOURCES (0x1008) at mcwamp_hsa.cpp",
    "disk full": "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
}


@pytest.mark.parametrize("name", SEEN)
def test_the_words_of_real_jobs_are_known(name):
    assert [one.name for one in find_failures(["step 1", SEEN[name], "step 2"])] == [name]


def test_srun_and_its_daemon_name_the_same_failure():
    lines = [SEEN["host out of memory"], "srun: error: nid001277: tasks 1-3: Out Of Memory"]
    assert [(one.name, one.count) for one in find_failures(lines)] == [(kinds.HOST_MEMORY.name, 2)]


def test_a_build_that_waits_for_a_dead_ones_lock_is_known_by_its_last_words():
    words = [
        "> compiling and loading fused kernels ...",
        "Detected CUDA files, patching ldflags",
        "Emitting ninja build file /opt/megatron/fused_kernels/build/build.ninja...",
        "Building extension module scaled_upper_triang_masked_softmax_cuda...",
        "Allowing ninja to set a default number of workers... (overridable by setting MAX_JOBS=N)",
    ]
    assert [one.name for one in find_failures(words)] == [kinds.HANGING_BUILD.name]


def test_every_kind_has_a_rule():
    shown = {rule.kind.name for rule in RULES} | {BUILD_HANGS.kind.name, PROGRAM.name}
    assert {kind.name for kind in KINDS} == shown
    assert set(SHOWN) < shown


def test_first_line_and_count_are_kept_in_order_of_appearance():
    found = find_failures([SHOWN["process killed"], SHOWN["disk full"], SHOWN["process killed"]])
    assert [(one.name, one.line, one.count) for one in found] == [
        ("process killed", 1, 2),
        ("disk full", 2, 1),
    ]


def test_kernel_build_hangs_only_where_it_is_the_last_word():
    words = "> compiling and loading fused kernels ..."
    (found,) = find_failures(["start", words])
    assert (found.name, found.line) == (kinds.HANGING_BUILD.name, 2)
    (found,) = find_failures([words, "a", "b", "c"])
    assert found.name == kinds.HANGING_BUILD.name, "three more lines leave it the last word"
    assert find_failures([words, "done", "a", "b", "c"]) == []


def test_ordinary_words_are_no_failures():
    healthy = [
        "NCCL_SOCKET_IFNAME=eth0 NCCL_DEBUG=INFO",
        "number of nan iterations:   0 |",
        "loss_scale_window .... 1000",
        "memory (MB) | allocated: 12.0",
        "setting timeout to 600 s",
    ]
    assert find_failures(healthy) == []


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def literals_of(tree) -> list[list[str]]:
    """Return the fixed texts, in lower case, of each way to match a parsed pattern."""
    ways = [[""]]
    for operator, argument in tree:
        choices = _choices(str(operator), argument)
        ways = [[*way[:-1], way[-1] + choice[0], *choice[1:]] for way in ways for choice in choices]
    return ways


def _choices(operator: str, argument) -> list[list[str]]:
    if operator == "LITERAL":
        return [[chr(argument).lower()]]
    if operator == "SUBPATTERN":
        return literals_of(argument[3])
    if operator == "BRANCH":
        return [way for branch in argument[1] for way in literals_of(branch)]
    if operator in ("MAX_REPEAT", "MIN_REPEAT"):
        least, most, repeated = argument
        if least == 0:
            return [["", ""]] if most != 1 else [[""], *literals_of(repeated)]
        return [[*way, ""] for way in literals_of(repeated)]
    if operator == "IN" and all(str(kind) == "LITERAL" for kind, _ in argument):
        return [[letter] for letter in sorted({chr(value).lower() for _, value in argument})]
    return [[""]] if operator.startswith(("AT", "ASSERT")) else [["", ""]]


OWN_ERROR = [
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "transformer.py", line 731, in forward',
    "[rank0]: RuntimeError: view size is not compatible with input tensor's size and stride.",
]
CLOSED = [
    "[rank1]: Traceback (most recent call last):",
    '[rank1]:   File "distributed_c10d.py", line 1929, in recv',
    "[rank1]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:20665",
]


def test_a_closed_connection_after_another_ranks_own_error_is_no_lost_peer():
    assert [one.name for one in find_failures([*OWN_ERROR, *CLOSED])] == [PROGRAM.name]
    assert [one.name for one in find_failures([*CLOSED, *CLOSED])] == [kinds.PEER_DIED.name]


WAITED = "[rank5]: [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("slurmstepd: error: pyxis: container start failed with error code: 1", "container failed"),
        ("RuntimeError: DataLoader worker (pid(s) 9) exited unexpectedly", "host out of memory"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'tokens'", "file missing"),
    ],
)
def test_a_ranks_own_symptom_comes_before_those_of_ranks_that_waited_for_it(line, name):
    for lines in ([WAITED, line], [line, WAITED]):
        failures = find_failures(lines)
        assert {failure.level for failure in failures} == {Level.SYMPTOM}
        assert find_cause(failures).name == name


def test_a_network_symptom_may_follow_from_a_rank_that_waited():
    lines = [WAITED, "ConnectionRefusedError: [Errno 111] Connection refused"]
    failures = find_failures(lines)
    assert [failure.name for failure in failures] == ["collective timeout", "ranks did not meet"]
    assert find_cause(failures).name == "collective timeout"


@pytest.mark.parametrize(
    ("later", "name"),
    [
        ("n1: rank 3 died from signal 15", "NaN in the loss"),
        (WAITED, "NaN in the loss"),
        ("RuntimeError: CUDA error: out of memory", "device out of memory"),
    ],
)
def test_a_loss_that_is_lost_explains_lost_peers_but_no_other_cause(later, name, tmp_path):
    step = "iteration {}/ 100 | lm loss: nan | loss scale: 1.0 | number of skipped iterations: 0 |"
    log = tmp_path / "run.log"
    log.write_text("\n".join([step.format(1), step.format(2), later, ""]))
    assert parse_files([log]).cause.name == name


NCCL_WARNING = "n1:801:839 [1] misc/ibvwrap.cc:268 NCCL WARN Call to ibv_create_cq failed"


@pytest.mark.parametrize(
    ("process", "message", "names"),
    [
        ("n1:801:850 [1]", "ncclCommInitRank comm 0x55 rank 1 nranks 2 - Init COMPLETE", []),
        ("n1:801:839 [1]", "Connected all rings", []),
        ("n1:801:839 [1]", "Using network Socket", ["limit of the system"]),
        ("n1:802:839 [2]", "Connected all rings", ["limit of the system"]),
        ("n2:801:839 [1]", "Connected all rings", ["limit of the system"]),
    ],
)
def test_a_warning_of_an_nccl_that_started_all_the_same_is_no_failure(process, message, names):
    lines = [NCCL_WARNING, f"{process} NCCL INFO {message}"]
    assert [failure.name for failure in find_failures(lines)] == names


def test_an_exception_stays_when_nccl_starts_afterwards():
    memory = "n1:801:839: RuntimeError: CUDA error: out of memory"
    (failure,) = find_failures([memory, "n1:801:839 [1] NCCL INFO Connected all rings"])
    assert failure.name == kinds.DEVICE_MEMORY.name


@pytest.mark.parametrize(
    "line",
    [
        "[2025-08-22 17:44:36] n1:9:9 [1] ras/client_support.cc:159 NCCL WARN Call to bind failed: Address already in use",
        "n1:9:9 [0] NCCL WARN Call to ibv_query_port_speed failed with error Protocol not supported",
    ],
)
def test_what_a_training_does_not_need_of_nccl_is_no_failure(line):
    assert find_failures([line]) == []


def test_a_process_that_aborted_comes_after_the_symptom_that_explains_it():
    aborted = "[ERROR] failed (exitcode: -6) local_rank: 0 (pid: 4711) of binary: /usr/bin/python"
    worker = "RuntimeError: DataLoader worker (pid(s) 9) exited unexpectedly"
    assert find_cause(find_failures([aborted])).name == kinds.PROGRAM_ENDED.name
    for lines in ([aborted, worker], [worker, aborted]):
        assert find_cause(find_failures(lines)).name == kinds.HOST_MEMORY.name


def test_an_error_that_was_caught_hides_no_lost_peer():
    caught = "RuntimeError: printed by the program, which goes on"
    of_rank_1 = f"[rank1]: {caught}"
    assert [one.name for one in find_failures([caught, *CLOSED])] == [kinds.PEER_DIED.name]
    assert [one.name for one in find_failures([of_rank_1, *CLOSED])] == [kinds.PEER_DIED.name]


def test_an_error_with_a_name_of_its_own_stays_beside_the_closed_connection():
    memory = [
        OWN_ERROR[0],
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
    ]
    assert [one.name for one in find_failures([*memory, *CLOSED])] == [kinds.DEVICE_MEMORY.name]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.kind.name}: {rule.example[:40]}")
def test_a_rule_recognizes_its_example_and_leaves_its_counterexample(rule):
    before = [rule.example_before or "Building extension module of triton"] if rule.after else []
    (failure,) = find_failures([*before, rule.example])
    assert failure.name == rule.kind.name
    assert not rule.counterexample or not rule.matches(rule.counterexample)


def test_a_rule_without_source_or_example_does_not_build():
    kind = FailureKind(name="x", remedy="y")
    for example, source in (("x", ""), ("", "x")):
        with pytest.raises(ValueError) as caught:
            Rule(kind=kind, patterns=("pattern",), example=example, source=source)
        assert says(str(caught.value), ResultMessage.RULE_NOT_CHECKABLE, pattern="'pattern'")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.kind.name}: {rule.example[:40]}")
def test_the_first_look_lets_every_pattern_through(rule):
    """Anything that a pattern matches contains a word that makes a line worth a closer look."""
    for pattern in (*rule.patterns, *rule.error_patterns):
        for literals in literals_of(regex_parser.parse(pattern)):
            assert any(word in literal for literal in literals for word in SIGNAL_WORDS), (
                pattern,
                literals,
            )


def test_no_word_of_the_first_look_contains_a_digit():
    """Of lines that differ only in digits, only one is examined, so these words may not contain
    digits."""
    assert not [word for word in (*SIGNAL_WORDS, *SIGNS) if any(map(str.isdigit, word))]


def test_lines_that_differ_in_digits_are_all_counted():
    lines = [f"RuntimeError: CUDA out of memory. Tried to allocate {n} MiB" for n in (2, 7, 7)]
    (failure,) = find_failures(["step 1 took 3 s", "step 2 took 4 s", *lines])
    assert (failure.line, failure.count) == (3, 3)


def test_a_process_of_jax_that_lost_another_is_explained_by_the_other_ones_error():
    lost = "F0929 17:42:48 1 client.h:77] Terminating process because the JAX distributed service detected fatal errors."
    (alone,) = find_failures([lost])
    assert alone.name == kinds.PEER_DIED.name
    cause = find_cause(
        find_failures([lost, "RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"])
    )
    assert cause is not None
    assert cause.name == kinds.DEVICE_MEMORY.name


def test_source_text_in_a_traceback_says_nothing():
    frame = '  File "torch/distributed/rendezvous.py", line 142, in _tcp_rendezvous_handler'
    source = "    store = TCPStore(result.hostname, world_size, start_daemon, timeout)"
    raised = "    raise RendezvousConnectionError("
    assert find_failures([frame, source]) == []
    assert find_failures([f"[rank3]: {frame}", f"[rank3]: {source}"]) == []
    assert [failure.name for failure in find_failures([frame, raised])] == [kinds.RENDEZVOUS.name]
    assert [failure.line for failure in find_failures([frame, source, OOM])] == [3]


def test_nccl_and_libfabric_may_say_what_they_tried():
    lines = [
        "n1:933:933 [1] NCCL INFO NET/Plugin: libnccl-net.so: cannot open shared object file",
        "n1:933:933 [1] NCCL INFO NET/IB : No device found.",
        "libfabric:12:core:core:fi_getinfo_():955<warn> fi_getinfo: provider ofi_rxd returned -61",
    ]
    assert find_failures(lines) == []


# Lines of training runs that continued, from 194 logs in public repositories, read on 2026-11-27.
WENT_ON = (
    "            if reshape[0] % self.world_size != 0:",
    '                raise ValueError(f"reshape[0]={reshape[0]} must be divisible by world_size")',
    " > loading doc-idx mapping from /data/openwebtext_train_indexmap_1024000ns_1024sl_1234s_doc_idx.npy",
    "Your compiler (c++) is not compatible with the compiler Pytorch was",
    '    assert 8 % world_size == 0, "world_size must be a divisor of 8"',
    "`.reshape` attribute that reshapes the bank so that the leading dimension is divisible",
    "[1724685304.167173] [n1:102320:f] vfs_fuse.c:281 UCX ERROR inotify_add_watch(/tmp) failed: No space left",
    "mkdir -p failed for path /results/.cache/matplotlib: [Errno 13] Permission denied: '/results/.cache'",
    "[W socket.cpp:697] [c10d] The IPv6 network addresses of (n1, 23456) cannot be retrieved (gai error: -2).",
    "image.py:13: UserWarning: Failed to load image Python extension: 'image.so: undefined symbol: _ZN3c10'",
    "modprobe: FATAL: Module amdgpu not found in directory /lib/modules/5.15.0-113-generic",
    "environment: line 15: : No such file or directory",
    "0: + echo 'no GPUs found'",
    "PMI2_KVS_Get:_pmi2_kvs_get failed",
    "  warnings.warn('Apex is not installed. Falling back to Torch Norm')",
    "Transformer Engine and Apex are not installed. Falling back to Torch optimizers.",
    # open-mpi/ompi#8367: a machine without InfiniBand
    "[1610465245.269420] [n1:800759:0]  rdmacm_cm.c:638  UCX  ERROR rdma_create_event_channel failed: No such device",
    "[1610465245.349752] [n1:800759:0] ucp_worker.c:1432 UCX ERROR failed to open CM on component rdmacm with status",
    "[n1:800759] ../ompi/mca/pml/ucx/pml_ucx.c:273  Error: Failed to create UCP worker",
    "n1:5021:5386 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : client reregistration",
    "/etc/slurm/prolog.d/gpustats_helper.sh: line 5: /run/gpustat/0: Permission denied",
    # ArjunaCluster/ArjunaUsers#225
    "sbatch: error: spank: x11.so: Plugin file not found",
    # jonbarron/camp_zipnerf#10
    "I0124 13:07:20.768469 140638609667136 xla_bridge.py:660] Unable to initialize backend 'tpu': INTERNAL: "
    "Failed to open libtpu.so: libtpu.so: cannot open shared object file: No such file or directory",
)


@pytest.mark.parametrize("line", WENT_ON)
def test_words_of_trainings_that_went_on_alarm_nobody(line):
    assert find_failures([line]) == []


# Lines that use the words from a rule in a different sense, and lines from a healthy node.
OTHER_SENSE = (
    "IndexError: list index out of range",
    "IndexError: string index out of range",
    "IndexError: pop index out of range",
    "IndexError: list assignment index out of range",
    "IndexError: Replacement index 1 out of range for positional args tuple",
    "ValueError: the layer's index 7 is out of range [0, 7).",
    "There may be multiple versions installed: error",
    "qsub: warning: no project",
    "qsub: Warning: Invalid shell is replaced",
    "Usage: qsub: [-a date]",
    "cat: /proc/driver/nvidia/version: No such file or directory",
    "ls: cannot access '/dev/infiniband': No such file or directory",
    "    return self.world_size != 0",
    "    if self.world_size % 8 != 0 and (",
    "    class NoSuchKernel(Exception):  # the kernel died",
    "/results/.config/matplotlib is not a writable directory",
    "Matplotlib created a temporary cache directory at /tmp/matplotlib-x because the default path "
    "(/results/.cache/matplotlib) is not a writable directory",
    "n1:9:9 [1] NCCL INFO NET/IB : Got completion with error 12",
    "Bootstrapping the process group",
    "the usergroup of this job has 5 members",
    "auc_score 0.5, see ERROR_RATE",
    "unlink down/a.tmp",
    "the model's loss_function is not writable",
    "Aborted by PBS Server",
    "No fused attention kernels are available, falling back to the unfused implementation",
    "No available kernel for flash attention, using math",
    "Detected 0 mismatched collectives",
    "No mismatched collectives on 8 ranks",
    "mismatched collective count 0",
    "mismatched collectives: 0",
    "faulthandler registered for SIGSEGV, SIGFPE",
    "installed handlers for SIGABRT, SIGILL",
    "trap 'save' SIGTERM SIGFPE",
    "SIGFPE handler installed",
    "Illegal instruction set check passed",
    "Batch exceeds the soft quota of 10 sequences",
    "sequence length exceeds 80 percent memory limit, chunking",
)


@pytest.mark.parametrize("line", OTHER_SENSE)
def test_words_in_another_sense_name_no_failure(line):
    assert find_failures([line]) == []


HIDDEN = (
    ("IndexError: index 9 is out of bounds for dimension 0 with size 5", "device fault"),
    ("index out of range: Tried to access index 50 out of table with 49 rows", "device fault"),
    ("ModuleNotFoundError: No module named 'matplotlib'", "module missing"),
    (
        "PermissionError: [Errno 13] Permission denied: '/home/user/.config/matplotlib'",
        "file system fault",
    ),
    ("Disk quota exceeded: '/home/user/.cache/matplotlib/fontlist.json'", "disk full"),
    ("No space left on device: '/home/user/.cache/matplotlib'", "disk full"),
    (
        "mkdir -p failed for path /home/user/.cache/matplotlib: [Errno 122] Disk quota exceeded",
        "disk full",
    ),
    (
        "n1:9:9 [0] NCCL INFO Channel 00 n2:7:7 [1] NCCL WARN NET/IB : Got completion with error 12",
        "fabric error",
    ),
    (
        "n2:7:7 [1] NCCL WARN NET/IB : Got completion with error 12 n1:9:9 [0] NCCL INFO Channel 00",
        "fabric error",
    ),
    ("cp: cannot stat 'foo.sif': No such file or directory", "file missing"),
    ("cat: /data/x.idx: No such file or directory", "file missing"),
    ("ls: cannot access '/scratch/u/.triton/cache': No such file or directory", "file missing"),
    ("ls: cannot access '/data/dev/x': No such file or directory", "file missing"),
    ("job.sh: line 12: ./train.sh: No such file or directory", "file missing"),
    ("/bin/sh: 1: /opt/run.sh: No such file or directory", "file missing"),
    ("env: 'python': No such file or directory", "file missing"),
    ("tar: data.tar: Cannot open: No such file or directory", "file missing"),
    ("node:9:9 [0] net.cc:1 NCCL WARN the plug-in reports an error", "fabric error"),
    (
        "RuntimeError: CUDA error: an illegal memory access was encountered Compile with "
        "TORCH_USE_CUDA_DSA",
        kinds.KERNEL.name,
    ),
    ("    for user alice: Disk quota exceeded", "disk full"),
    ("    return code -9", "process killed"),
    ("qsub: Request rejected.  Reason: account nobody is not allowed to submit", "job refused"),
    ("ValueError in the loader: the batch must be multiple of 8", "settings do not fit"),
    (
        "RuntimeError: Using async gradient all reduce requires setting the environment variable "
        "CUDA_DEVICE_MAX_CONNECTIONS to 1",
        "settings do not fit",
    ),
    (
        "/etc/profile.d/modules.sh: line 3: cannot create temp file for here-document: "
        "No space left on device",
        "disk full",
    ),
    ("/etc/profile.d/lang.sh: line 9: /tmp/x: Read-only file system", "file system fault"),
    ("/etc/bashrc: line 12: fork: Cannot allocate memory", "host out of memory"),
    ("pml_ucx.c:273  Error: Failed to create UCP worker: Input/output error", "fabric error"),
    ("Failed to create UCP worker: Cannot allocate memory", "limit of the system"),
    ("RuntimeError: No available kernel. Aborting execution.", "GPU software does not fit"),
    ("Detected 10 mismatched collectives", "collectives differ"),
    ("Mismatched collectives: 2, the first at step 0", "collectives differ"),
    ("train.sh: line 4: 4711 Trace/breakpoint trap (core dumped)", "process ended by a signal"),
    ("Signal handler caught SIGFPE", "process ended by a signal"),
    ("Caught SIGSEGV; the registers are written below", "process ended by a signal"),
    ("Illegal instruction (core dumped)", "process ended by a signal"),
    ("write failed: user exceeds the quota of /home", "disk full"),
    ("mkdir: this exceeds your disk quota", "disk full"),
    ("You have exceeded your group quota", "disk full"),
    ("slurmstepd: error: Step 4711.0 exceeded memory limit (2048 > 1024)", "host out of memory"),
    ("The process exceeds the configured memory limit", "host out of memory"),
    ("python exceeds its cgroup memory limit", "host out of memory"),
)
"""Failures in lines that look harmless."""


@pytest.mark.parametrize(("line", "name"), HIDDEN)
def test_a_failure_in_a_line_like_a_harmless_one_is_named(line, name):
    (failure,) = find_failures([line])
    assert failure.name == name


@pytest.mark.parametrize("command", ["cp: cannot stat 'foo.sif'", "cat: /data/x.idx"])
def test_a_command_that_lacks_its_file_is_a_weak_sign_until_a_step_is_made(command):
    finder = FailureFinder()
    finder.look(f"{command}: No such file or directory", 1)
    assert finder.cause().level is Level.CONSEQUENCE
    finder.note_progress(1)
    assert finder.found() == []


def test_a_command_that_lacks_its_file_hides_no_cause():
    lines = ["cat: /data/x.idx: No such file or directory", OOM]
    assert find_cause(find_failures(lines)).name == kinds.DEVICE_MEMORY.name


def test_a_command_that_failed_by_pdsh_did_so_for_another_reason():
    names = {
        code: [
            failure.name
            for failure in find_failures([f"pdsh@n1: n2: ssh exited with exit code {code}"])
        ]
        for code in (1, 255)
    }
    assert names == {1: [kinds.PEER_DIED.name], 255: [kinds.SSH.name]}


def test_a_launchers_words_that_a_reader_takes_still_name_a_failure(tmp_path):
    path = tmp_path / "err"
    path.write_text(
        "[2023-04-07 13:09:33,220] [ERROR] [launch.py:324:sigkill_handler] ['python3', 'run.py'] "
        "exits with return code = -9\n"
    )
    assert [failure.name for failure in parse_files([path]).failures] == ["process killed"]


RECORD = (
    " iteration {:8}/  250000 | consumed samples: 43408 | elapsed time per iteration (ms): 4247.9 | "
    "learning rate: 2.999E-04 | global batch size: 8 | {}loss scale: {} | grad norm: {} | "
    "number of skipped iterations: {:3} | number of nan iterations:   0 |\n"
)


@pytest.mark.parametrize(
    ("records", "line"),
    [
        (
            [
                ("lm loss: 2.1E+00 | ", "1.0", "0.3", 0),
                ("", "1.0", "nan", 0),
                ("", "1.0", "nan", 0),
            ],
            2,
        ),
        ([("", "1.0", "nan", 0), ("lm loss: 2.1E+00 | ", "1.0", "0.3", 0)], None),
        ([("", "32768.0", "nan", 1)], None),
    ],
)
def test_records_that_end_without_numbers_are_a_failure(tmp_path, records, line):
    path = tmp_path / "log"
    path.write_text("".join(RECORD.format(n, *record) for n, record in enumerate(records, 1)))
    log = parse_files([path])
    assert [(failure.name, failure.line) for failure in log.failures] == (
        [(kinds.NAN.name, line)] if line else []
    )


# Output from programs that start without an error, and the failure that the same words mean in an
# error.
ANNOUNCED = (
    ("FlashAttention2 is not installed", kinds.MODULE),
    ("Please install flash-attn for faster training", kinds.MODULE),
    ("CUDA_VISIBLE_DEVICES not set, taking all 4 GPUs", kinds.VISIBILITY),
    ("no GPUs found on the login node", kinds.VISIBILITY),
    ("setting CUDA_DEVICE_MAX_CONNECTIONS to 1 for overlap", kinds.CONFIGURATION),
    ("batches must divide the number of ranks", kinds.CONFIGURATION),
    ("loss scale 65536, minimum 1, initial power 16", kinds.LOSS_SCALE),
    ("no checkpoint found in /scratch/run", kinds.CHECKPOINT_FIT),
    ("missing keys in the state: []", kinds.CHECKPOINT_FIT),
    ("the dataset cache is missing and is built now", kinds.DATA),
    ("verifying that no weights are truncated", kinds.CHECKPOINT_DAMAGE),
    ("each folder is tested, a folder that is not writable stops the job", kinds.STORAGE),
    ("max locked memory       (kbytes, -l) unlimited", kinds.LIMITS),
    ("raise ulimit -n if shards are many", kinds.LIMITS),
    ("NCCL timed out handling: abort", kinds.TIMEOUT),
    ("process group default: timeout 600 s", kinds.TIMEOUT),
    ("looking for the fabric's interface", kinds.INTERFACE),
    ("VNI 1024 is not shared", kinds.FABRIC),
    ("rate limit: 100 requests per minute", kinds.HUB),
    ("the launcher was not found on login nodes", kinds.LAUNCHER),
    ("inode limit of the folder: 1000000", kinds.DISK),
    ("NVLink error counters: [1, 2]", kinds.NODE),
    ("Found CUDA >= 12.1, FP8 is possible", kinds.GPU_STACK),
)


@pytest.mark.parametrize(("text", "kind"), ANNOUNCED, ids=lambda value: str(value)[:30])
def test_an_announcement_names_a_failure_only_in_an_error(text, kind):
    assert find_failures([text]) == []
    (failure,) = find_failures([f"ERROR: {text}"])
    assert failure.name == kind.name


# Programs that say what they do without a missing part, or that nothing failed.
CONTINUES = (
    "flash_attn is not installed. Using PyTorch native attention implementation.",
    "the indices cache is not saved: Permission denied; they are kept in memory instead",
    "checkpoint in /data/ckpt not found, starting from scratch",
    "Connection to the tracker refused, will retry in 10 s",
    "CUDA out of memory while probing batch size 64, skipping this size",
    "No NaNs detected in the gradients",
    "Suppressing duplicate rank output on 63 ranks",
    "watching for a spot interruption notice of the cloud",
    "you have to specify an account only on shared partitions",
    "quota exceeded: no",
    "GPU 0: uncorrectable ECC errors detected: 0",
    "n1:9:9 [0] tuning.cc:187 NCCL WARN CollNet fails to initialize, ignoring NCCL_ALGO=COLLNET",
    "[n1:9] PMIX ERROR: ERROR in file ../gds/ds12/gds_ds12_lock_pthread.c at line 169",
    "ERROR: ld.so: object 'libx.so' from LD_PRELOAD cannot be preloaded (cannot open shared object file): ignored.",
    "mkdir: cannot create directory '/scratch/ckpt': File exists",
    "bash: line 3: ulimit: max locked memory: cannot modify limit: Operation not permitted",
    "renice: failed to set priority for 123 (process ID): Permission denied",
)


@pytest.mark.parametrize("line", CONTINUES)
def test_a_program_that_goes_on_names_no_failure(line):
    assert find_failures([line]) == []


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory, and no smaller size instead",
        "RuntimeError: CUDA out of memory, skipping was not possible",
    ],
)
def test_an_exception_with_such_words_is_a_failure(line):
    (failure,) = find_failures([line])
    assert failure.name == kinds.DEVICE_MEMORY.name


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Exception: flash_attn is not installed", kinds.MODULE),
        ("Exception: no GPU found on this node", kinds.VISIBILITY),
        ("Exception: Dataset not found: /data/c4", kinds.DATA),
        ("raise ValueError('hidden_size must be divisible by num_heads')", kinds.CONFIGURATION),
        ("  what():  CUDA out of memory, and no smaller size instead", kinds.DEVICE_MEMORY),
        ("wandb: ERROR api_key not configured (no-tty)", kinds.TRACKER),
        ("2024-11-02 10:00:00,123 ERROR train.py:12 flash_attn is not installed", kinds.MODULE),
    ],
)
def test_an_error_in_another_form_is_a_failure(line, kind):
    (failure,) = find_failures([line])
    assert failure.name == kind.name


@pytest.mark.parametrize(
    "line",
    [
        "Saving iter_1000 failed: [Errno 28] No space left on device. Skipping this save.",
        "tar: x: Cannot write: No space left on device; remaining files will be ignored",
        "Writing /lustre/ckpt failed: Disk quota exceeded, falling back to /tmp",
    ],
)
def test_a_full_disk_is_a_failure_although_the_program_goes_on(line):
    (failure,) = find_failures([line])
    assert failure.name == kinds.DISK.name


HUB = kinds.HUB.name
UNREACHED = (
    (["urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>"], HUB),
    (["curl: (6) Could not resolve host: huggingface.co"], HUB),
    (
        ["fatal: unable to access 'https://github.com/x/y/': Could not resolve host: github.com"],
        HUB,
    ),
    (["WARN: Cause: Unable to execute HTTP request: No route to host (Host unreachable)"], HUB),
    (
        [
            '  File "/lib/python3.11/http/client.py", line 1037, in send',
            "OSError: No route to host",
        ],
        HUB,
    ),
    (["ValueError: host not found: Name or service not known"], kinds.RENDEZVOUS.name),
    (["RuntimeError: [c10d] connect to n1:29500: Connection refused"], kinds.RENDEZVOUS.name),
    (["OSError: [Errno 110] Connection timed out: '/gpfs/data/x.idx'"], kinds.STORAGE.name),
    (["OSError: [Errno 121] Remote I/O error: '/lustre/x.bin'"], kinds.STORAGE.name),
)


@pytest.mark.parametrize(("lines", "name"), UNREACHED, ids=lambda value: str(value)[:40])
def test_who_was_not_reached_decides(lines, name):
    assert [failure.name for failure in find_failures(lines)] == [name]


@pytest.mark.parametrize(
    "line",
    [
        "redis.exceptions.ConnectionError: Error 111 connecting to n1:6379. Connection refused.",
        "psycopg2.OperationalError: could not connect to server: Connection refused",
        "pymongo.errors.ServerSelectionTimeoutError: mongo:27017: Connection refused",
    ],
)
def test_another_programs_server_names_no_remedy(line):
    assert find_failures([line]) == []


def test_a_connection_whose_ends_are_unknown_hides_no_cause():
    refused = "ConnectionRefusedError: [Errno 111] Connection refused"
    cause = find_cause(find_failures([refused, OOM]))
    assert cause is not None
    assert cause.name == kinds.DEVICE_MEMORY.name
    (alone,) = find_failures([refused])
    assert (alone.name, alone.also) == (kinds.RENDEZVOUS.name, kinds.HUB.name)


RIGHT_KIND = (
    ("slurmctld: error: auth/munge: munge_encode failed", kinds.CREDENTIAL),
    ("pbsnodes: cannot connect to server mu01, error=15137", kinds.UNREACHED),
    ("AssertionError: CublasLt version 12.1.3.x or higher required for FP8", kinds.GPU_STACK),
    ("RuntimeError: nvrtc: error: invalid value for --gpu-architecture (-arch)", kinds.GPU_STACK),
    ("OSError: [Errno 16] Device or resource busy: '.nfs0000b3f'", kinds.STORAGE),
    ("Error: MKL_THREADING_LAYER=INTEL is incompatible with libgomp-7c85b1e2.so.1", kinds.ABI),
    ("OMP: Error #15: Initializing libiomp5.so, but found libomp.so", kinds.ABI),
    (
        "slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-04-29T23:36:37 DUE TO TASK FAILURE ***",
        kinds.PEER_DIED,
    ),
    ("submitit WARNING - Caught signal SIGHUP on n1: this job is preempted.", kinds.PREEMPTED),
    (
        "job cannot run in partition DEFAULT (idle procs do not meet requirements)",
        kinds.REFUSED_JOB,
    ),
    ("slurmstepd: error: Unable to establish control machine address", kinds.UNREACHED),
    ('slurmstepd: error: Unable to resolve "10.0.0.1": Resolver internal error', kinds.UNREACHED),
    ("BlockingIOError: [Errno 11] Resource temporarily unavailable", kinds.LIMITS),
    ("grpc: Failed to bind to address 0.0.0.0:8476", kinds.PORT),
    (
        "RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to compile PyTorch",
        kinds.BUILD,
    ),
)


@pytest.mark.parametrize(("line", "kind"), RIGHT_KIND, ids=lambda value: str(value)[:40])
def test_a_line_like_another_kinds_is_named_rightly(line, kind):
    (failure,) = find_failures([line])
    assert failure.name == kind.name


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: not enough values to unpack (expected 3, got 2)",
        "ValueError: invalid literal for int() with base 10: 'None'",
        "pbs_mom: Resource temporarily unavailable (11) in pbs_mom, pbs_mom: another mom running",
    ],
)
def test_words_of_another_error_name_no_failure(line):
    assert find_failures([line]) == []


@pytest.mark.parametrize(
    "message",
    [
        "forward() got an unexpected keyword argument 'inference_context'",
        "mask() missing 1 required positional argument: 'dtype'",
    ],
)
def test_a_call_that_does_not_fit_is_the_programs_error(message):
    frames = ["Traceback (most recent call last):", '  File "train.py", line 9, in main', "    f()"]
    (failure,) = find_failures([*frames, f"TypeError: {message}"])
    assert (failure.name, failure.decision) == (PROGRAM.name, NextStep.FIX_FIRST)


# Error stacks of MPI: the first line names the call, a later line the reason (threads as in the
# rules).
MPI_HEAD = "Abort(1) on node 0 (rank 0 in comm 0): Fatal error in {}: Other MPI error, error stack:"
MPI_STACKS = (
    ([MPI_HEAD.format("PMPI_Init")], "launcher failed"),
    (
        [
            MPI_HEAD.format("PMPI_Init"),
            "MPIDI_OFI_mpi_init_hook(599): OFI fi_open domain failed (ofi_init.c:599:Invalid argument)",
        ],
        "fabric error",
    ),
    ([MPI_HEAD.format("PMPI_Iprobe")], "another rank ended first"),
    (
        [
            MPI_HEAD.format("PMPI_Iprobe"),
            "MPIDI_OFI_handle_cq_error(1075): OFI poll failed (Input/output error - PTLTE_NOT_FOUND)",
        ],
        "fabric error",
    ),
    (
        [
            "application called MPI_Abort(MPI_COMM_WORLD, 1) - process 1",
            "=>> PBS: job killed: vmem 3372163072 exceeded limit 2147483648",
        ],
        "host out of memory",
    ),
)


# Errors of MPI calls with wrong arguments: the program causes them, and no connection is lost.
MPI_ERRORS = (
    ("Fatal error in PMPI_Allreduce: Message truncated, error stack:", kinds.COLLECTIVES_DIFFER),
    (
        "MPIDIG_handle_unexp: Message truncated; 8 bytes received but buffer size is 4",
        kinds.COLLECTIVES_DIFFER,
    ),
    (
        "MPIR_Bcast: message sizes do not match across processes in the collective routine: "
        "Received 4 but expected 8",
        kinds.COLLECTIVES_DIFFER,
    ),
    ("[n1:9] *** MPI_ERR_TRUNCATE: message truncated", kinds.COLLECTIVES_DIFFER),
    ("Fatal error in PMPI_Send: Invalid rank, error stack:", PROGRAM),
    ("Fatal error in internal_Recv: Invalid tag, error stack:", PROGRAM),
    ("Fatal error in PMPI_Bcast: Invalid communicator, error stack:", PROGRAM),
    ("Fatal error in PMPI_Isend: Invalid buffer pointer, error stack:", PROGRAM),
    ("Fatal error in PMPI_Gather: Invalid count, error stack:", PROGRAM),
    ("[n1:9] *** MPI_ERR_RANK: invalid rank", PROGRAM),
)


@pytest.mark.parametrize(("line", "kind"), MPI_ERRORS)
def test_a_call_that_mpi_refuses_is_no_lost_connection(line, kind):
    head = f"Abort(1) on node 0 (rank 0 in comm 0): {line}" if "Fatal" in line else line
    cause = find_cause(find_failures([head, *CLOSED[2:]]))
    assert cause is not None
    assert (cause.name, cause.level) == (kind.name, Level.CAUSE)
    assert cause.decision is NextStep.FIX_FIRST


def test_a_cut_off_message_of_a_logger_is_no_error_of_mpi():
    assert find_failures(["logger: Message truncated at 4000 characters"]) == []


# pyxis' message about a container comes first. The reason is below it, in enroot's log.
PYXIS_HEADS = [
    "slurmstepd: error: pyxis: child 52574 failed with error code: 1",
    "slurmstepd: error: pyxis: failed to import docker image",
    "slurmstepd: error: pyxis: printing contents of log file ...",
]
PYXIS_LOGS = (
    (PYXIS_HEADS, "container failed"),
    (
        [
            *PYXIS_HEADS,
            "slurmstepd: error: pyxis:     Write failed because No space left on device",
        ],
        "disk full",
    ),
    (
        [
            *PYXIS_HEADS,
            "slurmstepd: error: pyxis:     enroot-nsenter: failed to create user namespace: No space left on device",
        ],
        "container failed",
    ),
)


@pytest.mark.parametrize(
    ("lines", "name"), (*MPI_STACKS, *PYXIS_LOGS), ids=lambda value: str(value)[:20]
)
def test_a_line_below_a_head_names_the_cause(lines, name):
    cause = find_cause(find_failures(lines))
    assert cause is not None
    assert cause.name == name


def test_a_fatal_line_that_quotes_a_warning_is_no_warning():
    line = "FATAL:   while extracting /a.sif: extract command failed: WARNING: passwd file doesn't exist"
    assert [failure.name for failure in find_failures([line])] == [kinds.CONTAINER.name]


@pytest.mark.parametrize(
    ("line", "decision"),
    [
        ("exitcode  : -8 (pid: 1)", NextStep.FIX_FIRST),
        ("exitcode  : -11 (pid: 1)", NextStep.RETRY_SAME),
    ],
)
def test_a_wrong_instruction_comes_again_and_a_wrong_address_may_not(line, decision):
    (failure,) = find_failures([line])
    assert (failure.name, failure.decision) == (kinds.PROGRAM_ENDED.name, decision)


@pytest.mark.parametrize(
    "message",
    [
        "expected size 4096==1024, stride 1024==1024 at dim=0",
        "{'id': 853, 'status': 'NOT_AVAILABLE', 'requires_grad': True}",
    ],
)
def test_an_assertion_about_a_tensor_is_no_contradiction_of_settings(message):
    line = f"AssertionError: {message}"
    assert find_failures([line]) == []
    traceback = ["Traceback (most recent call last):", '  File "train.py", line 7, in step', line]
    assert [failure.name for failure in find_failures(traceback)] == [PROGRAM.name]


def test_a_hint_to_set_a_level_is_not_the_level_of_its_line():
    line = "init.cc:1247 NCCL WARN Mismatched collective detected. You can use NCCL_DEBUG=INFO"
    (failure,) = find_failures([line])
    assert (failure.name, failure.decision) == (kinds.COLLECTIVES_DIFFER.name, NextStep.FIX_FIRST)


@pytest.mark.parametrize(
    "line",
    [
        "etcd.EtcdKeyNotFound: Key not found : /elsewhere/store",
        'C++ exception with description "HDF5 error: -1',
        "mylib.errors.ShardMissing: could not read 3 of 4",
    ],
)
def test_an_exception_whose_name_does_not_end_in_error_explains_a_lost_peer(line):
    finder = FailureFinder()
    for number, text in enumerate([line, *CLOSED[2:]], start=1):
        finder.look(text, number)
    error = finder.first_error()
    is_named = any(failure.line == 1 for failure in finder.found())
    assert is_named or (error is not None and error.line == 1 and error.explains_effects)


def test_the_cause_is_the_earliest_line_of_the_strongest_level():
    lines = [
        "[rank1]:[E ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout",
        "RuntimeError: [gloo/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:3421",
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "OSError: [Errno 122] Disk quota exceeded: '/scratch/x'",
    ]
    cause = find_cause(find_failures(lines))
    assert (cause.name, cause.line, cause.rank) == (kinds.DEVICE_MEMORY.name, 3, 3)
    assert cause.level is Level.CAUSE
    assert cause.decision is NextStep.FIX_FIRST


OPTIONAL_LIBRARY = (
    "[W library.cpp:64] libfoo.so.7: cannot open shared object file: No such file or directory"
)
LIBRARY_ERROR = "ImportError: libfoo.so.7: cannot open shared object file: No such file"


def test_an_error_comes_before_the_cause_that_an_earlier_warning_names():
    # Programs warn about optional libraries when they start, and fail much later for another
    # reason.
    found = find_failures([OPTIONAL_LIBRARY, SHOWN["port in use"]])
    assert [failure.is_warning for failure in found] == [True, False]
    assert find_cause(found).name == "port in use"


def test_a_warning_is_the_cause_where_no_error_of_its_level_follows():
    found = find_failures([OPTIONAL_LIBRARY, SHOWN["another rank ended first"]])
    assert find_cause(found).line == 1


def test_an_error_with_the_words_of_an_earlier_warning_makes_it_an_error():
    (failure,) = find_failures([OPTIONAL_LIBRARY, LIBRARY_ERROR])
    assert (failure.line, failure.count, failure.is_warning) == (1, 2, False)


def test_a_step_that_slurm_cancels_follows_from_another_tasks_symptom():
    cancelled = "slurmstepd: error: *** STEP 9411285.0 ON n20 CANCELLED AT 2022-05-17T17:58:10 ***"
    container = "slurmstepd: error: pyxis: couldn't start container"
    found = find_failures([cancelled, container])
    assert find_cause(found).line == 2
    assert find_cause(find_failures([cancelled])).line == 1


@pytest.mark.parametrize(
    "line",
    [
        "srun: debug2:  spank_pyxis: container image not found in the cache",
        "[pool.py:12] the workers wait at the rendezvous, timeout=600",
        "W tensorflow/core/platform/dso_loader.cc:64] Could not load dynamic library 'libcudart.so.11.0'",
        "The kernel only supports head dimensions up to 128, so it is not used for this layer",
    ],
)
def test_debug_lines_limits_and_optional_libraries_are_no_failure(line):
    assert find_failures([line]) == []


@pytest.mark.parametrize(
    "line, name",
    [
        ("slurmstepd: error: spank_pyxis.so: init() failed", "container failed"),
        ("enroot-nsenter: failed to create user namespace", "container failed"),
        ("RuntimeError: the rendezvous with n1:29500 timed out", "ranks did not meet"),
        ("ValueError: the kernel only supports head sizes up to 128", "settings do not fit"),
    ],
)
def test_the_same_words_in_an_error_name_a_failure(line, name):
    assert [failure.name for failure in find_failures([line])] == [name]


def test_torchruns_root_cause_names_the_rank_that_counts():
    finder = FailureFinder()
    lines = [
        "[rank2]: AssertionError: micro batch size must divide the global batch",
        "[rank5]: torch.OutOfMemoryError: CUDA out of memory.",
        "Root Cause (first observed failure):",
        "[0]:",
        "  rank      : 5 (local_rank: 1)",
        "  exitcode  : 1 (pid: 4711)",
    ]
    for number, line in enumerate(lines, start=1):
        finder.look(line, number)
    assert finder.cause().name == kinds.DEVICE_MEMORY.name


def test_what_a_training_survived_is_not_its_cause():
    finder = FailureFinder()
    finder.look("torch.OutOfMemoryError: CUDA out of memory.", 1)
    finder.look("RuntimeError: Connection reset by peer", 2)
    finder.note_progress(1)
    (failure,) = finder.found()
    assert failure.overcome
    assert finder.cause() is None
    finder.look("OSError: [Errno 28] No space left on device", 3)
    assert finder.cause().name == "disk full"


@pytest.mark.parametrize(
    ("line", "rank", "host"),
    [
        ("[rank3]: CUDA out of memory", 3, ""),
        ("[1,7]<stdout>:CUDA out of memory", 7, ""),
        ("15: [rank15]: CUDA out of memory", 15, ""),
        ("(Worker pid=42, ip=10.0.0.8) CUDA out of memory", None, "10.0.0.8"),
        ("node7: CUDA out of memory", None, "node7"),
        ("n2:9:9 [1] NCCL WARN Cuda failure 'out of memory'", None, "n2"),
        (
            "n1:9:9 [0] NCCL INFO Channel 00 n2:9:9 [1] NCCL WARN Cuda failure 'out of memory'",
            None,
            "n2",
        ),
    ],
)
def test_rank_and_host_are_taken_from_the_prefix(line, rank, host):
    (failure,) = find_failures([line])
    assert (failure.name, failure.rank, failure.host) == (kinds.DEVICE_MEMORY.name, rank, host)


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.log")), ids=lambda path: path.stem)
def test_healthy_logs_of_other_programs_name_no_failure(path):
    failures = parse_files([path]).failures
    ended = {"megatron-v2": ["time limit"], "megatron-core16": ["NaN in the loss"]}
    assert [failure.name for failure in failures] == ended.get(path.stem, [])


@pytest.mark.parametrize(("lines_between", "is_cache"), [(9, True), (10, False)])
def test_what_explains_an_error_may_stand_ten_lines_above_it(lines_between, is_cache):
    before = ["  File triton/runtime/cache.py, line 9", *["  a frame"] * lines_between]
    (failure,) = find_failures([*before, "OSError: [Errno 116] Stale file handle"])
    assert (failure.name == COMPILE_CACHE.name) == is_cache


def test_words_of_a_compiler_alone_make_no_compile_cache():
    before = [
        "n1:  [WARNING]  using untested triton version (3.6.0)",
        "JIT compiled ops requires ninja",
    ]
    (failure,) = find_failures([*before, "ls: cannot access /mnt/dataset/: Stale file handle"])
    assert failure.name == kinds.STORAGE.name


def test_a_container_that_starts_again_and_again_is_not_why_it_ends():
    lines = ["    State: Waiting", "      Reason: CrashLoopBackOff", "      Reason: OOMKilled"]
    assert find_cause(find_failures(lines)).name == kinds.HOST_MEMORY.name


def test_two_causes_of_one_line_are_told_apart_by_a_check():
    (failure,) = find_failures(["OSError: [Errno 116] Stale file handle"])
    assert failure.name == kinds.STORAGE.name
    assert failure.also == kinds.COMPILE_CACHE.name
    assert failure.check


SEEN_SINCE = (
    (
        "ValueError: Size mismatch between saved torch.Size([257152, 2048]) and current: "
        "torch.Size([131661824])",
        "checkpoint does not fit",
    ),
    (
        "b5192: error: Credential signature check: Credential replayed",
        "munge credential refused",
    ),
    ("error: Invalid job credential from 51525@10.145.200.11", "munge credential refused"),
    ("Speed 2178 samples/sec   Loss nan   LearningRate 0.001   Epoch: 0", "NaN in the loss"),
    ("MisconfigurationException: You requested GPUs: [0]", "no GPU for a rank"),
    (
        "RuntimeError: The current installed version of g++ (4.8.5) is less than the minimum "
        "required version by CUDA 11.7 (6.0.0).",
        "extension build failed",
    ),
)
"""From RLinf#655, openpmix#2031, insightface#2262, singularity#6203 and flash-attention#246."""


@pytest.mark.parametrize(("line", "name"), SEEN_SINCE)
def test_words_of_more_programs_are_known(line, name):
    assert [failure.name for failure in find_failures([line])] == [name]


@pytest.mark.parametrize(
    "line",
    [
        "[2021-09-22T14:11:30.278] error: Munge decode failed: Expired credential",
        "srun: error: Munge decode failed: Rewound credential",
        "slurmstepd: error: Munge encode failed: Failed to access socket",
    ],
)
def test_a_credential_that_a_daemon_refuses_is_tried_again_later(line):
    (failure,) = find_failures([line])
    assert (failure.name, failure.decision) == (
        kinds.CREDENTIAL.name,
        NextStep.RETRY_AFTER_WAIT,
    )


@pytest.mark.parametrize(
    "line",
    [
        "[08:52:43 TP5] Using default MoE config. Config file not found at /opt/E=160,N=192.json",
        "[I1127 17:14:18.968356 Store.cpp:1354] [c10d] uv_loop_close failed with:-16 errn:EBUSY",
        "average loss  nanmean of 3 batches",
    ],
)
def test_words_of_programs_that_go_on_are_no_failure(line):
    assert find_failures([line]) == []


def test_every_kind_has_its_class_in_the_map_of_the_exam():
    classes = json.loads((SAMPLES / "exam_map.json").read_text())
    assert set(classes) == {kind.name for kind in KINDS}


def test_a_log_of_nothing_but_a_failure_names_its_cause(tmp_path):
    path = tmp_path / "err"
    path.write_text(
        "n7: [rank3]: torch.OutOfMemoryError: CUDA out of memory.\nDisk quota exceeded\n"
    )
    result = CliRunner().invoke(logs, [str(path)], standalone_mode=False)
    assert result.exception is None
    assert says(
        result.output,
        SummaryMessage.FAILURE,
        label="CAUSE",
        name=kinds.DEVICE_MEMORY.name,
        count=1,
        line=1,
        place=", rank 3 on n7",
    )
    assert says(
        result.output,
        SummaryMessage.FAILURE,
        label="FAILURE",
        name="disk full",
        count=1,
        line=2,
        place="",
    )
    assert says(result.output, SummaryMessage.DECISION, advice=NextStep.FIX_FIRST.advice)


OWN_TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "    x = 1 / n",
    "ZeroDivisionError: division by zero",
)


@pytest.mark.parametrize("num_lines_between", [10, 60])
@pytest.mark.parametrize(
    "line",
    [
        "nfs: server n7 not responding, still trying",
        "jobs in this partition are preempted by higher-priority jobs",
        "# preempted by higher QOS jobs",
        "GPU memory usage exceeded the limit, offloading to CPU",
        "tun0: device already in use, using tun1",
        "qstat: cannot connect to server pbs (errno=111)",
        "ERROR: The NVIDIA Driver was not detected.  GPU functionality will not be available.",
        "WARNING: Could not find any nv files on this host!",
        "libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes.",
        "UserWarning: CUDA initialization: CUDA driver initialization failed",
        "mce: [Hardware Error]: Machine check events logged",
        "Failed to bind to port 6006, using 6007",
        "DEADLINE_EXCEEDED: wandb: failed to connect to api",
    ],
)
def test_a_line_after_which_programs_go_on_does_not_replace_the_own_error(line, num_lines_between):
    calm = [f"calm line {number} of the start" for number in range(num_lines_between)]
    cause = find_cause(find_failures([line, *calm, *OWN_TRACEBACK]))
    assert cause is not None
    assert cause.name == PROGRAM.name


def test_an_optional_package_that_is_missing_explains_only_an_error_that_soon_follows():
    line = "ERROR: No matching distribution found for flash-attn"
    calm = [f"calm line {number} of the start" for number in range(60)]
    assert find_cause(find_failures([line, *calm])).name == kinds.MODULE.name
    assert find_cause(find_failures([line, *calm[:9], *OWN_TRACEBACK])).name == kinds.MODULE.name
    assert find_cause(find_failures([line, *calm, *OWN_TRACEBACK])).name == PROGRAM.name


def test_a_fork_and_a_lock_that_fail_alike_are_told_apart_by_a_check():
    line = "BlockingIOError: [Errno 11] Resource temporarily unavailable"
    (failure,) = find_failures([line])
    assert failure.name == kinds.LIMITS.name
    assert failure.also == kinds.STORAGE.name
    assert "flock" in failure.check


# openucx/ucx#8746: a benchmark that ran to its end on a node without InfiniBand
UNUSED_DEVICE = (
    "[1668693503.473099] [ampere:1188443:0]  ib_log.c:246  UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate "
    "memory. Please set max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)"
)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("RuntimeError: CUDA error: an illegal memory access was encountered", kinds.KERNEL.name),
        ("srun: error: n1: task 3: Exited with exit code 1", kinds.LIMITS.name),
    ],
)
def test_a_device_that_ucx_cannot_open_gives_way_to_an_error_that_says_more(error, name):
    assert find_cause(find_failures([UNUSED_DEVICE, error])).name == name


LMOD = 'Lmod has detected the following error: The following module(s) are unknown: "cuda/12.4"'


def test_a_module_that_is_not_there_is_listed_before_the_command_that_it_provides():
    module, command = find_failures([LMOD, "slurm_script: line 12: nvcc: command not found"])
    assert (module.name, module.level) == (kinds.MODULE.name, Level.CONSEQUENCE)
    assert find_cause([module, command]).name == kinds.BUILD.name
    assert find_cause(find_failures([LMOD])).name == kinds.MODULE.name


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (
            "thread 'main' panicked at 'called `Result::unwrap()` on an `Err` value: Os { code: 2, "
            'kind: NotFound, message: "No such file or directory" }\', src/main.rs:14:30',
            kinds.FILE.name,
        ),
        (
            "[1,0]<stderr>:One or more tensors were submitted to be reduced, gathered or broadcasted "
            "by subset of ranks and are waiting for remainder of ranks for more than 60 seconds.",
            kinds.TIMEOUT.name,
        ),
        ("EnvironmentNameNotFound: Could not find conda environment: train", kinds.MODULE.name),
    ],
)
def test_words_of_rust_horovod_and_conda_are_known(line, name):
    assert find_cause(find_failures([line])).name == name


FAMILIES = (
    (
        "wandb.errors.CommError: It appears that you do not have permission to access it",
        kinds.TRACKER,
    ),
    (
        "mlflow.exceptions.MlflowException: API request to http://mlflow:5000: Connection refused",
        kinds.TRACKER,
    ),
    ("neptune.exceptions.NeptuneInvalidApiTokenException: ", kinds.TRACKER),
    (
        "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the "
        "GetObject operation: The provided token has expired.",
        kinds.HUB,
    ),
    ("google.auth.exceptions.DefaultCredentialsError: Your default credentials", kinds.HUB),
    (
        "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
        kinds.HUB,
    ),
    (
        "  Warning  FailedMount  27s  kubelet  Unable to attach or mount volumes: unmounted [nfs]",
        kinds.CONTAINER,
    ),
    ("      Reason:       CreateContainerConfigError", kinds.CONTAINER),
    (
        "ValueError: No available node types can fulfill resource request {'GPU': 1.0}",
        kinds.REFUSED_JOB,
    ),
    ("LibMambaUnsatisfiableError: Encountered problems while solving:", kinds.MODULE),
    ("ERROR: Package 'x' requires a different Python: 3.8.10 not in '>=3.10'", kinds.MODULE),
    ("error: can't find Rust compiler", kinds.BUILD),
    ("free(): double free detected in tcache 2", kinds.PROGRAM_ENDED),
    ("*** Error in `python': double free or corruption (!prev): 0x0000 ***", kinds.PROGRAM_ENDED),
    ("nvidia-nvswitch0: SXid (PCI:0000:84:00.0): 20034, Fatal, Link 30 LTSSM", kinds.NODE),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", kinds.NODE),
    ("blk_update_request: I/O error, dev nvme0n1, sector 12345", kinds.STORAGE),
    ("CUDA error: CUDA driver is a stub library", kinds.GPU_STACK),
    (
        "RuntimeError: GET was unable to find an engine to execute this computation",
        kinds.GPU_STACK,
    ),
    ("RuntimeError: The TPU is already in use by process with pid 1234", kinds.VISIBILITY),
    (
        "RuntimeError: Bad StatusOr access: RESOURCE_EXHAUSTED: Error allocating device buffer: "
        "Attempting to allocate 196.00M. That was not possible. There are 134.44M free.",
        kinds.DEVICE_MEMORY,
    ),
    (
        "srun: error: Unable to contact slurm controller (connect failure)",
        kinds.UNREACHED,
    ),
    ("=>> PBS: job killed: ncpus 12.3 exceeded limit 8 (sum)", kinds.LIMITS),
    (
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
        kinds.KILLED,
    ),
    (
        "ValueError: Requested shape: (1, 2) is not compatible with the stored shape: (3, 4).",
        kinds.CHECKPOINT_FIT,
    ),
    ("OSError: image file is truncated (4 bytes not processed)", kinds.DATA),
    (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting",
        kinds.CONFIGURATION,
    ),
)


@pytest.mark.parametrize(("line", "kind"), FAMILIES)
def test_messages_of_services_kernels_and_libraries_are_known(line, kind):
    assert find_cause(find_failures([line])).name == kind.name


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
        "WARNING:jax: Unable to initialize backend 'rocm': NOT_FOUND",
        "wandb: WARNING Serializing object of type str that is 123456 bytes",
        'MountVolume.SetUp succeeded for volume "data"',
        "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
        "Resolved 41 packages, no conflicts",
    ],
)
def test_a_service_or_a_kernel_that_goes_on_names_no_failure(line):
    assert find_failures([line]) == []


def test_munge_without_its_socket_does_not_come_back_by_itself():
    line = 'srun: error: Munge encode failed: Failed to access "/run/m.socket.2": No such file'
    (failure,) = find_failures([line])
    assert (failure.name, failure.decision) == (kinds.CREDENTIAL.name, NextStep.FIX_FIRST)


def test_a_tracker_that_lost_its_server_gives_way_to_an_error_of_the_training():
    lines = ["wandb: ERROR Network error (ConnectTimeout), giving up", *["x"] * 60, OOM]
    assert find_cause(find_failures(lines)).name == kinds.DEVICE_MEMORY.name


BUILT = "Emitting ninja build file /tmp/build.ninja..."
SSH_FAILED = (
    "subprocess.CalledProcessError: Command 'ssh n1 hostname' returned non-zero exit status 255."
)


def test_a_command_that_is_no_compiler_is_no_failed_build():
    assert find_cause(find_failures([BUILT, SSH_FAILED])).name == kinds.SSH.name


FRAME_OF_CACHE = '  File "torch/_inductor/codecache.py", line 120, in write'
STALE = "OSError: [Errno 116] Stale file handle"


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_lines_of_other_ranks_do_not_push_a_ranks_own_lines_away(prefix):
    others = ["[rank7]: a line of another rank"] * 30
    lines = [prefix + FRAME_OF_CACHE, *others, prefix + STALE]
    assert find_cause(find_failures(lines)).name == kinds.COMPILE_CACHE.name


def test_a_line_of_another_rank_does_not_explain_a_ranks_error():
    lines = ["[rank7]: " + FRAME_OF_CACHE, "[rank3]: " + STALE]
    assert find_cause(find_failures(lines)).name == kinds.STORAGE.name


NOT_CONNECTED = "OSError: [Errno 107] Transport endpoint is not connected"


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        ('  File "/usr/lib/python3.10/shutil.py", line 256, in copyfile', kinds.STORAGE),
        ('  File "lightning/cloud_io.py", line 68, in atomic_save', kinds.STORAGE),
        ('  File "multiprocessing/connection.py", line 397, in _send', kinds.PEER_DIED),
    ],
)
def test_the_frames_above_an_error_show_whether_a_file_or_a_peer_was_lost(frame, kind):
    lines = [frame, "    write(data)", NOT_CONNECTED]
    assert find_cause(find_failures(lines)).name == kind.name


def test_a_closed_terminal_is_told_from_a_lost_rank_by_a_check():
    line = "torch/distributed/elastic/agent/server/api.py:719] Received {} death signal, shutting"
    (closed,) = find_failures([line.format(1)])
    (ended,) = find_failures([line.format(15)])
    assert closed.name == ended.name == kinds.CANCELLED.name
    assert closed.check != ended.check


def test_weights_that_pytorch_refuses_are_no_broken_compile_cache():
    lines = [
        '  File "torch/_inductor/codecache.py", line 120, in load',
        "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded",
    ]
    assert find_cause(find_failures(lines)).name == kinds.CHECKPOINT_FIT.name

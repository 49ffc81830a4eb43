"""Failures between lines of other programs and ranks: steps, commands, settings and shutdowns."""

from __future__ import annotations

import pytest
from log_lines import parse_lines

from runbook.results.failures import kinds
from runbook.results.failures.finder import FailureFinder, find_cause, find_failures

TIMER = (
    "[2025-01-02 16:01:37,703] [INFO] [timer.py:264:stop] epoch=0/micro_step={micro}"
    "/global_step={step}, RunningAvgSamplesPerSec=46.50, CurrSamplesPerSec=46.21, "
    "MemAllocated=2.12GB, MaxMemAllocated=9.4GB"
)
TIMED_OUT = (
    "[rank1]:[E ProcessGroupNCCL.cpp:523] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600659 milliseconds"
)
ENDS = (
    "{rank}[W526 18:23:33.339699985 ProcessGroupNCCL.cpp:1566] Warning: WARNING: "
    "destroy_process_group() was not called before program exit, which can leak resources."
)
LOST_STORE = (
    "{rank}[W526 18:23:42.905934821 TCPStore.cpp:125] [c10d] recvValue failed on "
    "SocketImpl(fd=63, addr=[n7]:58276, remote=[n6]:8888): Failed to recv, got 0 bytes."
)
ENDED_WELL = (
    "[2026-03-26 00:35:03,492] [INFO] [launch.py:367:main] Process 1038980 exits successfully."
)


def timer(step):
    return TIMER.format(micro=2 * step, step=step)


def names_of(lines):
    return [failure.name for failure in find_failures(lines)]


def test_a_failure_after_the_last_step_of_deepspeed_is_not_survived():
    log = parse_lines([timer(10), timer(20), TIMED_OUT])
    assert [record.iteration for record in log.records] == [10, 20]
    assert log.cause.name == kinds.TIMEOUT.name
    assert log.cause.line == 3


def test_a_failure_before_the_last_step_of_deepspeed_is_survived():
    log = parse_lines([timer(10), TIMED_OUT, timer(20)])
    assert [record.iteration for record in log.records] == [10, 20]
    assert log.cause is None


def test_a_step_that_a_second_rank_prints_again_is_no_progress():
    finder = FailureFinder()
    finder.note_progress(2)
    finder.look(TIMED_OUT, 3)
    finder.note_progress(1)
    assert finder.cause().name == kinds.TIMEOUT.name
    finder.note_progress(2)
    assert finder.cause() is None


def test_a_rank_that_has_ended_by_itself_may_lose_the_store():
    rank = "[rank1]:"
    assert names_of([ENDS.format(rank=rank), LOST_STORE.format(rank=rank)]) == []


def test_the_end_of_one_rank_does_not_excuse_another_that_lost_the_store():
    lines = [ENDS.format(rank="[rank1]:"), LOST_STORE.format(rank="[rank2]:")]
    assert names_of(lines) == [kinds.PEER_DIED.name]
    assert names_of([LOST_STORE.format(rank="[rank1]:")]) == [kinds.PEER_DIED.name]


def test_the_store_may_be_lost_when_deepspeed_has_ended_well():
    lost = LOST_STORE.format(rank="[rank1]:")
    assert names_of([ENDED_WELL, lost]) == []
    assert names_of([ENDED_WELL, *["a line"] * 10, lost]) == [kinds.PEER_DIED.name]


@pytest.mark.parametrize(
    "line",
    [
        # A command and its options
        "deepspeed train.py --tensor-parallel 2 --checkpoint-num-layers 1 --timeout 9 --fail-fast",
        # Text about what may go wrong, and what to do in that case
        "If you get `CUDA error: invalid device function`, build the extension again.",
        "A text model instantiated as a bare model is not supported and can yield errors.",
        # A package manager without root's rights
        "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)",
    ],
)
def test_a_line_that_reports_no_failure_is_not_named(line):
    assert names_of([line]) == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("job.sh: line 9:  4711 Killed  python train.py --a 1 --b 2 --c 3 --d 4", kinds.KILLED),
        (
            "train.py: error: unrecognized arguments: --keep-last 5 --async-save --to x --fp9",
            kinds.CONFIGURATION,
        ),
        (
            "When the worker started: OSError: [Errno 28] No space left on device",
            kinds.DISK,
        ),
    ],
)
def test_a_failure_in_such_a_line_is_named(line, kind):
    assert names_of([line]) == [kind.name]


IGNORED = (
    "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f7162a08af0>",
    "Traceback (most recent call last):",
    '  File "torch/utils/data/dataloader.py", line 1324, in __del__',
    "    self._shutdown_workers()",
    "AssertionError: can only test a child process",
)


def test_an_exception_that_python_ignores_names_no_failure():
    assert not names_of(IGNORED)
    assert not names_of([f"[rank1]: {line}" for line in IGNORED])


@pytest.mark.parametrize(
    ("ended", "name"),
    [
        ("OSError: [Errno 28] No space left on device", kinds.DISK.name),
        (
            "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.",
            "host out of memory",
        ),
    ],
)
def test_what_an_ignored_exception_says_of_the_machine_still_counts(ended, name):
    assert names_of([*IGNORED[:-1], ended]) == [name]


def test_a_workers_end_at_the_end_of_the_program_names_no_failure():
    ended = "RuntimeError: DataLoader worker (pid 9) is killed by signal: Terminated."
    callback = "Exception ignored in atexit callback: <function _exit_function at 0x7f3a12345670>"
    assert not names_of([callback, *IGNORED[1:-1], ended])


def test_an_ignored_exception_hides_no_error_after_it():
    shape = "RuntimeError: CUDA error: device-side assert triggered"
    assert names_of([*IGNORED, "Traceback (most recent call last):", IGNORED[2], shape]) == [
        kinds.KERNEL.name
    ]


def test_an_ignored_exception_of_a_rank_hides_no_error_of_another_rank():
    heading = f"[rank1]: {IGNORED[0]}"
    assert names_of([heading, "[rank0]: ModuleNotFoundError: No module named 'apex'"]) == [
        kinds.MODULE.name
    ]


def test_an_ignored_exception_may_have_a_chain():
    during = "During handling of the above exception, another exception occurred:"
    assert not names_of([*IGNORED, "", during, "", *IGNORED[1:]])


def test_a_sentence_with_an_ellipsis_is_no_argument_of_megatron():
    line = "invalid usage ... Last NCCL warning(error): 'Bootstrap : no socket interface found'"
    assert parse_lines([line]).cause.name == kinds.INTERFACE.name
    argument = "  error_timeout .................................. 1800 seconds exceeded"
    log = parse_lines([argument])
    assert log.arguments == {"error_timeout": "1800 seconds exceeded"}


@pytest.mark.parametrize(
    ("line", "is_named"),
    [
        (
            "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 1.1392e-305",
            True,
        ),
        ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.0", True),
        ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0", False),
        ("[Rank 0] Overflow detected. Skipping step. Attempted loss scale: 1, reducing to 1", True),
        (
            "[Rank 0] Overflow detected. Skipping step. Attempted loss scale: 2, reducing to 1",
            False,
        ),
        ("[INFO] [fused_optimizer.py:316] Reducing dynamic loss scale from 1 to 1", True),
        ("[INFO] [fused_optimizer.py:316] Reducing dynamic loss scale from 16 to 1", False),
    ],
)
def test_a_loss_scale_is_at_its_floor_if_it_shrinks_no_more(line, is_named):
    assert names_of([line]) == ([kinds.LOSS_SCALE.name] if is_named else [])


def test_training_goes_on_after_a_loss_scale_at_its_floor():
    line = "[INFO] [fused_optimizer.py:316] Reducing dynamic loss scale from 1 to 1"
    assert parse_lines([timer(10), line, timer(20)]).cause is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Failed to modify QP to RTR: Connection timed out", kinds.FABRIC.name),
        ("[PE_0]:_pmi_init:_pmi_alps_sync failed -1", kinds.LAUNCHER.name),
        ("-- Configuring incomplete, errors occurred!", kinds.BUILD.name),
        (
            "Evicted: Pod ephemeral local storage usage exceeds the total limit 5Gi.",
            kinds.DISK.name,
        ),
        (
            "CudaAPIError: [700] Call to cuLaunchKernel results in UNKNOWN_CUDA_ERROR",
            kinds.KERNEL.name,
        ),
        (
            "RuntimeError: params[182] in this process with sizes [256] appears not to match strides "
            "of the same param in process 0.",
            kinds.COLLECTIVES_DIFFER.name,
        ),
    ],
)
def test_a_line_is_read_by_what_failed_and_not_by_its_common_words(line, name):
    assert names_of([line]) == [name]


@pytest.mark.parametrize(
    "line",
    [
        "df: /home/user/.triton/autotune: No such file or directory",
        "IOPub data rate exceeded.",
        "2026-03-26 10:00:00 [E:onnxruntime:Default, provider_bridge_ort.cc:1480] Failed to load "
        "library libonnxruntime_providers_cuda.so with error: libcublasLt.so.11: cannot open shared "
        "object file: No such file or directory",
    ],
)
def test_what_a_program_does_without_names_no_failure(line):
    assert not names_of([line])


def test_a_word_of_failure_shortly_before_a_timeout_does_not_replace_its_remedy():
    log = parse_lines(["the tracker could not find its folder", TIMED_OUT])
    assert log.cause.name == kinds.TIMEOUT.name
    log = parse_lines(["ERROR: the sampler lost its shard list", TIMED_OUT])
    assert log.cause is None
    assert log.first_error.line == 1


OPTIONAL_LIBRARY = "[W a.cpp:1] libfoo.so.7: cannot open shared object file"
OPTIONAL_DRIVER = "tool: Warning: libfoo.so.7: cannot open shared object file: No such file"
NO_DISK = "OSError: [Errno 122] Disk quota exceeded"


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        # A warning explains an error that soon follows, but none that comes much later or earlier.
        ([OPTIONAL_LIBRARY, TIMED_OUT], kinds.ABI.name),
        (
            [OPTIONAL_LIBRARY, *["x"] * 60, TIMED_OUT],
            kinds.TIMEOUT.name,
        ),
        ([TIMED_OUT, OPTIONAL_LIBRARY], kinds.TIMEOUT.name),
        ([OPTIONAL_DRIVER, NO_DISK], kinds.DISK.name),
    ],
)
def test_a_warning_explains_only_an_error_that_soon_follows(lines, name):
    assert parse_lines(lines).cause.name == name


def test_a_warning_alone_is_still_named():
    assert names_of([OPTIONAL_LIBRARY, *["x"] * 100]) == [kinds.ABI.name]


def test_a_warning_far_above_an_error_of_the_program_does_not_hide_it():
    error = [
        "Traceback (most recent call last):",
        '  File "t.py", line 3, in f',
        "    f()",
        "KeyError: 3",
    ]
    assert parse_lines([OPTIONAL_LIBRARY, *["x"] * 60, *error]).cause.name == kinds.OWN_ERROR.name


def test_an_exception_decides_before_the_statement_that_raises_it():
    lines = [
        '  File "decoder.py", line 355, in raw_decode',
        '    raise JSONDecodeError("Expecting value", s, err.value) from None',
        "OSError: [Errno 122] Disk quota exceeded",
    ]
    assert parse_lines(lines).cause.name == kinds.DISK.name
    assert parse_lines(lines[:2]).cause.name == kinds.DATA.name


def test_a_connection_that_only_a_thread_loses_is_no_lost_rank():
    lost = "BrokenPipeError: [Errno 32] Broken pipe"
    thread = ["Exception in thread Statistics:", "Traceback (most recent call last):", lost]
    assert names_of(thread) == []
    assert names_of([lost]) == [kinds.PEER_DIED.name]
    assert names_of([*thread[:2], NO_DISK]) == [kinds.DISK.name]


def test_a_measured_error_is_no_exception():
    frame = ["Traceback (most recent call last):", '  File "t.py", line 3, in f', "    f()"]
    assert names_of([*frame, "Error: 43736"]) == []
    assert names_of([*frame, "Error: 43736 rows are missing"]) == [kinds.OWN_ERROR.name]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (
            "(raylet) node_manager.cc:3064: 12 Workers (tasks / actors) killed due to memory "
            "pressure (OOM), 0 Workers crashed due to other reasons at node",
            kinds.HOST_MEMORY.name,
        ),
        (
            "hl_cuda_device.cc:399] Check failed: cudaSuccess == cudaStat (0 vs. 2) Cuda Error: "
            "out of memory",
            kinds.DEVICE_MEMORY.name,
        ),
        ("Dataset does not exist: /data/openwebtext/subset-01", kinds.DATA.name),
        (
            "srun: error: Unable to create job step: More processors requested than permitted",
            kinds.LAUNCHER.name,
        ),
        ("IndexError: index out of range in self", kinds.KERNEL.name),
        ("message: index out of range in self", None),
        ("WARNING: Skip the batch due to the loss is NaN", None),
        ("0 Workers (tasks / actors) killed due to memory pressure (OOM)", None),
    ],
)
def test_words_of_further_programs_are_read(line, name):
    assert names_of([line]) == ([name] if name else [])


SENTENCE = "Disk quota exceeded"
MARKED_ERROR = "RuntimeError: CUDA error: an illegal memory access was encountered"


@pytest.mark.parametrize(("lines_between", "cause"), [(5, kinds.DISK), (40, kinds.KERNEL)])
def test_a_sentence_without_a_mark_gives_way_to_an_error_far_below(lines_between, cause):
    failures = find_failures([SENTENCE, *["x"] * lines_between, MARKED_ERROR])
    assert [failure.is_marked for failure in failures] == [False, True]
    assert find_cause(failures).name == cause.name


def test_a_sentence_after_the_marked_error_stays_a_candidate():
    failures = find_failures([MARKED_ERROR, *["x"] * 40, SENTENCE])
    assert find_cause(failures).name == kinds.KERNEL.name
    assert len(failures) == 2


def test_a_component_that_open_mpi_leaves_out_is_no_failure():
    line = (
        "[n1:1] mca_base_component_repository_open: unable to open /opt/lib/openmpi/mca_mtl_psm: "
        "libpsm_infinipath.so.1: cannot open shared object file: No such file or directory (ignored)"
    )
    assert find_failures([line]) == []
    assert find_failures([line.removesuffix(" (ignored)")]) != []

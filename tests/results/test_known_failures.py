from __future__ import annotations

import pytest

from runbook.results.log_readers.known_failures import CLASSES, find_failures

SHOWN = {
    "device out of memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "host out of memory": "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=77.0. Some of the step was killed",
    "collective timeout": "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)",
    "no GPU for a rank": "vm:9:9 [1] NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000",
    "wrong network interface": "node1:99:99 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",
    "network failure": "RuntimeError: [gloo/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:3421",
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
    "file missing": "FileNotFoundError: [Errno 2] No such file or directory: 'corpus.idx'",
    "process killed": "  exitcode  : -9 (pid: 4112)",
}


@pytest.mark.parametrize("name", SHOWN)
def test_failure_is_known_by_its_words(name):
    (found,) = find_failures(["all is well", SHOWN[name], "end"])
    assert (found.name, found.line, found.count) == (name, 2, 1)
    assert found.evidence == SHOWN[name].strip()
    assert found.remedy


# Lines of other people's failed jobs, from public issue threads (numbers changed): looked at 2026-11-21.
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
    assert [(one.name, one.count) for one in find_failures(lines)] == [("host out of memory", 2)]


def test_a_build_that_waits_for_a_dead_ones_lock_is_known_by_its_last_words():
    words = [
        "> compiling and loading fused kernels ...",
        "Detected CUDA files, patching ldflags",
        "Emitting ninja build file /opt/megatron/fused_kernels/build/build.ninja...",
        "Building extension module scaled_upper_triang_masked_softmax_cuda...",
        "Allowing ninja to set a default number of workers... (overridable by setting MAX_JOBS=N)",
    ]
    assert [one.name for one in find_failures(words)] == ["fused kernel build hangs"]


def test_every_class_is_shown():
    assert {one.name for one in CLASSES} == set(SHOWN)


def test_first_line_and_count_are_kept_in_order_of_appearance():
    found = find_failures([SHOWN["process killed"], SHOWN["disk full"], SHOWN["process killed"]])
    assert [(one.name, one.line, one.count) for one in found] == [
        ("process killed", 1, 2),
        ("disk full", 2, 1),
    ]


def test_kernel_build_hangs_only_where_it_is_the_last_word():
    words = "> compiling and loading fused kernels ..."
    (found,) = find_failures(["start", words])
    assert (found.name, found.line) == ("fused kernel build hangs", 2)
    assert find_failures([words, "done", "a", "b", "c"]) == []


def test_ordinary_words_are_no_failures():
    assert (
        find_failures(
            [
                "NCCL_SOCKET_IFNAME=eth0 NCCL_DEBUG=INFO",
                "number of nan iterations:   0 |",
                "loss_scale_window .... 1000",
                "memory (MB) | allocated: 12.0",
                "setting timeout to 600 s",
            ]
        )
        == []
    )


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


def test_a_closed_connection_after_another_ranks_own_error_is_no_network_failure():
    assert find_failures([*OWN_ERROR, *CLOSED]) == []
    assert [one.name for one in find_failures([*CLOSED, *CLOSED])] == ["network failure"]


def test_an_error_that_was_caught_hides_no_network_failure():
    caught = "RuntimeError: printed by the program, which goes on"
    assert [one.name for one in find_failures([caught, *CLOSED])] == ["network failure"]


def test_an_error_with_a_name_of_its_own_stays_beside_the_closed_connection():
    memory = [
        OWN_ERROR[0],
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
    ]
    assert [one.name for one in find_failures([*memory, *CLOSED])] == ["device out of memory"]

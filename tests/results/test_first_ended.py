"""What is reported if a log shows only the consequences after another rank ended."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from log_lines import parse_lines

from runbook.cli.logs import logs
from runbook.results.failures import kinds
from runbook.tools.logs.log_summary import summary
from runbook.tools.logs.messages import SummaryMessage

LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.3.0.7]:51322"
SEGFAULT = "srun: error: n4: task 7: Segmentation fault"


@pytest.mark.parametrize(
    ("line", "rank", "host"),
    [
        ("srun: error: nid001277: tasks 1-3: Exited with exit code 1", 1, "nid001277"),
        # InternLM/lmdeploy#1221
        (
            "mpirun noticed that process rank 1 with PID 13580 on node 10.224.96.171 exited on signal 4",
            1,
            "10.224.96.171",
        ),
        # kubeflow/mpi-operator#152
        ("  Remote daemon: [[43015,0],20] on node worker-19", None, "worker-19"),
        ("  Process name: [[44912,1],5]", 5, ""),
        # IntelligentSoftwareSystems/Galois#37
        ("=   PID 4774 RUNNING AT IIPLab-WS1", None, "IIPLab-WS1"),
        # flux-framework/flux-core#7037
        (
            "flux-shell[0]: FATAL: doom: sh: rank 3 on host frontier10490 exited and exit-timeout=30s has expired",
            3,
            "frontier10490",
        ),
        # horovod/horovod#1012
        ("[1,0]<stderr>:Stalled ops:HorovodBroadcast_dense_1_bias_0 [missing ranks: 6]", 6, ""),
        ("/job:jax_worker/replica:0/task:3", 3, ""),
        ("[rank2]: NET/Socket : peer n012<51322> closed connection", None, "n012"),
    ],
)
def test_a_line_names_the_rank_or_node_to_read_next(line, rank, host):
    look_next = parse_lines(["[rank0]: " + LOST.replace("[10.3.0.7]", ""), line]).look_next
    assert (look_next.rank, look_next.host, look_next.line) == (rank, host, 2)


def test_a_task_that_slurm_terminates_did_not_end_first():
    lines = [
        "srun: error: n1: tasks 0-7: Terminated",
        "srun: error: n2: task 8: Exited with exit code 1",
    ]
    assert parse_lines(lines).look_next.rank == 8


def test_a_launcher_knows_better_than_a_rank_who_ended_first():
    lines = [LOST, "srun: error: n2: task 8: Exited with exit code 1"]
    assert parse_lines(lines[:1]).look_next.host == "10.3.0.7"
    assert parse_lines(lines).look_next.host == "n2"


def test_torchruns_root_cause_knows_best():
    lines = [
        "srun: error: n2: task 8: Exited with exit code 1",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
        "Root Cause (first observed failure):",
        "[0]:",
        "  host      : node014",
        "  rank      : 3 (local_rank: 3)",
        "  exitcode  : 1 (pid: 4719)",
    ]
    look_next = parse_lines(lines).look_next
    assert (look_next.rank, look_next.host, look_next.line) == (3, "node014", 6)


def test_a_log_with_the_cause_says_nothing_about_other_ranks():
    log = parse_lines([LOST, "torch.OutOfMemoryError: CUDA out of memory."])
    assert (log.cause.name, log.look_next) == (kinds.DEVICE_MEMORY.name, None)
    assert SummaryMessage.LOOK_ANYWHERE.fill() not in summary(log)


def test_a_rank_that_ended_before_the_last_step_is_forgotten():
    records = [f" iteration {n}/ 100 | lm loss: 3.2E+00 | loss scale: 1.0 |" for n in (1, 2)]
    ended = "srun: error: n2: task 8: Exited with exit code 1"
    log = parse_lines([records[0], ended, records[1], LOST])
    assert log.look_next.host == "10.3.0.7"


def test_the_summary_says_that_the_cause_is_elsewhere():
    named = summary(parse_lines([LOST]))
    assert SummaryMessage.LOOK_NEXT.fill(who="10.3.0.7", line=1, evidence=LOST) in named
    unnamed = summary(parse_lines(["torch.distributed.elastic.errors.ChildFailedError:"]))
    assert SummaryMessage.LOOK_ANYWHERE.fill() in unnamed


def test_the_json_names_the_rank_to_read_next(tmp_path):
    path = tmp_path / "job.log"
    path.write_text("srun: error: n2: task 8: Exited with exit code 1\n")
    page = json.loads(CliRunner().invoke(logs, [str(path), "--json"]).output)
    assert page["cause"]["name"] == kinds.PEER_DIED.name
    assert (page["look_next"]["rank"], page["look_next"]["host"]) == (8, "n2")


@pytest.mark.parametrize(
    "line",
    [
        "thread 'main' panicked at 'called `Option::unwrap()` on a `None` value', trainer.rs:373:34",
        "panic: assignment to entry in nil map",
        "forrtl: severe (24): end-of-file during read, unit 10",
        "F0301 10:00:01.123456 4711 shard.cc:88] Check failed: index < size (9 vs. 8)",
        "  what():  the sampler has no shard",
        "[2024-01-01 10:00:00] FATAL: the tokens of shard 3 are not those of the index",
    ],
)
def test_the_last_words_of_a_program_explain_a_lost_rank_however_late_it_is_noticed(line):
    log = parse_lines([line, *["x"] * 60, LOST])
    assert log.cause is None
    assert (log.first_error.line, log.first_error.is_exception) == (1, True)
    assert [effect.name for effect in log.effects] == [kinds.PEER_DIED.name]


def test_a_marked_error_explains_a_crash_only_if_it_is_near():
    error = "ERROR: the sampler lost its shard list"
    assert parse_lines([error, SEGFAULT]).first_error.line == 1
    assert parse_lines([error, SEGFAULT]).cause is None
    assert parse_lines([error, *["x"] * 60, SEGFAULT]).cause.name == kinds.PROGRAM_ENDED.name
    assert parse_lines(["the sampler failed", SEGFAULT]).cause.name == kinds.PROGRAM_ENDED.name


def test_an_exception_that_another_program_passes_on_as_information_counts():
    # cocktailpeanut/fluxgym#118
    line = "[2024-09-21 18:10:18] [INFO] RuntimeError: the graph has no plan"
    assert parse_lines([line, LOST]).first_error.line == 1
    assert parse_lines(["[2024-09-21 18:10:18] [INFO] no RuntimeError: fine", LOST]).cause


def test_a_build_does_not_hang_below_an_error():
    build = "Loading extension module fused_adam..."
    assert parse_lines([build]).cause.name == kinds.HANGING_BUILD.name
    log = parse_lines(["MPT ERROR: ibdev_multirail is not set", build])
    assert (log.cause, log.first_error.line) == (None, 1)

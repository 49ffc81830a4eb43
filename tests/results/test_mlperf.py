"""MLPerf's `:::MLLOG` lines: facts, evaluations and steps, even if other output surrounds them, or
lines are repeated or cut off.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from log_lines import parse_lines
from suite.messages import assert_about, containing, says

from runbook.cli.logs import logs
from runbook.log_readers.messages import LogMessage
from runbook.log_readers.read import parse_files
from runbook.log_readers.record import Facts
from runbook.tools.logs.messages import ExportMessage, SummaryMessage

SAMPLE = Path(__file__).parents[1] / "samples" / "mlperf.log"
LINES = SAMPLE.read_text().splitlines()
FACTS = Facts("llama31_8b", 64, 8192, 4711, 1790000002006, 1790000008508, "success")
MEAN = ("seconds_is_running_average",)


def line(key, value=None, time=0, **where):
    entry = {"namespace": "", "time_ms": time, "key": key, "value": value, "metadata": where}
    return f":::MLLOG {json.dumps(entry)}"


def head(benchmark="llama2_70b_lora", batch=8):
    return [line("submission_benchmark", benchmark), line("global_batch_size", batch)]


def evaluations(log):
    return [(one.iteration, one.loss) for one in log.validation]


def steps(log):
    return [(one.iteration, one.loss, one.seconds, one.states) for one in log.records]


@pytest.mark.parametrize(
    "text",
    [
        LINES,
        [one.removeprefix("0: ") for one in LINES],
        [f"[{rank}] {one.partition(': ')[2]}" for one in LINES for rank in range(8)],
        [one.replace(" :::MLLOG", " 45%|####      | 9/20 :::MLLOG") for one in LINES],
        ["".join(LINES)],
    ],
    ids=["two ranks", "one rank", "eight ranks", "after a bar", "in one line"],
)
def test_facts_and_each_evaluation_once_whatever_is_printed_around(text):
    log = parse_lines(text)
    assert (log.format, log.facts, evaluations(log)) == ("mlperf", FACTS, [(2, 9.5), (3, 7.25)])
    assert [(one.iteration, one.seconds, one.segment) for one in log.records] == [
        (1, 3.75, 0),
        (2, 0.5, 0),
        (3, 0.53125, 0),
    ]


def test_a_cut_log_says_null_and_invents_no_number():
    text = SAMPLE.read_text()
    stop = SAMPLE.read_text().index('"key": "eval_accuracy", "value": 7.25')
    for end in (
        stop + 33,
        stop + 36,
        stop + 60,
    ):  # within the number, after it, within the metadata
        log = parse_lines(text[:end].splitlines())
        assert evaluations(log) == [(2, 9.5)]
        assert (log.facts.seed, log.facts.run_stop_ms, log.facts.status) == (4711, None, None)
        assert any(says(note, LogMessage.BROKEN_NUMBER) for note in log.notes)
    log = parse_lines(text[text.index('"run_start"') :].splitlines())
    assert log.facts == Facts(run_stop_ms=FACTS.run_stop_ms, status="success")
    assert evaluations(log) == [
        (None, 9.5),
        (None, 7.25),
    ]  # without the batch size, no position is a step


@pytest.mark.parametrize(
    ("unit", "where"),
    [
        (8 * 2048, lambda at: {"epoch_num": at}),
        (8, lambda at: {"samples_count": at}),
        (8, lambda at: {"step": at}),
    ],
)
def test_positions_in_tokens_or_samples_become_steps(unit, where):
    text = [*head("gpt3"), line("max_sequence_length", 2048)]
    text += [
        line("tracked_stats", {"train_step_timing in s": 1.5}, step=unit),
        line("eval_accuracy", 2.7, **where(unit * 12)),
    ]
    assert [one.iteration for one in parse_lines(text).records] == [1]
    assert evaluations(parse_lines(text)) == [(12, 2.7)]


def test_the_mean_of_a_block_stands_where_its_evaluation_does():
    """MLPerf rounds record the first sample in a block, the last sample or the block size. With
    single
    steps, no mean is needed.
    """
    for stats, where in [
        ({"throughput": 4.0}, {"step": 1536}),
        ({"throughput": 4.0, "train_step_time": 2.0}, {"step": 0}),
        ({"train_step_time": 2.0}, {"samples_count": 384}),
    ]:
        text = [
            *head(),
            line("train_loss ", 1.5, samples_count=1440, lr=0.0005),
            line("tracked_stats", stats, **where),
        ]
        log = parse_lines([*text, line("eval_accuracy", 0.94, samples_count=1536)])
        assert steps(log) == [(180, 1.5, None, ()), (192, None, 2.0, MEAN)]
        assert log.records[0].learning_rate == 0.0005


def test_two_runs_in_a_file_keep_both_evaluations_and_the_last_runs_facts():
    run = [*head(), line("run_start", time=1), line("train_loss", 2.5, samples_count=80)]
    run += [
        line("eval_accuracy", 0.94, samples_count=80),
        line("run_stop", time=9, status="aborted"),
    ]
    later = [one.replace('"time_ms": ', '"time_ms": 5') for one in run]
    log = parse_lines([*run, *later])  # equal numbers, but from another run
    assert (log.facts.run_start_ms, log.facts.run_stop_ms, log.segments) == (51, 59, 2)
    assert [one.line for one in log.validation] == [5, 11]


def test_accuracy_of_another_benchmark_is_no_loss():
    log = parse_lines([*head("bert"), line("eval_accuracy", 0.72, epoch_num=80)])
    note = LogMessage.ACCURACY_IS_NO_LOSS.fill(benchmark="bert")
    assert (log.validation, log.notes) == ([], [LogMessage.COUNTED.fill(count=1, note=note)])


def test_another_program_keeps_its_steps_and_gains_facts_and_evaluations():
    nemo = (SAMPLE.parent / "nemo-2.log").read_text().splitlines()
    mixed = [*LINES[:10], *nemo[:2], nemo[2] + LINES[16], *nemo[3:], *LINES[17:]]
    alone = parse_lines(nemo)
    log = parse_lines(mixed)
    assert (log.format, steps(log)) == ("nemo-2", steps(alone))
    assert (log.facts, evaluations(log)) == (FACTS, [(2, 9.5), (3, 7.25)])
    assert alone.facts is None


def test_command_accepts_evaluations_without_steps(tmp_path):
    path = tmp_path / "result_0.txt"
    path.write_text("\n".join([*head("gpt3"), line("eval_accuracy", 2.7, epoch_num=1)]))
    done = CliRunner().invoke(logs, [str(path), "--json"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["records"], [one["loss"] for one in told["validation"]]) == (
        0,
        [],
        [2.7],
    )
    assert told["facts"]["benchmark"] == "gpt3" and told["facts"]["status"] is None
    said = CliRunner().invoke(logs, [str(SAMPLE)])
    assert said.exit_code == 0
    facts = containing("benchmark llama31_8b", "global_batch_size 64")
    assert says(said.stdout, SummaryMessage.MLPERF, facts=facts)
    path.write_text(line("power_reading", 5))
    assert CliRunner().invoke(logs, [str(path)]).exit_code == 1


def test_several_files_of_one_run_count_each_evaluation_once(tmp_path):
    other = tmp_path / "rank1.txt"
    other.write_text(SAMPLE.read_text())
    log = parse_files([SAMPLE, other])
    assert (len(log.validation), len(log.records), log.facts) == (2, 3, FACTS)


@pytest.fixture
def run(tmp_path, make, plan, spec):
    """Return a function that writes a six-step run, planned for any number of steps.

    The fourth step was repeated after a restart.
    """

    def write(planned: int) -> Path:
        folder = tmp_path / "mine"
        folder.mkdir()
        (folder / "run.yaml").write_text("run: mine\n")
        log = replace(
            spec.log, metrics="metrics.jsonl", validation="validation.jsonl", events="events.jsonl"
        )
        length = spec.model.shape.sequence_length
        batch = spec.batch.global_
        duration = replace(spec.duration, iterations=planned, samples=planned * batch)
        phase = replace(spec, log=log, duration=duration)
        (folder / "plan.json").write_text(
            json.dumps(replace(plan, phases={"04-training": phase}).as_dict())
        )
        steps = [make.step(n, consumed_tokens=n * batch * length) for n in (1, 2, 3, 4)]
        again = {"segment": 1, "loss": 9.5}
        steps += [
            make.step(n, consumed_tokens=n * batch * length, **again) | {"time": 1100.0 + 2 * n}
            for n in (4, 5, 6)
        ]
        evaluations = [
            {
                "iteration": n,
                "loss": loss,
                "perplexity": 1.0,
                "samples": 8,
                "seconds": 0.5,
                "time": time,
            }
            for n, loss, time in ((3, 8.25, 1006.6), (6, 8.0, 1112.6))
        ]
        events = [
            {"event": "started", "phase": spec.phase, "time": time} for time in (995.0, 1105.0)
        ]
        for name, lines in (("metrics", steps), ("validation", evaluations), ("events", events)):
            (folder / f"{name}.jsonl").write_text(
                "".join(json.dumps(line) + "\n" for line in lines)
            )
        done = CliRunner().invoke(
            logs, ["mine", "--runs", str(tmp_path), "--to", f"mllog:{tmp_path / 'out.log'}"]
        )
        assert done.exit_code == 0, done.output
        assert done.output == f"6 steps and 2 evaluations -> mllog: {tmp_path / 'out.log'}\n"
        return tmp_path / "out.log"

    return write


def test_a_run_in_mlperfs_words_is_read_back(run, spec):
    path = run(planned=6)
    log = parse_files([path])
    assert [(one.iteration, one.seconds) for one in log.records] == [(n, 2.0) for n in range(1, 7)]
    assert log.records[3].loss == 9.5
    assert [(one.iteration, one.loss) for one in log.validation] == [(3, 8.25), (6, 8.0)]
    facts = log.facts
    assert (facts.benchmark, facts.seed, facts.status) == ("gpt3", spec.seed, "success")
    assert (facts.run_start_ms, facts.run_stop_ms) == (1_000_000, 1_112_600)
    assert (facts.global_batch_size, facts.sequence_length) == (
        spec.batch.global_,
        spec.model.shape.sequence_length,
    )
    times = [
        json.loads(line.removeprefix(":::MLLOG "))["time_ms"]
        for line in path.read_text().splitlines()
    ]
    assert times == sorted(times) and times[0] == 995_000


def test_the_official_checker_refuses_it_only_for_what_no_small_run_can_meet(run, tmp_path):
    words = [
        "-m",
        "mlperf_logging.compliance_checker",
        "--ruleset",
        "4.1.0",
        "--log_output",
        str(tmp_path / "said"),
    ]
    checked = subprocess.run(
        [sys.executable, *words, str(run(planned=6))], capture_output=True, text=True
    )
    said = checked.stdout + checked.stderr
    refused = set(
        re.findall(r"(?:CHECK for|Failed checks for|Required AT_LEAST_ONE|expected) '?(\w+)", said)
    )
    thresholds = {
        "max_sequence_length",
        "opt_base_learning_rate",
        "init_checkpoint_step",
        "eval_accuracy",
    }
    assert refused == thresholds, said
    assert "open_gpt3.yaml" in said


def test_a_training_short_of_its_plan_is_aborted_in_mlperfs_words(run):
    assert parse_files([run(planned=7)]).facts.status == "aborted"


def test_a_file_cannot_be_told_in_mlperfs_words(tmp_path):
    done = CliRunner().invoke(logs, [str(SAMPLE), "--to", f"mllog:{tmp_path / 'x'}"])
    assert done.exit_code == 1
    assert_about(done.exception, ExportMessage.NOT_A_TARGET, target=f"mllog:{tmp_path / 'x'}")

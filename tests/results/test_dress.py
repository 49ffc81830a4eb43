"""Lines as they appear in real logs, pages and mails. Formats are real, numbers are invented."""

from __future__ import annotations

import pytest
from log_lines import parse_lines

MEGATRON = (
    " iteration      122/  250000 | consumed samples:       124928 | elapsed time per iteration (ms): 86545.2 | "
    "learning rate: 9.150E-06 | global batch size:  1024 | lm loss: 2.504220E+00 | loss scale: 1.0 | grad norm: 0.231 "
    "| number of skipped iterations:   0 | number of nan iterations:   0 |"
)
NEMO = (
    "Training epoch 0, iteration {n}/99 | lr: 5.6e-06 | global_batch_size: 32 | global_step: {n} | reduced_train_loss: "
    "2.{n} | train_step_timing in s: {seconds}"
)


def one(text):
    (record,) = parse_lines(text.split("\n")).records
    return record


@pytest.mark.parametrize(
    "dress",
    [
        "[lrdn0001:3]:{}",
        "node-a/0 {}",
        "[my-job-1] [2025-12-17 04:54:49,774] [INFO] {}",
        "> {}",
        "    {}",
        "{}\r",
        "2024-05-01 10:00:00.123 | INFO     | train:log:100 - {}",
        "2024-05-01T10:00:00.123456789Z stdout F {}",
        "<pre><code>{}<br></code></pre>",
        '{{"log":"{}\\n","stream":"stdout","time":"2024-01-01T00:00:00Z"}}',
        "log := `{}`",
        "  4%|#     | 4/100 [00:04<01:12,  1.32it/s]{}",
        "\ufeff{}",
    ],
)
def test_dress_changes_nothing(dress):
    record = one(dress.format(MEGATRON))
    assert (record.iteration, record.loss, record.seconds, record.grad_norm) == (
        122,
        2.50422,
        86.5452,
        0.231,
    )
    assert (record.skipped, record.nan, record.states) == (0, 0, ())


def test_ranks_with_clocks_of_their_own_count_once():
    ranks = [
        f"[default{rank}]:" + NEMO.format(n=n, seconds=1 + rank / 10)
        for n in (10, 11, 12)
        for rank in (0, 3, 7)
    ]
    log = parse_lines(ranks)
    assert [(record.iteration, record.seconds, record.segment) for record in log.records] == [
        (10, 1.0, 0),
        (11, 1.0, 0),
        (12, 1.0, 0),
    ]


def test_ranks_printed_one_after_the_other_count_once():
    blocks = [
        f"[rank{rank}]:[titan] step: {n:2}  loss:  {9 - n / 10:.4f}  memory: 1GiB(1%)  tps: {1000 + rank:,}  mfu: 1%"
        for rank in range(4)
        for n in range(1, 21)
    ]
    log = parse_lines(blocks)
    assert [record.iteration for record in log.records] == list(range(1, 21))
    assert log.segments == 1


def test_restart_with_other_numbers_is_a_segment():
    lines = [NEMO.format(n=n, seconds=1) for n in (10, 11, 12)] + [
        NEMO.format(n=n, seconds=1).replace("loss: 2", "loss: 3") for n in (11, 12)
    ]
    assert [record.segment for record in parse_lines(lines).records] == [0, 0, 0, 1, 1]


def test_rates_of_nemo_2():
    record = one(
        NEMO.format(n=5, seconds=2)
        + " | tokens_per_sec_per_gpu: 6.859e+03 | TFLOPS_per_GPU: 1.249e+03"
    )
    assert (record.tokens_per_second, record.tflops, record.tflops_convention) == (
        6859.0,
        1249.0,
        "nemo",
    )
    assert record.states == ("tokens_per_second_per_device",)


def test_flops_by_their_unit():
    line = (
        " samples/sec: 7.799 | iteration {}/ 10 | elapsed time per iteration (ms): 4103.1 | learning rate: 2.1E-06 | "
        "approx flops per GPU: {} | lm_loss: 1.1E+01 | number of skipped iterations:   0 | number of nan iterations:   "
        "0 |"
    )
    log = parse_lines(
        line.format(n, flops) for n, flops in enumerate(["941.2GFLOPS", "112.9TFLOPS", "1.5PFLOPS"])
    )
    assert [record.tflops for record in log.records] == [0.9412, 112.9, 1500.0]
    assert [record.samples_per_second for record in log.records] == [7.799] * 3
    assert log.format == "gpt-neox"


def test_forks_of_megatron_that_add_rates():
    line = MEGATRON.replace(
        "| learning", "| consumed tokens: 1.258B | tokens/sec/gpu: 8000.5 | learning"
    )
    record = one(line.replace("| lm loss", "| throughput per GPU (TFLOP/s/GPU): 412.3 | lm loss"))
    assert (record.tokens_per_second, record.tflops) == (8000.5, 412.3)
    assert record.states == ("tokens_per_second_per_device",)
    total = one(MEGATRON.replace("| learning", "| tokens per second: 9000.5 | learning"))
    assert (total.tokens_per_second, total.states) == (9000.5, ())


def test_milliseconds_of_wordplay():
    line = "[INFO][trainer:837] - step={} loss=3.{} dt={} dtf=4.6 sps={} mtps=1.2 mfu=-100 train_loss=4.3 val_loss={}"
    log = parse_lines(
        [
            line.format(5, 5, "108.1093", "73.9992", 4.2905),
            line.format(10, 4, "85.2848", "93.8033", 4.2905),
            line.format(15, 3, "0.182s", "5.49", 4.1),
            line.format(20, 3, "108.1", "3.3", 4.1),
            "iter=20 eval: train_loss=3.9 val_loss=4.05",
        ]
    )
    assert [record.seconds for record in log.records] == [0.1081093, 0.0852848, 0.182, None]
    assert log.records[-1].states == ("unknown_unit_of_time",)
    assert [(one.iteration, one.loss) for one in log.validation] == [
        (5, 4.2905),
        (15, 4.1),
        (20, 4.05),
    ]


def test_wrapped_timer_of_deepspeed():
    text = (
        "[2023-09-14 23:57:11,583] [INFO] [timer.py:260:stop]\nepoch=0/micro_step=20/global_step=20,\n"
        "RunningAvgSamplesPerSec=140.5,\nCurrSamplesPerSec=134.25,\nMemAllocated=1.91GB"
    )
    record = one(text)
    assert (record.iteration, record.samples_per_second) == (20, 134.25)


def test_no_number_is_made_of_a_word():
    log = parse_lines(
        [
            "Epoch 4 | iter 961 step 961 | loss train: 1.062, val: 1.057 | iter time: 529.46 ms (step)"
        ]
    )
    assert log.records == []


def test_nanochat_and_what_it_grew_from():
    text = (
        "step     0 | loss: 10.955029 | lr 8.3916e-07 | norm: 15.3672 | dt: 10210.02ms | tok/sec: 51349.09\n"
        "step 00042 (14%) | loss: 4.123456 | lrm: 0.0412 | dt: 118.32ms | tok/sec: 4,429.1 | mfu: 41.22 | epoch: 1"
    )
    first, later = parse_lines(text.split("\n")).records
    assert (first.loss, first.seconds, first.learning_rate, first.grad_norm) == (
        10.955029,
        10.21002,
        8.3916e-07,
        15.3672,
    )
    assert (later.iteration, later.loss, later.seconds, later.tokens_per_second) == (
        42,
        4.123456,
        0.11832,
        4429.1,
    )


def test_one_overflow_told_twice_is_one_skipped_step():
    told = (
        "[2024-09-23 10:15:33,253] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step."
        " Attempted loss scale: 32768, reducing to 16384"
    )
    before = MEGATRON.replace("122/", "121/").replace("2.50", "2.60")
    _, record = parse_lines(
        [before, told, told.replace("loss_scaler", "stage_1_and_2"), MEGATRON]
    ).records
    assert (record.skipped, record.states) == (1, ("skipped_by_deepspeed", "stale_grad_norm"))


@pytest.mark.parametrize(
    "unit",
    [
        " iteration 5/ 9 | ",
        "Epoch 0: reduced_train_loss= [",
        "step: 1 loss: ",
        "validation loss at iteration 3 | lm ",
    ],
)
def test_a_long_line_of_the_same_words_comes_to_an_end(unit):
    log = parse_lines([unit * (1_000_000 // len(unit))])
    assert len(log.records) <= 1


def test_bars_without_any_end_of_line_between_them_are_each_read():
    bar = (
        "Epoch 0: :  {n}%|#   | {n}/100 [00:1{n}<10:00, reduced_train_loss={n}.5, global_step={n}.000, "
        "train_step_timing in s=1.50]"
    )
    log = parse_lines(["".join(bar.format(n=n) for n in range(1, 9))])
    assert [(record.iteration, record.loss) for record in log.records] == [
        (n, n + 0.5) for n in range(1, 9)
    ]


def test_colours_written_out_in_json_are_colours():
    line = (
        '{"log":"[rank0]:[titan] - root - INFO - \\u001b[31mstep: 4  \\u001b[32mloss: 7.62595  \\u001b[38;2;180;60;0m'
        'grad_norm: 26.6250  \\u001b[34mtps: 10,050  \\u001b[35mmfu: 13.99%\\u001b[39m\\n","stream":"stdout"}'
    )
    record = one(line)
    assert (record.iteration, record.loss, record.grad_norm, record.tokens_per_second) == (
        4,
        7.62595,
        26.625,
        10050.0,
    )

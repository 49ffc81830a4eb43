from __future__ import annotations

from pathlib import Path

import pytest
from log_lines import parse_lines

from runbook.log_readers.messages import LogMessage
from runbook.log_readers.read import parse_files

SAMPLES = Path(__file__).parents[1] / "samples"
PER_DEVICE = "tokens_per_second_per_device"
MEAN = "seconds_is_running_average"

# file: (format, [(iteration, loss, seconds, segment, states)])
EXPECTED = {
    "megatron-v1.log": (
        "megatron-deepspeed",
        [
            (1, 12.7512, 151.2044, 0, ()),
            (2, 12.7001, 145.311, 0, ()),
            (3, 12.60315, 144.8712, 0, ()),
        ],
    ),
    "megatron-v2.log": (
        "megatron-lm",
        [
            (10, None, 5.8379, 0, ("missing_loss", "all_skipped")),
            (20, 12.4941, 2.7111, 0, ()),
            (30, 32.82511, 2.7673, 0, ()),
            (40, 10.01, 2.744, 0, ()),
        ],
    ),
    "megatron-core.log": (
        "megatron-lm",
        [
            (71, 1.828812, 5.3616, 0, ()),
            (72, 1.820413, 5.4707, 0, ()),
            (73, 1.798853, 5.8299, 0, ()),
            (73, 1.798853, 5.801, 1, ()),
            (74, 1.79, 5.811, 1, ()),
        ],
    ),
    "megatron-core16.log": (
        "megatron-lm",
        [
            (1, 10.88, 1.1476, 0, ()),
            (2, None, 1.1, 0, ("nan_grad_norm", "nan_iterations", "missing_loss")),
        ],
    ),
    "bigscience.log": (
        "megatron-deepspeed",
        [
            (42780, 2.118073, 105.16, 0, ()),
            (42781, 2.117946, 105.17, 0, ()),
            (42782, 2.111646, 106.25, 0, ("cut_line",)),
            (42782, 2.111651, 99.87, 1, ("cut_line",)),
        ],
    ),
    "bigscience-overflow.log": (
        "megatron-deepspeed",
        [
            (17060, 2.665395, 573.1258, 0, ("wrong_samples_per_second",)),
            (17061, 2.667221, 423.0423, 0, ("wrong_samples_per_second",)),
            (
                17062,
                4.374369,
                422.832,
                0,
                ("skipped_by_deepspeed", "stale_grad_norm", "wrong_samples_per_second"),
            ),
            (17063, 4.365922, 424.3778, 0, ("skipped_by_deepspeed", "stale_grad_norm")),
            (17064, 4.391585, 421.7294, 0, ()),
        ],
    ),
    "megatron-deepspeed.log": (
        "megatron-deepspeed",
        [
            (1, 11.00512, 76.0153, 0, ()),
            (2, 11.00421, 75.254, 0, (PER_DEVICE,)),
        ],
    ),
    "alcf-2024.log": (
        "megatron-deepspeed",
        [
            (1, 11.133288, 108.8932, 0, (PER_DEVICE, "two_tflops_formulas")),
            (2, 11.13, 108.0, 0, (PER_DEVICE, "two_tflops_formulas")),
        ],
    ),
    "alcf-2025.log": (
        "megatron-deepspeed",
        [
            (136004, 12.316631, 3.4153, 0, (PER_DEVICE,)),
            (136005, 11.967999, 3.4202, 0, (PER_DEVICE,)),
        ],
    ),
    "deepspeed-pipe.log": (
        "deepspeed",
        [(10, 10.7902, 1.471, 0, ()), (20, 10.2001, 1.45, 0, ("overflow",))],
    ),
    "deepspeed-engine.log": (
        "deepspeed",
        [
            (17, None, None, 0, ("samples_per_second_of_timer",)),
            (18, None, None, 0, ("samples_per_second_of_timer",)),
            (40, None, None, 0, ("samples_per_second_is_running_average",)),
        ],
    ),
    "nemo-1.log": (
        "nemo-1",
        [
            (1998, 2.61, 1.91, 0, ()),
            (1999, 2.6, 1.9, 0, ()),
            (2000, None, 41.36, 0, ("nan_loss", MEAN)),
            (31000, 2.51, 0.625, 0, ("rounded_iteration", MEAN)),
            (31000, 2.52, 0.625, 0, ("rounded_iteration", MEAN)),
            (31000, 2.52, 0.625, 0, ("rounded_iteration", MEAN)),
        ],
    ),
    "nemo-2.log": (
        "nemo-2",
        [
            (8, 11.05, 47.12, 0, ()),
            (9, 11.04, 46.9, 0, ()),
            (10, 11.03, 46.84, 0, ()),
            (11, 11.01, 46.81, 0, ()),
            (12, 11.0, 46.8, 0, ()),
        ],
    ),
    "bridge.log": (
        "megatron-bridge",
        [(10, 10.88812, 12.7815, 0, ()), (20, 10.58812, 12.5102, 0, ())],
    ),
    "torchtitan.log": (
        "torchtitan",
        [(4, 7.62595, None, 0, (PER_DEVICE,)), (5, 7.07633, None, 0, (PER_DEVICE,))],
    ),
    "gpt-neox.log": ("gpt-neox", [(34, 11.18775, 4.1031, 0, ()), (35, 11.17775, 4.05, 0, ())]),
    "nanogpt.log": (
        "nanogpt",
        [
            (0, 10.9886, 9.37181, 0, ("seconds_include_evaluation",)),
            (1, 10.511, 0.56194, 0, ()),
            (10, 9.4112, 0.56315, 0, ()),
        ],
    ),
    "llama2c.log": (
        "nanogpt",
        [
            (490, 5.7643, 8.06078, 0, ()),
            (500, 6.0191, 870.06753, 0, ("seconds_include_evaluation",)),
            (510, 5.2491, 8.17564, 0, ()),
        ],
    ),
    "nanochat.log": ("nanochat", [(10, 9.612345, 0.4122, 0, ()), (11, 9.512345, 0.4119, 0, ())]),
    "llmc.log": (
        "llm.c",
        [
            (1, 11.010012, 3.05636, 0, ()),
            (2, 10.960712, 2.95636, 0, ()),
            (3, 10.8506, 1.452121, 0, ()),
        ],
    ),
    "llmc-main.log": ("llm.c", [(0, 11.0191, None, 0, ()), (1, 10.9698, None, 0, ())]),
    "modded.log": (
        "modded-nanogpt",
        [
            (1, 16.0026, None, 0, ("seconds_not_measured",)),
            (11, 7.0149, 0.17812, 0, (MEAN,)),
            (12, None, 0.17833, 0, ("missing_loss", MEAN)),
        ],
    ),
    "ezpz.log": (
        "ezpz",
        [
            (10, 1.188146, None, 0, ()),
            (11, 1.111572, 0.744444, 0, ()),
            (20, 0.708216, 0.004312, 0, ()),
            (180, 0.078, None, 0, ()),
        ],
    ),
    "primus.log": (
        "primus",
        [(2, 11.89162, 6.0466, 0, (PER_DEVICE,)), (3, 11.79162, 6.0201, 0, (PER_DEVICE,))],
    ),
    "mlperf.log": (
        "mlperf",
        [(1, 12.5, 3.75, 0, ()), (2, 12.25, 0.5, 0, ()), (3, 8.25, 0.53125, 0, ())],
    ),
    "runbook-metrics.jsonl": (
        "runbook",
        [
            (1, 10.83, 0.5, 0, ()),
            (2, None, 0.5, 0, ("missing_loss", "all_skipped")),
            (3, 10.7, 0.4, 1, ()),
        ],
    ),
}


def parse(name):
    return parse_files([SAMPLES / name])


def records(text):
    return parse_lines(text.splitlines()).records


@pytest.mark.parametrize("name", EXPECTED)
def test_sample_gives_its_records(name):
    log = parse(name)
    found = [(one.iteration, one.loss, one.seconds, one.segment, one.states) for one in log.records]
    assert (log.format, found) == EXPECTED[name]


def test_every_sample_is_expected_and_explained():
    named = {path.name for path in SAMPLES.iterdir() if path.is_file()} - {
        "README.md",
        "exam_map.json",
    }
    assert named == set(EXPECTED)
    explained = (SAMPLES / "README.md").read_text()
    assert [name for name in named if name not in explained] == []


@pytest.mark.parametrize(
    ("name", "validation"),
    [
        ("megatron-v2.log", [(30, 11.04, 62317.66, "validation")]),
        ("megatron-core.log", [(74, 1.81, 6.110447, "validation"), (74, 1.82, 6.171858, "test")]),
        ("alcf-2025.log", [(136005, 2.69788, 14.848219, "validation")]),
        ("nemo-1.log", [(1999, 2.8, None, "validation"), (31000, 2.51, None, "validation")]),
        ("nemo-2.log", [(10, 11.02, None, "validation")]),
        ("torchtitan.log", [(5, 7.1, None, "validation")]),
        ("gpt-neox.log", [(35, 11.16, 70263.59, "validation")]),
        ("mlperf.log", [(2, 9.5, None, "validation"), (3, 7.25, None, "validation")]),
        ("nanogpt.log", [(0, 10.9874, None, "validation")]),
        ("llmc.log", [(None, 11.010212, None, "validation")]),
        ("llmc-main.log", [(0, 11.0192, None, "validation"), (250, 6.51, None, "validation")]),
        ("modded.log", [(0, 16.0128, None, "validation"), (5100, 3.2751, None, "validation")]),
    ],
)
def test_evaluations(name, validation):
    assert [
        (one.iteration, one.loss, one.perplexity, one.name) for one in parse(name).validation
    ] == validation


def test_rates_carry_their_convention():
    found = {
        name: (log.records[0].tflops, log.records[0].tflops_convention)
        for name in EXPECTED
        if (log := parse(name)).records[0].tflops is not None
    }
    assert found == {
        "megatron-core.log": (243.6, "megatron-full"),
        "megatron-core16.log": (101.5, "megatron-causal"),
        "bigscience.log": (149.1, "megatron-deepspeed"),
        "bigscience-overflow.log": (23.64, "megatron-deepspeed"),
        "megatron-deepspeed.log": (147.61, "megatron-deepspeed-f3"),
        "alcf-2024.log": (49.66, "megatron-full"),
        "alcf-2025.log": (53.66, "megatron-deepspeed"),
        "bridge.log": (528.1, "megatron-bridge"),
        "torchtitan.log": (1314.71, "torchtitan"),
        "gpt-neox.log": (112.9, "gpt-neox"),
        "primus.log": (455.4, "megatron-full-or-causal"),
        "runbook-metrics.jsonl": (0.04, "megatron-full"),
    }
    without_arguments = (SAMPLES / "megatron-core16.log").read_text().splitlines()[2:]
    assert (
        parse_lines(without_arguments).records[0].tflops_convention == "megatron-full-or-causal"
    )  # the lines could also be from our trainer
    later = parse("megatron-core.log").records[-1]
    assert (
        later.tflops_convention == "megatron-full-or-causal"
    )  # since 2025-04, the line no longer shows which formula was used


def test_other_fields():
    record = parse("megatron-deepspeed.log").records[1]
    assert (record.learning_rate, record.loss_scale, record.samples_per_second) == (
        2.4e-7,
        2048.0,
        27.215,
    )
    assert (record.tokens_per_second, record.skipped, record.nan, record.line) == (3483.5, 0, 0, 8)
    assert [one.grad_norm for one in parse("megatron-core.log").records] == [
        1.3,
        1.305,
        1.305,
        1.539,
        1.54,
    ]
    assert [one.learning_rate for one in parse("nemo-2.log").records][:2] == [3.922e-06, 4.112e-06]
    assert parse("nemo-2.log").records[1].tflops_convention == "nemo"
    assert [one.tokens_per_second for one in parse("torchtitan.log").records] == [10050.0, 10007.0]
    assert [one.learning_rate for one in parse("ezpz.log").records] == [None, None, None, 5.9e-05]


def test_values_that_are_no_measurement_are_null():
    first, *_, stale, fresh = parse("bigscience-overflow.log").records
    assert first.samples_per_second is None  # 0.004 is printed, but 2048 samples in 573 s are 3.57
    assert (stale.grad_norm, stale.skipped, stale.samples_per_second) == (None, 1, 4.826)
    assert fresh.grad_norm == 879946.622
    line = " iteration 1/ 9 | elapsed time per iteration (ms): 9.0 | loss scale: -1.0 | grad norm: 0.000 | lm loss: NaN |"
    (record,) = records(line)
    assert (record.loss_scale, record.grad_norm, record.loss) == (None, None, None)
    assert record.states == ("nan_loss", "no_loss_scale", "no_grad_norm")


def test_skipped_intervals_have_no_throughput():
    text = "".join(
        f" iteration {n}/ 9 | elapsed time per iteration (ms): 300000.0 | learning rate: 0.000E+00 |"
        f" global batch size: 8 | loss scale: 1.0 | number of skipped iterations: 1 | number of nan iterations: 0 |"
        f" samples per second: 0.027 | TFLOPs: 1.20 |\n"
        for n in (1, 2, 3)
    )
    for record in records(text):
        assert record.states == ("missing_loss", "all_skipped")
        assert (record.samples_per_second, record.tflops, record.tflops_convention) == (
            None,
            None,
            None,
        )


def test_partly_skipped_interval_without_loss_is_not_all_skipped():
    line = (
        " iteration {}/ 90 | elapsed time per iteration (ms): 9.0 | loss scale: 1.0 |"
        " number of skipped iterations: {} | number of nan iterations: 0 |\n"
    )
    assert records(line.format(10, 10) + line.format(20, 3))[1].states == ("missing_loss",)


def test_time_without_unit_is_no_time():
    (record,) = records(" iteration 5/ 9 | elapsed time per iteration: 412.5 | lm loss: 2.0E+00 |")
    assert (record.seconds, record.states) == (None, ("unknown_unit_of_time",))


@pytest.mark.parametrize(
    "prefix", ["3: ", "[default7]:", "vm-07-05: ", "(pretraining, pid=4112) ", "\x1b[36m", "  > "]
)
def test_prefixes_change_nothing(prefix):
    plain = (SAMPLES / "megatron-core16.log").read_text()
    dressed = "".join(f"{prefix}{line}\n" for line in plain.splitlines())
    want = [(one.iteration, one.loss, one.seconds) for one in records(plain)]
    assert [(one.iteration, one.loss, one.seconds) for one in records(dressed)] == want


@pytest.mark.parametrize("width", [61, 80, 97, 120, 133, 200])
def test_records_wrapped_at_any_width_are_whole(width):
    want = parse("megatron-core16.log").records
    wrapped = []
    for line in (SAMPLES / "megatron-core16.log").read_text().splitlines():
        wrapped += [line[at : at + width] for at in range(0, len(line), width)]
    got = parse_lines(wrapped).records
    plain = [(one.iteration, one.loss, one.seconds, one.tflops, one.nan) for one in want]
    assert [(one.iteration, one.loss, one.seconds, one.tflops, one.nan) for one in got] == plain


def test_cut_record_gives_no_half_number():
    whole = (SAMPLES / "megatron-core16.log").read_text().splitlines()[2]
    for end in range(whole.index("| elapsed"), len(whole)):
        for record in parse_lines(
            [whole, whole[:end].replace("iteration        1/", "iteration        2/")]
        ).records[1:]:
            assert record.loss in (10.88, None)
            assert record.learning_rate in (6e-06, None)
            assert record.grad_norm in (3.5, None)
            assert record.seconds in (1.1476, None)


@pytest.mark.parametrize("width", [70, 100, 130])
def test_wrapped_bar_is_whole(width):
    line = (
        "Epoch 0: :   0%|          | 1999/603000 [1:03:15<317:01:00, v_num=, reduced_train_loss=2.610, "
        "global_step=1998.0, consumed_samples=1.28e+6, train_step_timing in s=1.910]"
    )
    (record,) = parse_lines([line[at : at + width] for at in range(0, len(line), width)]).records
    assert (record.iteration, record.loss, record.seconds) == (1998, 2.61, 1.91)


def test_speed_of_bridge_inside_the_line_is_read():
    line = " iteration 5/ 50 | elapsed time per iteration (ms): 2000.0 | 300.0 MODEL_TFLOP/s/GPU"
    (record,) = records(line)
    assert (record.seconds, record.tflops, record.tflops_convention) == (
        2.0,
        300.0,
        "megatron-bridge",
    )


def test_glued_output_does_not_reach_a_field():
    text = parse("megatron-v2.log").records[-1]
    assert (text.nan, text.skipped) == (0, 0)


def test_two_records_glued_together_are_two():
    line = (SAMPLES / "primus.log").read_text().splitlines()
    assert [one.iteration for one in parse_lines([line[0] + line[1]]).records] == [2, 3]


def test_unit_comes_from_the_key_and_not_from_its_place():
    line = " iteration 7/ 9 | lm loss: 2.5E+00 | elapsed time per iteration (s): 3.25 | samples per second: 2.0 |"
    (record,) = records(line)
    assert (record.loss, record.seconds, record.samples_per_second) == (2.5, 3.25, 2.0)


def test_text_that_is_no_log_gives_no_records():
    code = [
        "log_string += ' elapsed time per iteration (ms): {:.1f} |'.format(x)",
        "step: {:2}  loss: {:8.5f}  tps: {:,}",
        "print(f'iter {iter_num}: loss {lossf:.4f}, time {dt*1000:.2f}ms')",
        "iter=0  dt=...  loss=...",
        "at step 5 the loss was 3.1, which is fine",
    ]
    log = parse_lines(code)
    assert log.records == []
    assert log.format == "unknown"
    assert log.unread_lines == len(code)
    missed = LogMessage.NOT_A_RECORD.fill()
    assert log.notes == [LogMessage.MISSED_LINES.fill(count=2, kind=missed, first_line=2)]

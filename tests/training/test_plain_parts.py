"""The parts that do not need torch: learning rate, sample order, FLOPs, ranks, log line, doctests."""

import datetime
import doctest
import importlib
import math
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from suite.messages import refuses

from runbook.plan_file.errors import RefusedError
from runbook.plan_file.identity import differences
from runbook.plan_file.learning_rate import LearningRate
from runbook.plan_file.messages import PlanFileMessage
from runbook.plan_file.schema import parse
from runbook.training import training_log
from runbook.training.messages import TrainingMessage
from runbook.training.ranks import ranks_from
from runbook.training.sample_order import DataParallelShare
from runbook.training.training_log import StepRecord

from . import specs


@pytest.mark.parametrize(
    "name",
    [
        *("training.sample_order", "training.ranks"),
        *("plan_file.identity", "plan_file.deepspeed", "plan_file.schema"),
    ],
)
def test_examples_in_docstrings_are_true(name):
    assert doctest.testmod(importlib.import_module(f"runbook.{name}")).failed == 0


def test_the_start_of_the_program_imports_no_torch():
    code = "import runbook.training.__main__, sys; print(sorted({'torch', 'megatron', 'numpy'} & set(sys.modules)))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\n"


class TestLearningRate:
    plan = LearningRate(
        peak=6e-4, minimum=6e-5, schedule="cosine", warmup_samples=12, decay_samples=48
    )

    def rates(self, **changes):
        plan = LearningRate(**{**vars(self.plan), **changes})
        return [plan.at(step * 4 + 4) for step in range(14)]

    def test_the_third_step_of_a_warm_up_of_three_has_the_peak(self):
        assert self.rates()[:3] == pytest.approx([2e-4, 4e-4, 6e-4])

    def test_the_last_step_and_all_later_ones_have_the_minimum(self):
        assert self.rates()[11:] == pytest.approx([6e-5] * 3)

    def test_cosine_is_half_way_in_the_middle(self):
        plan = LearningRate(
            peak=1.0, minimum=0.0, schedule="cosine", warmup_samples=0, decay_samples=100
        )
        assert plan.at(25) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
        assert plan.at(50) == pytest.approx(0.5)

    def test_constant_stays_after_the_decay_length(self):
        assert self.rates(schedule="constant")[2:] == [6e-4] * 12

    def test_without_warm_up_the_first_step_learns(self):
        assert 5e-4 < self.rates(warmup_samples=0)[0] < 6e-4

    def test_a_warm_up_as_long_as_the_decay_ends_at_the_minimum(self):
        assert self.rates(warmup_samples=48)[11:13] == pytest.approx([6e-4, 6e-5])


class TestOrder:
    @pytest.mark.parametrize(("micro", "copies"), [(1, 1), (2, 1), (1, 2), (4, 2), (1, 8)])
    def test_a_step_takes_the_same_samples_for_any_number_of_copies(self, micro, copies):
        steps = 8 // (micro * copies)
        taken = [
            index
            for copy in range(copies)
            for part in DataParallelShare(micro, copies, copy).indices(24, steps)
            for index in part
        ]
        assert sorted(taken) == list(range(24, 32))


def test_operations_of_gpt3_are_those_of_the_published_formula():
    content = specs.spec(
        model={
            "layers": 96,
            "hidden": 12288,
            "heads": 96,
            "kv_heads": 96,
            "ffn_hidden": 49152,
            "sequence_length": 2048,
            "positions": 2048,
            "padded_vocabulary": 51200,
        }
    )
    shape = parse(content, None).model.shape
    layers = 96
    h = 12288
    s = 2048
    v = 51200
    expected = 72 * layers * h * h * (1 + s / (6 * h) + v / (12 * layers * h))
    assert shape.flops_per_sequence() / s == pytest.approx(expected, rel=1e-12)


class TestRanks:
    @pytest.mark.parametrize(
        ("nodes", "first"),
        [
            ("nid[001234-001235]", "nid001234"),
            ("rack[0-1]node[01-04]", "rack0node01"),
            ("gpu[03,07]-ib,n1", "gpu03-ib"),
        ],
    )
    def test_srun_names_the_meeting_point_itself(self, nodes, first):
        ranks = ranks_from(
            {
                "SLURM_PROCID": "9",
                "SLURM_STEP_NUM_TASKS": "16",
                "SLURM_LOCALID": "1",
                "SLURM_JOB_ID": "4711",
                "SLURM_STEP_NODELIST": nodes,
                "SLURM_NTASKS": "16",
            }
        )
        assert (ranks.rank, ranks.local_rank, ranks.launcher) == (9, 1, "srun")
        assert (ranks.master_address, ranks.master_port) == (first, 24711)
        assert not ranks.is_last

    def test_mpiexec_needs_to_be_told_where(self):
        environment = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_LOCAL_RANK": "1"}
        with refuses(
            RefusedError,
            TrainingMessage.NO_MEETING_PLACE,
            launcher="mpiexec",
            world_size=2,
            address="",
            port="",
        ):
            ranks_from(environment)
        ranks = ranks_from({**environment, "MASTER_ADDR": "x1", "MASTER_PORT": "29500"})
        assert ranks.is_last and ranks.master_port == 29500

    def test_open_mpi_is_known(self):
        names = {
            "OMPI_COMM_WORLD_RANK": "0",
            "OMPI_COMM_WORLD_SIZE": "1",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        }
        assert ranks_from(names).launcher == "mpiexec"

    def test_nobody_started_it(self):
        assert ranks_from({"HOME": "/"}).world_size == 1

    def test_nonsense_is_refused(self):
        with refuses(RefusedError, TrainingMessage.NOT_A_RANK, name="RANK", environment="x"):
            ranks_from({"RANK": "x", "WORLD_SIZE": "2"})


class TestLogLine:
    averaged = StepRecord(
        iteration=12,
        consumed_samples=96,
        seconds=0.5,
        learning_rate=6e-4,
        global_batch=8,
        loss=10.5,
        loss_scale=1.0,
        grad_norm=0.24,
        skipped=1,
        nan=0,
        data_wait_seconds=0.0,
        memory_bytes=0,
        communication_seconds=None,
        parts={},
        numbers={},
    )
    now = datetime.datetime(2026, 11, 21, 2, 3, 4, 567)

    def test_it_is_megatron_lms(self):
        assert training_log.training_line(self.averaged, 100, 123.45, self.now) == (
            " [2026-11-21 02:03:04.000567] iteration       12/     100 | consumed samples:           96 |"
            " elapsed time per iteration (ms): 500.0 | throughput per GPU (TFLOP/s/GPU): 123.5 |"
            " learning rate: 6.000000E-04 | global batch size:     8 | lm loss: 1.050000E+01 | loss scale: 1.0 |"
            " grad norm: 0.240 | number of skipped iterations:   1 | number of nan iterations:   0 |"
        )

    def test_an_interval_without_a_loss_has_no_loss_in_its_line(self):
        skipped = replace(self.averaged, loss=None, grad_norm=math.nan)
        line = training_log.training_line(skipped, 100, 123.45, self.now)
        assert "lm loss" not in line and "grad norm" not in line
        assert re.search(r"global batch size: {5}8 \| loss scale: 1\.0 \| number of skipped", line)

    def test_validation_has_the_perplexity(self):
        rule, line, again = training_log.validation_lines(1000, 2.5).split("\n")
        assert line == (
            " validation loss at iteration 1000 | lm loss value: 2.500000E+00 | lm loss PPL: 1.218249E+01 | "
        )
        assert rule == again == "-" * (len(line) + 1)
        assert training_log.perplexity(30.0) == math.exp(20)


def differs(key, value, planned):
    """Return the text about a value that differs between the checkpoint and the plan."""
    return PlanFileMessage.VALUE_DIFFERS.fill(key=key, value=value, whose="plan", planned=planned)


@pytest.mark.parametrize(
    ("warmup", "is_another"), [(200, False), (202, False), (100, False), (192, True)]
)
def test_a_warm_up_may_follow_the_length_and_nothing_else(warmup, is_another):
    """A warm-up that stays a tenth of the decay or keeps its samples is not called a difference."""
    before = {"learning_rate.warmup_samples": 100, "learning_rate.decay_samples": 1000}
    now = {**before, "learning_rate.warmup_samples": warmup, "learning_rate.decay_samples": 2000}
    found, harmless = differences(before, now)
    warmup_differs = differs("learning_rate.warmup_samples", 100, warmup)
    assert found == ([warmup_differs] if is_another else [])
    assert differs("learning_rate.decay_samples", 1000, 2000) in harmless

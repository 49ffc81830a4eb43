"""Proof that the single-node step times in vTrain come from a simulator, not from training runs.

VIA-Research/vTrain f8dda8473a48, data/ground_truth_single.csv; benchmarks/a100_step_times.csv has
726 of its rows. vTrain's data folder calls the times measured. Measured times could not have
differences that are equal to the nanosecond, as these tests show.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import pytest

from benchmarks import predict_cross_validation as benchmark
from runbook.params.project import project_root

ROOT = project_root(Path(__file__))
TABLE = ROOT / "benchmarks" / benchmark.STEP_TIMES
NANOSECOND = 1e-6
"""One nanosecond in milliseconds, the unit of the table."""
VOCABULARY = 50257
"""Vocabulary size in the model that vTrain simulates. It is not padded."""
POSITIONS = 1024

# Nanoseconds for an all-reduce by MiB and number of replicas: trace/a100/AR_GPU*_LUT in vTrain,
# last time column. 0 if no row needs the value.
ALL_REDUCE_NANOSECONDS = {
    123: {2: 737_400, 4: 0, 8: 0},
    147: {2: 866_300, 4: 0, 8: 0},
    171: {2: 996_800, 4: 0, 8: 0},
    195: {2: 1_140_200, 4: 0, 8: 0},
    244: {2: 1_394_200, 4: 1_842_300, 8: 0},
    292: {2: 1_668_000, 4: 2_185_700, 8: 0},
    341: {2: 1_919_200, 4: 2_525_400, 8: 0},
    389: {2: 2_192_200, 4: 2_899_900, 8: 0},
    391: {2: 2_200_200, 4: 0, 8: 0},
    487: {2: 2_710_100, 4: 3_549_300, 8: 3_987_900},
    583: {2: 3_210_700, 4: 4_257_500, 8: 4_752_200},
    679: {2: 3_717_100, 4: 4_887_800, 8: 5_488_400},
    775: {2: 4_206_900, 4: 5_591_900, 8: 6_345_600},
    777: {2: 4_210_500, 4: 5_593_600, 8: 0},
    969: {2: 5_187_600, 4: 6_917_800, 8: 0},
}
LONGEST_LISTED = 1024
"""MiB in the largest all-reduce that the vTrain table lists."""
BUS_BANDWIDTH = {2: 196.89, 4: 221.37, 8: 229.25}
"""Speed of that all-reduce in GiB/s, by number of replicas. For larger ones, vTrain divides the
size by this, without the factor 2 (n - 1) / n for a ring.
"""


@dataclass(frozen=True)
class Configuration:
    """Everything that a simulated row states except its time."""

    hidden: int
    layers: int
    tensor: int
    pipeline: int
    micro_batch: int
    data: int
    num_microbatches: int

    @property
    def gradient_mebibytes(self) -> int:
        """Return the size of the 16-bit gradients on a rank in whole MiB, as vTrain computes it."""
        width = self.hidden // self.tensor
        norms_and_biases = 6 * self.hidden + 7 * width
        layer = norms_and_biases + 12 * self.hidden * width
        words = VOCABULARY // self.tensor * self.hidden
        parameters = 2 * words + POSITIONS * self.hidden + self.layers * layer
        return round(2 * parameters / 2**20)


@pytest.fixture(scope="module")
def milliseconds() -> dict[Configuration, float]:
    rows = [row for row in benchmark.read(TABLE) if row.is_simulated]
    steps = {}
    for row in rows:
        setup = row.setup
        assert setup is not None
        layout = setup.layout
        configuration = Configuration(
            hidden=setup.shape.hidden,
            layers=setup.shape.layers,
            tensor=layout.tensor,
            pipeline=layout.pipeline,
            micro_batch=setup.micro_batch,
            data=layout.data,
            num_microbatches=setup.num_microbatches,
        )
        steps[configuration] = float(_cells(row)["iteration_ms"])
    assert len(steps) == len(rows) == 726
    return steps


def _cells(row: benchmark.Known) -> dict[str, str]:
    """Return the cells in the table line for a row."""
    lines = TABLE.read_text().splitlines()
    line = int(row.name.split(":")[1])
    return next(csv.DictReader([lines[0], lines[line - 1]]))


def all_reduce(mebibytes: int, replicas: int) -> float:
    """Return an all-reduce's milliseconds from the vTrain table, or a formula if it is larger."""
    if replicas == 1:
        return 0.0
    if mebibytes > LONGEST_LISTED:
        return 1e3 * mebibytes / (BUS_BANDWIDTH[replicas] * 1024)
    return 1e-6 * ALL_REDUCE_NANOSECONDS[mebibytes][replicas]


def test_steps_of_the_same_layout_are_linear_in_the_number_of_micro_batches(
    milliseconds: dict[Configuration, float],
) -> None:
    lines = defaultdict(list)
    for configuration, step in milliseconds.items():
        same = replace(configuration, num_microbatches=0)
        lines[same].append((configuration.num_microbatches, step))

    long_lines = [sorted(points) for points in lines.values() if len(points) >= 3]
    assert len(long_lines) == 62
    for (first, start), (second, next_step), *others in long_lines:
        slope = (next_step - start) / (second - first)
        for num_microbatches, step in others:
            on_line = start + slope * (num_microbatches - first)
            assert step == pytest.approx(on_line, rel=0, abs=NANOSECOND)


def test_replicas_add_exactly_what_the_simulators_table_of_all_reduces_states(
    milliseconds: dict[Configuration, float],
) -> None:
    """The simulator's formula for long messages is wrong: eight replicas take less time than two."""
    groups = defaultdict(list)
    for configuration in milliseconds:
        if configuration.pipeline == 1:
            groups[replace(configuration, data=0)].append(configuration)

    pairs = [pair for group in groups.values() for pair in combinations(group, 2)]
    assert len(pairs) == 160
    for first, second in pairs:
        mebibytes = first.gradient_mebibytes
        added = all_reduce(mebibytes, second.data) - all_reduce(mebibytes, first.data)
        difference = milliseconds[second] - milliseconds[first]
        assert difference == pytest.approx(added, rel=0, abs=1.01 * NANOSECOND)

    assert all_reduce(1549, 8) < all_reduce(1549, 2)


def test_twice_the_tokens_often_take_less_time_because_each_layer_was_profiled_once(
    milliseconds: dict[Configuration, float],
) -> None:
    pairs = 0
    faster = 0
    for configuration, step in milliseconds.items():
        double = replace(configuration, micro_batch=2 * configuration.micro_batch)
        if double in milliseconds:
            pairs += 1
            faster += milliseconds[double] < step

    assert (faster, pairs) == (40, 224)
    profiled = {(row.hidden, row.tensor, row.micro_batch) for row in milliseconds}
    assert len(profiled) == 32


def test_step_times_on_many_nodes_differ_when_repeated_so_they_were_measured() -> None:
    rows = [row for row in benchmark.read(TABLE) if not row.is_simulated]
    assert len(rows) == 52
    repeated = [pair for pair in combinations(rows, 2) if pair[0].setup == pair[1].setup]
    ((first, second),) = repeated
    assert 0.0001 < abs(first.answer / second.answer - 1) < 0.001

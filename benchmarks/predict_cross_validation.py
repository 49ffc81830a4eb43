"""Errors in predicted speeds, by source, by accelerator family, and with sources held out.

    python -m benchmarks.predict_cross_validation [TABLE.csv ...] [--fit] [--rows]

Without --fit, the coefficients in use are evaluated, and the errors on left-out rows that the last
--fit wrote are shown.

With --fit, the coefficients are fitted again and printed. The fit uses damped least squares on
logarithms: a stated width pulls each coefficient to its start, and a source with n rows has a
weight of sqrt(n). One source has hundreds of step times. The fit uses only `THINNED` rows from it,
and therefore finishes in five minutes. The fit is judged by leaving out one source after the other,
and then one device family after the other: each row is predicted with coefficients that were
fitted without its source, or without its family. These errors are written to left_out_errors.csv,
from which `intervals` computes the intervals for `plan --predict`. A row without a prediction
counts as a 100 % miss.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy

from runbook.params.catalogues import read_models
from runbook.params.project import project_root
from runbook.planning.cost import flops
from runbook.planning.cost.iteration import (
    DEFAULT,
    Coefficients,
    StepSetup,
    iteration,
    known,
)
from runbook.tools.speed.intervals import NODE_COUNTS, half_width, node_count, uncertainty
from runbook.tools.speed.predict import setup_of
from runbook.tools.speed.published_rows import read_row

TABLES = (
    "runbook/results/published/published_results.csv",
    "benchmarks/more_published_results.csv",
    "benchmarks/mlperf_results.csv",
    "benchmarks/configured_results.csv",
    "benchmarks/a100_step_times.csv",
    "benchmarks/blind_results.csv",
)
NEVER_FITTED = "benchmarks/mlperf_left_out.csv"
"""Llama 3.1 8B in MLPerf training 5.1, with one micro-batch per step. Nobody looked at it before
the model's form was fixed, and it is never fitted.
"""
BLIND = "benchmarks/blind_results.csv"
"""Whole tables from eleven public projects, and MLPerf results from eleven submitters. They were
written down on 2026-11-28, before they were predicted for the first time, and have been in the fit
since 2026-11-29. docs/measurements/predicted-speed.md has the errors of that first prediction.
"""
SECOND_BLIND = "benchmarks/second_blind_results.csv"
"""Whole tables from six more projects, written down on 2026-11-29 before they were predicted. They
are used in no fit.
"""
THIRD_BLIND = "benchmarks/third_blind_results.csv"
"""Tables from seven more projects, and near-twins of rows in the first blind set. They are used in
no fit."""
FOURTH_BLIND = "benchmarks/fourth_blind_results.csv"
"""Tables from ten more projects, for devices and programs that the fit mostly does not know. They
are used in no fit.
"""
FIFTH_BLIND = "benchmarks/fifth_blind_results.csv"
"""Vendors' tables, MLPerf, model reports and threads, drawn as one looks for a speed to compare with.
They are used in no fit, and the intervals do not learn from them.
"""
LEFT_OUT_ERRORS = Path(__file__).parent / "left_out_errors.csv"
"""The errors that --fit measures on rows whose source or family is left out of the fit."""
BLIND_ERRORS = Path(__file__).parent / "blind_errors.csv"
"""Errors on the second to fourth blind sets, measured before anyone looked for what caused the
errors on the third and fourth.

Near-twins are left out. From these errors, the intervals learn how far off predictions are for
programs and machines that the fit never saw.
"""
STEP_TIMES = "a100_step_times.csv"
"""Step times from VIA-Research/vTrain (f8dda8473a48).

The rows on one node are output from the vTrain simulator, although the data folder calls them
measured: tests/planning/test_simulated_steps.py proves it. They are sums of kernel times that were
profiled once on an A100. The fit keeps them, because leaving them out does not reduce the errors on
other left-out sources (docs/measurements/predicted-speed.md).
"""
COVERAGE = 0.8
"""The fraction of rows that an interval should contain."""
NEW_SOURCE = 1.0
"""How much to widen an interval for a new source: 1 is sure to contain 80 % of the rows from a new
source (arXiv:1809.07441), and 0 contains fewer. docs/plan.md says how many of the left-out rows the
interval contains.
"""
SHRINKAGE = 3.0
"""Number of sources a family needs for them to count as much as all families together."""
SOURCE_WEIGHT = 1.0
"""A row is weighted by n^-SOURCE_WEIGHT if its source has n rows, so that all sources have the same
weight. The next row to predict comes from a new source, and errors on rows from one source are
alike.
"""
LEAST_ROWS = 9
LEAST_SOURCES = 3
"""A family with fewer rows or sources in a node-count class gets the interval for all rows in that
class.
"""
SLOPES_HOLD = 4
"""How many rounds in a fit reuse the same slopes, because computing slopes takes most of the time.
"""
THINNED = 70
"""Number of rows to use in a fit from a source with more than twice as many, because rows from one
source are nearly alike.
"""
WIDTH = {
    "sustained": 0.15,
    "links": 0.15,
    "network": 0.2,
    "attention": 0.15,
    "attention_hopper": 0.15,
    "attention_second": 0.15,
    "attention_vendor": 0.15,
    "attention_vendor_first": 0.15,
    "scores": 0.15,
    "unfused_operator_microseconds": 0.15,
    "launch_power": 0.15,
    "blackwell_first": 0.1,
    "other_program": 0.1,
    "other": 0.4,
}
"""How far a coefficient may move from its start: the standard deviation of its logarithm."""
NOISE = 0.10
"""Relative difference between two measurements of the same training (741 and 866 tokens/s are published for one)."""
START = Coefficients(
    sustained={
        "V100": 0.70,
        "A100": 0.76,
        "H100": 0.62,
        "H100-500W": 0.55,
        "Blackwell": 0.66,
        "Blackwell Ultra": 0.72,
        "MI250X": 0.45,
        "MI300X": 0.35,
        "MI350": 0.5,
        "PVC": 0.35,
        "L40S": 0.55,
    },
    fp8=0.85,
    attention=0.41,
    attention_hopper=0.61,
    attention_vendor=0.62,
    attention_vendor_first=0.5,
    attention_second=1.7,
    elementwise=1.0,
    eager=1.6,
    unfused_elsewhere=2.0,
    blackwell_first=0.95,
    other_program=1.07,
    contention=0.1,
    tuned=0.7,
    scores=32.0,
    tensor_tuned=0.4,
    links=0.7,
    network=0.7,
    sharded_shown=0.3,
    overlap_power=2.5,
    operator_microseconds=14.0,
    unfused_operator_microseconds=37.6,
    microbatch_operators=100.0,
    launch_power=4.0,
    step_milliseconds=8.0,
    latency_microseconds=8.0,
    hop_microseconds=9.0,
    jitter=0.006,
)
"""The coefficients from which the fit starts: measured matrix products and figures from vendors,
and round figures for launches and latency, chosen with knowledge of the step times.
"""
MISS = 1.0
MOST = 0.85
"""The largest share of its datasheet figure that a matrix product, a link or a network sustains.
"""


@dataclass(frozen=True)
class Known:
    """A published row with its measured speed."""

    source: str
    family: str
    label: str
    answer: float
    in_tokens: bool
    convention: str
    setup: StepSetup | None
    software: str = ""
    is_power_limited: bool = False
    """Whether the devices run below their usual power, by an amount that the source does not state.
    """

    @property
    def name(self) -> str:
        """Where the row is: table and line."""
        return self.label.split(" ", 1)[0]

    @property
    def nodes(self) -> str:
        """Whether the row used one node or many."""
        return node_count(self.setup) if self.setup else ""

    @property
    def is_simulated(self) -> bool:
        """Whether the speed was computed by the vTrain simulator, and never measured."""
        return self.name.startswith(f"{STEP_TIMES}:") and self.nodes == "one node"


def main() -> None:
    """Print the errors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", default=TABLES)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--rows", action="store_true")
    given = parser.parse_args()
    tables = {name: read(Path(name)) for name in given.tables}
    rows = [row for table in tables.values() for row in table]
    used = DEFAULT
    if given.fit:
        used = fit(rows)
        print(used)
    by_group(
        "coefficients fitted to all: " if given.fit else "coefficients in use: ",
        rows,
        errors(rows, used),
    )
    by_family(rows, errors(rows, used))
    by_source(rows, errors(rows, used))
    if given.rows:
        for row, error in zip(rows, errors(rows, used), strict=True):
            print(f"{error:+8.1%}  {row.answer:10.1f}  {row.label}")
    never_fitted = read(Path(NEVER_FITTED))
    show("in no fit: mlperf_left_out.csv", never_fitted, errors(never_fitted, used))
    second = read(Path(SECOND_BLIND))
    show("in no fit: second_blind_results.csv", second, errors(second, used))
    third = read(Path(THIRD_BLIND))
    show("in no fit: third_blind_results.csv", third, errors(third, used))
    fourth = read(Path(FOURTH_BLIND))
    show("in no fit: fourth_blind_results.csv", fourth, errors(fourth, used))
    fifth = read(Path(FIFTH_BLIND))
    show("in no fit: fifth_blind_results.csv", fifth, errors(fifth, used))
    if given.fit:
        write_left_out(rows, used)
    show_left_out(read_left_out(rows))


def read(path: Path) -> list[Known]:
    """Return the rows that have a measured speed."""
    catalogue = read_models(project_root())
    models = {name: catalogue.get(name) for name in catalogue.names}
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        for number, cells in enumerate(csv.DictReader(file), 1):
            tokens = cells["tokens_s_per_accel"]
            tflops = cells["tflops_per_accel"]
            if not (tokens or tflops):
                continue
            row = read_row(number, cells)
            setup = setup_of(row, models)
            ready = not isinstance(setup, str) and not known(setup[0].device, setup[0].precision)
            found.append(
                Known(
                    source=source_of(cells["source"]),
                    family=setup[0].device.family if ready else "none",
                    label=f"{path.name}:{number + 1} {cells['model']} {cells['accelerator']} {cells['n_accel']}",
                    answer=float(tokens or tflops),
                    in_tokens=bool(tokens),
                    convention=row.convention,
                    setup=setup[0] if ready else None,
                    software=cells["software"],
                    is_power_limited="power-limited" in cells["note"],
                )
            )
    return found


def read_blind(path: Path) -> dict[str, list[Known]]:
    """Return the rows in a blind test by kind: published, InternEvo, MLPerf, near-twins."""
    rows = read(path)
    with path.open(encoding="utf-8", newline="") as file:
        kinds = [cells["kind"] for cells in csv.DictReader(file)]
    by_kind: dict[str, list[Known]] = {}
    for kind, row in zip(kinds, rows, strict=True):
        by_kind.setdefault(kind, []).append(row)
    return by_kind


def source_of(text: str) -> str:
    """Return the source of a row: the project or publisher that measured it.

    Pages from the same project count as one source.

    >>> source_of("github mosaicml/llm-foundry scripts/x"), source_of("arXiv:2312.12705 (abstract)")
    ('mosaicml/llm-foundry', 'arXiv:2312.12705')
    """
    if "mlcommons" in text:
        return "mlcommons"
    if "nemo" in text.lower():
        return "NVIDIA NeMo"
    words = text.replace(";", " ").replace("@", " ").replace("(", " ").split()
    return next((word for word in words if "/" in word or word.startswith("arXiv")), text)


def predicted(row: Known, coefficients: Coefficients) -> float:
    """Return the predicted speed for a row, in the same unit as the measured speed."""
    setup = row.setup
    assert setup is not None
    step = iteration(setup, coefficients)
    layout = setup.layout
    sequences = (
        setup.num_microbatches * setup.micro_batch * layout.data / step.seconds / layout.world_size
    )
    if row.in_tokens:
        return sequences * setup.shape.sequence_length
    return flops.flops(setup.shape, sequences, row.convention) / 1e12


def errors(rows: Sequence[Known], coefficients: Coefficients) -> list[float]:
    """Return the relative error of each row. A row without a prediction counts as a miss."""
    return [predicted(row, coefficients) / row.answer - 1 if row.setup else MISS for row in rows]


def fit(
    rows: Sequence[Known],
    begin: Coefficients = START,
    rounds: int = 12,
    first_slopes: Mapping[str, numpy.ndarray] | None = None,
) -> Coefficients:
    """Fit the logarithms of the coefficients by damped least squares, starting at `begin`.

    Coefficients are pulled toward `START`, and outliers weigh less.

    `first_slopes` are the slopes at `begin` by row, if they are known (`slopes_at`).
    """
    usable = fitted_rows(rows)
    counts = Counter(row.source for row in rows if row.setup)
    kept = Counter(row.source for row in usable)
    # A source is weighted by the square root of its row count, even if only some rows are used in
    # the fit.
    weights = numpy.array([counts[row.source] ** 0.5 / kept[row.source] for row in usable])
    weights *= len(usable) / weights.sum()
    names = list(flat(START))
    widths = numpy.array(
        [
            WIDTH["sustained"] if name in START.sustained else WIDTH.get(name, WIDTH["other"])
            for name in names
        ]
    )
    moves = moves_of(begin)
    now = residuals(usable, moves)
    slopes = numpy.zeros((len(usable), len(names)))
    for number in range(rounds):
        robust = weights / numpy.maximum(1.0, numpy.abs(now) / (1.5 * NOISE))
        if number == 0 and first_slopes is not None:
            slopes = numpy.stack([first_slopes[row.name] for row in usable])
        elif number % SLOPES_HOLD == 0:
            slopes = slopes_at(usable, moves)
        scale = robust / NOISE**2
        left = slopes.T @ (scale[:, None] * slopes) + numpy.diag(1 / widths**2)
        right = -slopes.T @ (scale * now) - moves / widths**2
        step = numpy.clip(numpy.linalg.solve(left, right), -0.25, 0.25)
        moves = moves + step
        now = residuals(usable, moves)
        if float(numpy.abs(step).max()) < 1e-3:
            break
    return moved(dict(zip(names, moves.tolist(), strict=True)))


def fitted_rows(rows: Sequence[Known]) -> list[Known]:
    """Return the rows that a fit uses."""
    return thinned([row for row in rows if row.setup and not row.is_power_limited])


def moves_of(coefficients: Coefficients) -> numpy.ndarray:
    """Return the logarithm of each coefficient relative to its start."""
    values = flat(coefficients)
    start = flat(START)
    return numpy.log([values[name] / start[name] for name in start])


def residuals(rows: Sequence[Known], moves: numpy.ndarray) -> numpy.ndarray:
    """Return the logarithm of predicted over measured speed for each row."""
    coefficients = moved(dict(zip(flat(START), moves.tolist(), strict=True)))
    return numpy.array([math.log(predicted(row, coefficients) / row.answer) for row in rows])


def slopes_at(rows: Sequence[Known], moves: numpy.ndarray) -> numpy.ndarray:
    """Return how each residual changes with each shift.

    The share for a family moves only the rows in that family.
    """
    now = residuals(rows, moves)
    columns = []
    for index, name in enumerate(flat(START)):
        step = numpy.zeros(len(moves))
        step[index] = 0.01
        is_touched = numpy.array(
            [name not in START.sustained or row.family == name for row in rows]
        )
        touched = [row for row, moves_it in zip(rows, is_touched, strict=True) if moves_it]
        column = numpy.zeros(len(rows))
        column[is_touched] = (residuals(touched, moves + step) - now[is_touched]) / 0.01
        columns.append(column)
    return numpy.stack(columns, axis=1)


def flat(values: Coefficients) -> dict[str, float]:
    """Return every coefficient by name, and the sustained shares by family."""
    others = {
        field.name: getattr(values, field.name)
        for field in fields(values)
        if field.name != "sustained"
    }
    return {**values.sustained, **others}


def moved(moves: Mapping[str, float]) -> Coefficients:
    """Return the starting coefficients, each multiplied by exp(move)."""
    sustained = {
        name: min(MOST, value * math.exp(moves[name])) for name, value in START.sustained.items()
    }
    others = {
        field.name: getattr(START, field.name) * math.exp(moves[field.name])
        for field in fields(Coefficients)
        if field.name != "sustained"
    }
    others |= {"fp8": min(1.0, others["fp8"])} | {
        name: min(MOST, others[name]) for name in ("links", "network")
    }
    return replace(START, sustained=sustained, **others)


def thinned(rows: Sequence[Known]) -> list[Known]:
    """Return the rows, but only a random sample from a source that has far more than the others."""
    kept = []
    for source in dict.fromkeys(row.source for row in rows):
        inside = [row for row in rows if row.source == source]
        if len(inside) > 2 * THINNED:
            inside = random.Random(5).sample(inside, THINNED)
        kept += inside
    return kept


@dataclass(frozen=True)
class LeftOut:
    """The error on a row that is left out of the fit."""

    row: Known
    by: str
    """Which group was left out: source or family."""
    error: float

    @property
    def logarithm(self) -> float:
        """The absolute logarithm of the error, which is the same for half and for twice the speed."""
        return abs(math.log1p(self.error))

    @cached_property
    def score(self) -> float:
        """Logarithm of the error, relative to the uncertainty for the row."""
        assert self.row.setup is not None
        return self.logarithm / uncertainty(self.row.setup)


def write_left_out(rows: Sequence[Known], begin: Coefficients) -> None:
    """Fit without each source and without each family, and write the errors on left-out rows."""
    with_setup = [row for row in rows if row.setup]
    slopes = slopes_at(with_setup, moves_of(begin))
    by_row = {row.name: slope for row, slope in zip(with_setup, slopes, strict=True)}
    with LEFT_OUT_ERRORS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("left_out", "group", "row", "error"))
        for by in ("source", "family"):
            for group in sorted({getattr(row, by) for row in rows}):
                inside = [row for row in rows if getattr(row, by) == group]
                others = [row for row in rows if getattr(row, by) != group]
                wrong = errors(inside, fit(others, begin, rounds=8, first_slopes=by_row))
                for row, error in zip(inside, wrong, strict=True):
                    writer.writerow((by, group, row.name, f"{error:.4f}"))
                show(f"left out: {group}", inside, wrong)


def read_left_out(rows: Sequence[Known]) -> list[LeftOut]:
    """Return the errors that the last --fit wrote, for the rows that still exist."""
    known_rows = {row.name: row for row in rows}
    lines = LEFT_OUT_ERRORS.read_text(encoding="utf-8").splitlines()
    found = []
    for cells in csv.DictReader(lines):
        row = known_rows.get(cells["row"])
        if row is not None:
            found.append(LeftOut(row, cells["left_out"], float(cells["error"])))
    return found


def read_blind_errors() -> list[LeftOut]:
    """Return the errors on the second to fourth blind sets, which are in no fit."""
    rows = {
        row.name: row
        for path in (SECOND_BLIND, THIRD_BLIND, FOURTH_BLIND)
        for row in read(project_root() / path)
    }
    with BLIND_ERRORS.open(encoding="utf-8", newline="") as file:
        return [
            LeftOut(rows[cells["row"]], "source", float(cells["error"]))
            for cells in csv.DictReader(file)
        ]


def show_left_out(left_out: Sequence[LeftOut]) -> None:
    """Print errors and coverage for rows that were predicted without their source, or family."""
    for by in ("source", "family"):
        chosen = [one for one in left_out if one.by == by]
        by_group(f"{by} left out: ", [one.row for one in chosen], [one.error for one in chosen])
    of_sources = for_intervals(left_out)
    print("intervals by family and nodes, from sources left out:")
    for (family, nodes), width in intervals(of_sources).items():
        print(f"    ({family!r}, {nodes!r}): {width:.3f},")
    for nodes, (inside, count) in coverage(of_sources).items():
        print(f"coverage on sources that the interval never saw: {nodes}: {inside} of {count}")
    print(f"coverage as the mean over these sources: {coverage_of_sources(of_sources):.1%}")
    inside, count = measured_on_one_node(of_sources)
    print(f"    of these, measured rows on one node: {inside} of {count}")


def for_intervals(left_out: Sequence[LeftOut]) -> list[LeftOut]:
    """Return the errors used to compute intervals: those on rows whose source the fit left out."""
    of_sources = [
        left
        for left in left_out
        if left.by == "source" and left.row.setup and not left.row.is_power_limited
    ]
    return of_sources + read_blind_errors()


def intervals(left_out: Sequence[LeftOut]) -> dict[tuple[str, str], float]:
    """Return the half-widths of the 80 % interval by family and node count (`WIDTHS`).

    The family '' stands for any other. The half-widths are conformal on left-out sources, and
    shrunk toward the half-width of all families at that node count. The more sources a family has,
    the less it is shrunk (`SHRINKAGE`).
    """
    widths: dict[tuple[str, str], float] = {}
    for nodes in NODE_COUNTS:
        inside = [one for one in left_out if one.row.nodes == nodes]
        if not inside:
            continue
        of_all = _conformal(inside)
        widths["", nodes] = of_all
        for family in sorted({one.row.family for one in inside}):
            own = [one for one in inside if one.row.family == family]
            sources = len({one.row.source for one in own})
            if len(own) >= LEAST_ROWS and sources >= LEAST_SOURCES:
                share = sources / (sources + SHRINKAGE)
                widths[family, nodes] = _conformal(own) ** share * of_all ** (1 - share)
    return widths


def _conformal(left_out: Sequence[LeftOut]) -> float:
    """Return the weighted quantile of the error scores.

    The fewer sources are known, the more a new source may differ from them.
    """
    sources = Counter(one.row.source for one in left_out)
    weights = [sources[one.row.source] ** -SOURCE_WEIGHT for one in left_out]
    ordered = sorted(zip(left_out, weights, strict=True), key=lambda pair: pair[0].score)
    level = min(1.0, COVERAGE * (1 + NEW_SOURCE / len(sources)))
    seen = 0.0
    for one, weight in ordered:
        seen += weight
        if seen >= level * sum(weights):
            return one.score
    return ordered[-1][0].score


def coverage(left_out: Sequence[LeftOut]) -> dict[str, tuple[int, int]]:
    """Return how many rows are inside their interval, and how many there are, by node count."""
    counts: dict[str, tuple[int, int]] = {}
    for left, is_inside in judged_rows(left_out):
        inside, count = counts.get(left.row.nodes, (0, 0))
        counts[left.row.nodes] = (inside + is_inside, count + 1)
    return counts


def coverage_of_sources(left_out: Sequence[LeftOut]) -> float:
    """Return the share of a source's rows that lie inside their interval, averaged over sources."""
    by_source: dict[str, list[bool]] = {}
    for left, is_inside in judged_rows(left_out):
        by_source.setdefault(left.row.source, []).append(is_inside)
    return statistics.fmean(statistics.fmean(inside) for inside in by_source.values())


def judged_rows(left_out: Sequence[LeftOut]) -> list[tuple[LeftOut, bool]]:
    """Return each predicted row and whether it lies in its interval.

    Each source is judged by intervals from all the others.
    """
    judged = []
    for source in dict.fromkeys(left.row.source for left in left_out):
        widths = intervals([left for left in left_out if left.row.source != source])
        for left in left_out:
            if left.row.source != source:
                continue
            nodes = left.row.nodes
            width = widths.get((left.row.family, nodes), widths.get(("", nodes), 0.0))
            judged.append((left, left.score <= width))
    return judged


def measured_on_one_node(left_out: Sequence[LeftOut]) -> tuple[int, int]:
    """Return how many measured one-node rows are inside their interval, and how many there are."""
    is_inside = [
        is_inside
        for left, is_inside in judged_rows(left_out)
        if left.row.nodes == "one node" and not left.row.is_simulated
    ]
    return sum(is_inside), len(is_inside)


def group_of(row: Known) -> str:
    """Return the table for a row. The vTrain step times are split by node count."""
    name = row.label.split(":")[0]
    if name != STEP_TIMES or row.setup is None:
        return name
    return f"{name}, {row.nodes}{' (simulated)' if row.is_simulated else ''}"


def by_group(title: str, rows: Sequence[Known], wrong: Sequence[float]) -> None:
    """Print the errors by table."""
    for group in dict.fromkeys(map(group_of, rows)):
        chosen = [
            (row, error) for row, error in zip(rows, wrong, strict=True) if group_of(row) == group
        ]
        show(title + group, [row for row, _ in chosen], [error for _, error in chosen])


def by_family(rows: Sequence[Known], wrong: Sequence[float]) -> None:
    """Print the errors by accelerator family."""
    for family in sorted({row.family for row in rows}):
        chosen = [
            (row, error) for row, error in zip(rows, wrong, strict=True) if row.family == family
        ]
        show(f"family {family}", [row for row, _ in chosen], [error for _, error in chosen])


def by_source(rows: Sequence[Known], wrong: Sequence[float]) -> None:
    """Print the errors by source, most rows first."""
    sources = [row.source for row in rows]
    for source in sorted(set(sources), key=lambda name: (-sources.count(name), name)):
        chosen = [
            (row, error) for row, error in zip(rows, wrong, strict=True) if row.source == source
        ]
        show(f"source {source}", [row for row, _ in chosen], [error for _, error in chosen])


def within(row: Known, error: float) -> bool:
    """Return whether the published speed lies in the 80 % interval around the prediction."""
    if row.setup is None:
        return False
    half = 1 + half_width(row.setup)
    return 1 / half <= 1 / (1 + error) <= half


def show(title: str, rows: Sequence[Known], wrong: Sequence[float]) -> None:
    """Print one line with errors."""
    median, ninth = spread(wrong)
    inside = sum(map(within, rows, wrong))
    print(
        f"{title[:95]:95s} {len(rows):4d} rows  {inside:4d} within  median {median:6.1%}  90th {ninth:6.1%}  "
        f"bias {statistics.median(wrong):+6.1%}  mean of step times {mean_of_times(wrong):6.1%}",
        flush=True,
    )


def mean_of_times(wrong: Sequence[float]) -> float:
    """Return the mean size of the step-time errors that correspond to these speed errors.

    >>> mean_of_times([0.25, -0.2])
    0.225
    """
    return statistics.fmean(abs(1 / (1 + error) - 1) for error in wrong)


def spread(wrong: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 90th percentile of the absolute errors.

    >>> spread([0.1, -0.2, 0.3])
    (0.2, 0.3)
    """
    sizes = sorted(abs(error) for error in wrong)
    return statistics.median(sizes), sizes[min(len(sizes) - 1, math.ceil(0.9 * len(sizes)) - 1)]


if __name__ == "__main__":
    main()

"""Measure how well final losses are forecast for published training runs.

    python -m benchmarks.loss_forecast [FIT.csv TARGET.csv]

There are two protocols. `parts` fits the runs below a compute threshold and forecasts those above
it, as marked in the tables. `rolling` fits the smallest 50, 65 and 80% of all runs by compute, and
forecasts the others. Next to each result is one from fitting plain E + A/N^a + B/D^b, without
weights, penalties, vote or correction.

Then each ladder in ladders_corpus.csv and ladders_blind.csv forecasts its run. The line through the
rungs was chosen with the first table, before the second existed. If you pass two tables of your
own, only these are measured.
"""

import csv
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runbook.forecast import laws
from runbook.forecast.final_loss import forecast_final_losses
from runbook.forecast.from_ladder import forecast_from_ladder
from runbook.forecast.laws import Array, LawChoice, Runs, fit_law
from runbook.forecast.tables import as_runs, read_finished_trainings

TABLES = ("forecast_openlm_c4", "forecast_openlm_redpajama", "forecast_steplaw")
FOLDER = Path(__file__).parent / "forecast"
ROLLING_SHARES = (0.5, 0.65, 0.8)


@dataclass(frozen=True)
class Split:
    """The runs to fit and the runs to forecast."""

    name: str
    fitted: Runs
    targets: Runs


def read_table(path: Path) -> tuple[Runs, Array]:
    """Read a table. Return the runs, and whether each is a target."""
    runs = as_runs(read_finished_trainings(path))
    with path.open(encoding="utf-8", newline="") as file:
        targets = [row.get("part") == "target" for row in csv.DictReader(file)]
    return runs, np.array(targets)


def splits() -> Iterator[Split]:
    """Yield the splits for both protocols."""
    for name in TABLES:
        runs, is_target = read_table(FOLDER / f"{name}.csv")
        yield Split(f"parts | {name}", runs.take(~is_target), runs.take(is_target))
    for name in TABLES:
        runs, _ = read_table(FOLDER / f"{name}.csv")
        for share in ROLLING_SHARES:
            limit = np.quantile(runs.flops, share)
            small = runs.take(runs.flops <= limit)
            yield Split(f"rolling {share} | {name}", small, runs.take(runs.flops > limit))


def plain_errors(split: Split) -> Array:
    """Return relative errors with a plain fit, without the penalty on exponents."""
    penalty = laws.EXPONENT_PENALTY
    laws.EXPONENT_PENALTY = 1e-9
    try:
        law = fit_law(split.fitted, LawChoice(embeddings=True, tied=False, weight_power=0.0))
    finally:
        laws.EXPONENT_PENALTY = penalty
    return np.abs(law.predict(split.targets.params, split.targets.tokens) / split.targets.loss - 1)


def measure(split: Split) -> str:
    """Return one row for the results table."""
    start = time.perf_counter()
    forecasts = forecast_final_losses(split.fitted, split.targets)
    seconds = time.perf_counter() - start
    loss = split.targets.loss
    errors = np.abs(np.array([forecast.loss for forecast in forecasts]) / loss - 1)
    low = np.array([forecast.low for forecast in forecasts])
    high = np.array([forecast.high for forecast in forecasts])
    inside = np.mean((low <= loss) & (loss <= high))
    width = np.median((high - low) / loss)
    plain = plain_errors(split)
    columns = [
        split.name,
        f"{len(split.fitted)} / {len(split.targets)}",
        f"{np.median(plain):.2%} | {np.quantile(plain, 0.9):.2%}",
        f"{np.median(errors):.2%} | {np.quantile(errors, 0.9):.2%}",
        f"{inside:.0%} | {width:.1%}",
        f"{seconds:.1f} s",
    ]
    return " | ".join(columns)


LADDERS = ("ladders_corpus", "ladders_blind")


def ladder_rows(table: str) -> Iterator[str]:
    """Yield a row for each ladder on the shipped corpus: forecast, interval, final loss."""
    runs = read_finished_trainings(FOLDER / f"{table}.csv")
    for series in dict.fromkeys(row.series for row in runs):
        ladder = [row for row in runs if row.series == series]
        ladder.sort(key=lambda row: row.flops)
        (forecast,) = forecast_from_ladder(as_runs(ladder[:-1]), as_runs(ladder[-1:]))
        reached = ladder[-1].loss
        inside = forecast.low <= reached <= forecast.high
        columns = [
            series,
            f"{forecast.loss:.3f} ({forecast.low:.3f} to {forecast.high:.3f})",
            f"{reached:.3f}",
            f"{forecast.loss / reached - 1:+.1%}",
            "inside" if inside else "outside",
        ]
        yield " | ".join(columns)


def main() -> None:
    """Print the table."""
    print(
        "protocol | table | fit / target | plain median | p90 | median | p90 | coverage | width | time"
    )
    if len(sys.argv) == 3:
        fitted, targets = (as_runs(read_finished_trainings(Path(path))) for path in sys.argv[1:])
        print(measure(Split(f"given | {Path(sys.argv[1]).name}", fitted, targets)))
        return
    for split in splits():
        print(measure(split), flush=True)
    for table in LADDERS:
        print(f"{table} | forecast | reached | miss | interval")
        for row in ladder_rows(table):
            print(row)


if __name__ == "__main__":
    main()

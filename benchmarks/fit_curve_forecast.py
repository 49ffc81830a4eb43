"""Fit the curve forecast to published curves, and measure it on curves left out.

    python -m benchmarks.fit_curve_forecast            # measure, and compare with the shipped coefficients
    python -m benchmarks.fit_curve_forecast --write    # write runbook/forecast/curve_coefficients.json

Source, license and sha256 of the curves are in benchmarks/forecast/README.md. A folder of the source is one training
recipe with up to four repetitions, so curves are left out by folders, never one by one. Leaving out a whole track (short,
medium, optimizers) asks for more: no curve of the same kind is among those fitted.
"""

import argparse
import csv
import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from runbook.forecast.curve import (
    COEFFICIENTS,
    SHARES_MEASURED,
    CurveModel,
    curve_inputs,
    fit_coefficients,
    predict_change,
)
from runbook.forecast.interval_rules import COVERAGE
from runbook.forecast.laws import Array

CURVES = Path(__file__).parent / "forecast" / "curves.csv"
SHARES_FITTED = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Where each curve is cut for the fit."""
REPETITIONS_FITTED = 4
"""Repetitions of one recipe that are fitted."""
DIGITS = 5


@dataclass(frozen=True)
class Curve:
    """A complete validation curve."""

    run: str
    total_steps: float
    decay_from: float
    steps: Array
    losses: Array

    @property
    def folder(self) -> str:
        """The folder of the source: one recipe."""
        return self.run.partition("#")[0]

    @property
    def track(self) -> str:
        """The part of the source with one goal."""
        return self.run.partition("/")[0]

    def cut(self, share: float) -> "Cut | None":
        """Return the part up to a share of the steps, or None where it has too few points."""
        mask = self.steps <= share * self.total_steps
        if mask.sum() < 4:
            return None
        inputs = curve_inputs(
            self.steps[mask], self.losses[mask], self.total_steps, self.decay_from
        )
        return Cut(self, inputs, float(self.losses[-1] - self.losses[mask][-1]))


@dataclass(frozen=True)
class Cut:
    """The first part of a curve, and how much the loss changed after it."""

    curve: Curve
    inputs: Array
    change: float


def read_curves() -> list[Curve]:
    """Read the validation losses of every curve, without the one before the first step."""
    rows = defaultdict(list)
    with CURVES.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["val_loss"] and float(row["step"]) > 0:
                rows[row["run"]].append(row)
    return [_curve(run, of_run) for run, of_run in rows.items()]


def _curve(run: str, rows: list[dict[str, str]]) -> Curve:
    return Curve(
        run=run,
        total_steps=float(rows[0]["total_steps"]),
        decay_from=float(rows[0]["decay_from"] or math.nan),
        steps=np.array([float(row["step"]) for row in rows]),
        losses=np.array([float(row["val_loss"]) for row in rows]),
    )


def few_repetitions(curves: list[Curve]) -> list[Curve]:
    """Return the first repetitions of every recipe."""
    counts: Counter[str] = Counter()
    kept = []
    for curve in curves:
        counts[curve.folder] += 1
        if counts[curve.folder] <= REPETITIONS_FITTED:
            kept.append(curve)
    return kept


def cuts_of(curves: list[Curve], shares: tuple[float, ...]) -> list[Cut]:
    """Return the curves cut at each of the shares."""
    cuts = [curve.cut(share) for share in shares for curve in curves]
    return [cut for cut in cuts if cut is not None]


def row_weights(cuts: list[Cut]) -> Array:
    """Return weights that keep a recipe with many repetitions from outweighing the others."""
    repetitions = Counter(cut.curve.folder for cut in cuts)
    weights = np.array([repetitions[cut.curve.folder] ** -0.5 for cut in cuts])
    return weights / weights.mean()


def fit(cuts: list[Cut]) -> CurveModel:
    """Fit the Gaussian process to cut curves."""
    inputs = np.array([cut.inputs for cut in cuts])
    changes = np.array([cut.change for cut in cuts])
    return fit_coefficients(inputs, changes, row_weights(cuts))


@dataclass(frozen=True)
class Errors:
    """Errors on curves left out, in nats, and the standard deviations that the fit gave them."""

    errors: Array
    deviations: Array

    def half_width(self) -> float:
        """Return the factor on deviations within which 80% of the errors lie."""
        return float(np.quantile(np.abs(self.errors) / self.deviations, COVERAGE))

    def line(self, half_width: float) -> str:
        """Return median, 90th percentile, coverage and width as text."""
        sizes = np.abs(self.errors)
        covered = np.mean(sizes <= half_width * self.deviations)
        width = np.median(2 * half_width * self.deviations)
        return (
            f"{np.median(sizes):.4f} | {np.quantile(sizes, 0.9):.4f} | "
            f"{covered:.0%} | {width:.3f} | {len(sizes)}"
        )


def leave_out(curves: list[Curve], group: Callable[[Curve], str]) -> dict[float, Errors]:
    """Forecast each group of curves from a fit without it. Return the errors by the share cut at."""
    fitted_cuts = cuts_of(few_repetitions(curves), SHARES_FITTED)
    errors: dict[float, list[float]] = defaultdict(list)
    deviations: dict[float, list[float]] = defaultdict(list)
    for name in sorted({group(curve) for curve in curves}):
        coefficients = fit([cut for cut in fitted_cuts if group(cut.curve) != name])
        members = [curve for curve in curves if group(curve) == name]
        for share in SHARES_MEASURED:
            for cut in cuts_of(members, (share,)):
                change, deviation, _ = predict_change(coefficients, cut.inputs)
                errors[share].append(change - cut.change)
                deviations[share].append(deviation)
    return {
        share: Errors(np.array(errors[share]), np.array(deviations[share]))
        for share in SHARES_MEASURED
    }


def write(coefficients: CurveModel, cuts: list[Cut]) -> None:
    """Write what the package ships."""
    content = {
        "made_by": "benchmarks/fit_curve_forecast.py",
        "curves_sha256": hashlib.sha256(CURVES.read_bytes()).hexdigest(),
        "mean_change": coefficients.mean_change,
        "half_widths": np.round(coefficients.half_widths, 4).tolist(),
        "means": coefficients.means.tolist(),
        "deviations": coefficients.deviations.tolist(),
        "row_weights": np.round(row_weights(cuts), DIGITS).tolist(),
        "weights": coefficients.weights.tolist(),
        "inputs": np.round(coefficients.inputs, DIGITS).tolist(),
    }
    COEFFICIENTS.write_text(json.dumps(content) + "\n", encoding="utf-8")


def main() -> None:
    """Measure, and write the coefficients if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the shipped coefficients")
    arguments = parser.parse_args()
    curves = read_curves()
    by_folder = leave_out(curves, lambda curve: curve.folder)
    half_widths = {share: errors.half_width() for share, errors in by_folder.items()}
    print("left out | share | median | 90th percentile | coverage | median width | curves")
    for share, errors in by_folder.items():
        print(f"folder | {share} | {errors.line(half_widths[share])}")
    for share, errors in leave_out(curves, lambda curve: curve.track).items():
        print(f"track | {share} | {errors.line(half_widths[share])}")
    if arguments.write:
        cuts = cuts_of(few_repetitions(curves), SHARES_FITTED)
        write(replace(fit(cuts), half_widths=np.array(list(half_widths.values()))), cuts)


if __name__ == "__main__":
    main()

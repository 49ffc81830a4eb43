"""Fit the curve forecast to published curves, and measure it on held-out curves.

    python -m benchmarks.fit_curve_forecast            # measure, and compare with the shipped coefficients
    python -m benchmarks.fit_curve_forecast --write    # write runbook/forecast/curve_coefficients.json

benchmarks/forecast/README.md gives the source, license and sha256 for the curves. There are two
families, each with its own model. In the first, a folder of the source is one training recipe with
up to four repetitions, so curves are left out by folder, never one by one. Leaving out a whole
track (short, medium, optimizers) is a harder test: the fit sees no curve of the same kind. In the
second family, all training runs of one size are left out, or all with one schedule.
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
from typing import Any

import numpy as np

from runbook.forecast.curve import (
    COEFFICIENTS,
    SHARES_MEASURED,
    CurveModel,
    curve_inputs,
    fit_coefficients,
    forecast_change,
    predict_change,
)
from runbook.forecast.interval_rules import COVERAGE
from runbook.forecast.laws import Array

FOLDER = Path(__file__).parent / "forecast"
SHARES_FITTED = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Each curve is cut for the fit after these fractions of its steps."""
REPETITIONS_FITTED = 4
"""Maximum number of repetitions per recipe to use in the fit."""
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
        """The folder with this curve in the source. Each folder is one recipe."""
        return self.run.partition("#")[0]

    @property
    def track(self) -> str:
        """The track in the source: all recipes with one goal."""
        return self.run.partition("/")[0]

    @property
    def size(self) -> str:
        """Model size: the first part of an OLMo run name, as in olmo/1B-10xC-cosine."""
        return self.folder.partition("/")[2].partition("-")[0]

    @property
    def schedule(self) -> str:
        """The schedule used in an OLMo run."""
        return self.folder.rpartition("-")[2]

    def cut(self, share: float) -> "Cut | None":
        """Return a curve up to a fraction of the steps, or None if that leaves too few points."""
        mask = self.steps <= share * self.total_steps
        if mask.sum() < 4:
            return None
        inputs = curve_inputs(
            self.steps[mask], self.losses[mask], self.total_steps, self.decay_from
        )
        return Cut(self, inputs, float(self.losses[-1] - self.losses[mask][-1]))


@dataclass(frozen=True)
class Cut:
    """The first part of a curve, and how much the loss changed afterwards."""

    curve: Curve
    inputs: Array
    change: float


Group = Callable[[Curve], str]


@dataclass(frozen=True)
class Family:
    """A curve family to which one model is fitted.

    It also holds the groupings by which curves are held out to measure how far off the model is.
    """

    name: str
    table: str
    left_out: dict[str, Group]
    """The groups to leave out, by name. Errors with the first grouping determine the interval."""

    @property
    def path(self) -> Path:
        """Path to the table with curves."""
        return FOLDER / self.table


FAMILIES = (
    Family(
        name="modded-nanogpt",
        table="curves.csv",
        left_out={"folder": lambda curve: curve.folder, "track": lambda curve: curve.track},
    ),
    Family(
        name="OLMo",
        table="curves_olmo.csv",
        left_out={"size": lambda curve: curve.size, "schedule": lambda curve: curve.schedule},
    ),
)


def read_curves(path: Path = FAMILIES[0].path) -> list[Curve]:
    """Read the validation losses for every curve, except the one before the first step."""
    rows = defaultdict(list)
    with path.open(encoding="utf-8", newline="") as file:
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
    """Return the first repetitions for every recipe."""
    counts: Counter[str] = Counter()
    kept = []
    for curve in curves:
        counts[curve.folder] += 1
        if counts[curve.folder] <= REPETITIONS_FITTED:
            kept.append(curve)
    return kept


def cuts_of(curves: list[Curve], shares: tuple[float, ...]) -> list[Cut]:
    """Return the curves cut at each of these fractions."""
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
    """Errors on held-out curves and the half-widths of their intervals, in nats."""

    errors: Array
    half_widths: Array

    def line(self) -> str:
        """Return median, 90th percentile, coverage and width as text."""
        sizes = np.abs(self.errors)
        covered = np.mean(sizes <= self.half_widths)
        width = np.median(2 * self.half_widths)
        return (
            f"{np.median(sizes):.4f} | {np.quantile(sizes, 0.9):.4f} | "
            f"{covered:.0%} | {width:.3f} | {len(sizes)}"
        )


def models_without(curves: list[Curve], group: Group) -> dict[str, CurveModel]:
    """Return a model for each group, fitted to the curves in all other groups."""
    fitted_cuts = cuts_of(few_repetitions(curves), SHARES_FITTED)
    return {
        name: fit([cut for cut in fitted_cuts if group(cut.curve) != name])
        for name in sorted({group(curve) for curve in curves})
    }


def half_widths_of(curves: list[Curve], group: Group, models: dict[str, CurveModel]) -> Array:
    """Return the factors by which deviations from the models are multiplied.

    With these factors, 80% of the left-out curves lie within the intervals.
    """
    factors = []
    for share in SHARES_MEASURED:
        ratios = []
        for cut in cuts_of(curves, (share,)):
            change, deviation, _ = predict_change(models[group(cut.curve)], cut.inputs)
            ratios.append(abs(change - cut.change) / deviation)
        factors.append(float(np.quantile(ratios, COVERAGE)))

    return np.array(factors)


def errors_at(
    share: float,
    curves: list[Curve],
    group: Group,
    models: dict[str, CurveModel],
    others: list[CurveModel],
) -> Errors:
    """Forecast each curve with the model that was fitted without its group.

    The other families' models are used as well.
    """
    errors = []
    half_widths = []
    for cut in cuts_of(curves, (share,)):
        together = (models[group(cut.curve)], *others)
        forecast = forecast_change(together, cut.inputs, share)
        errors.append(forecast.change - cut.change)
        half_widths.append(forecast.half_width)

    return Errors(np.array(errors), np.array(half_widths))


def content_of(family: Family, model: CurveModel, cuts: list[Cut]) -> dict[str, Any]:
    """Return the coefficients that the package ships for a family."""
    return {
        "curves_sha256": hashlib.sha256(family.path.read_bytes()).hexdigest(),
        "mean_change": model.mean_change,
        "half_widths": np.round(model.half_widths, 4).tolist(),
        "means": model.means.tolist(),
        "deviations": model.deviations.tolist(),
        "row_weights": np.round(row_weights(cuts), DIGITS).tolist(),
        "weights": model.weights.tolist(),
        "inputs": np.round(model.inputs, DIGITS).tolist(),
    }


def main() -> None:
    """Measure, and write the coefficients if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the shipped coefficients")
    arguments = parser.parse_args()
    curves = {family.name: read_curves(family.path) for family in FAMILIES}
    cuts = {name: cuts_of(few_repetitions(curves[name]), SHARES_FITTED) for name in curves}
    without: dict[tuple[str, str], dict[str, CurveModel]] = {}
    whole: dict[str, CurveModel] = {}
    for family in FAMILIES:
        for what, group in family.left_out.items():
            without[family.name, what] = models_without(curves[family.name], group)

        first, group = next(iter(family.left_out.items()))
        half_widths = half_widths_of(curves[family.name], group, without[family.name, first])
        whole[family.name] = replace(fit(cuts[family.name]), half_widths=half_widths)

    print("family | left out | share | median | 90th percentile | coverage | median width | curves")
    for family in FAMILIES:
        others = [model for name, model in whole.items() if name != family.name]
        half_widths = whole[family.name].half_widths
        for what, group in family.left_out.items():
            models = {
                name: replace(model, half_widths=half_widths)
                for name, model in without[family.name, what].items()
            }
            for share in SHARES_MEASURED:
                errors = errors_at(share, curves[family.name], group, models, others)
                print(f"{family.name} | {what} | {share} | {errors.line()}", flush=True)

    if arguments.write:
        families = {
            family.name: content_of(family, whole[family.name], cuts[family.name])
            for family in FAMILIES
        }
        content = {"made_by": "benchmarks/fit_curve_forecast.py", "families": families}
        COEFFICIENTS.write_text(json.dumps(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

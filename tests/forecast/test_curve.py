"""The final loss is forecast from the first part of a loss curve."""

import math
from dataclasses import replace

import numpy as np
import pytest
from suite.messages import refuses

from benchmarks.fit_curve_forecast import (
    FAMILIES,
    cuts_of,
    few_repetitions,
    fit,
    read_curves,
)
from runbook.core.errors import DataError
from runbook.forecast.curve import (
    forecast_change,
    forecast_curve,
    load_coefficients,
    predict_change,
)
from runbook.forecast.interval_rules import UNLIKE_CURVE_WIDENING
from runbook.forecast.messages import ForecastMessage
from runbook.forecast.tables import CurvePoint, PartialCurve, read_curve

CURVES = read_curves()


def part_of(curve, share: float, shift: float = 0.0) -> PartialCurve:
    points = [
        CurvePoint(float(step), float(loss) + shift)
        for step, loss in zip(curve.steps, curve.losses, strict=True)
        if step <= share * curve.total_steps
    ]
    return PartialCurve(tuple(points), curve.total_steps, curve.decay_from)


def test_the_shipped_coefficients_follow_from_the_curves():
    """If the fitted coefficients differ, the script, the data and the package do not match."""
    for shipped, family in zip(load_coefficients(), FAMILIES, strict=True):
        curves = few_repetitions(read_curves(family.path))
        fitted = fit(cuts_of(curves, (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)))
        assert shipped.weights == pytest.approx(fitted.weights, abs=1e-6)
        assert shipped.inputs == pytest.approx(fitted.inputs, abs=1e-5)


def test_recipes_left_out_are_forecast_from_half_their_curve():
    """Fit without every tenth recipe, and forecast these. docs/forecast.md has the errors for all
    recipes.
    """
    folders = sorted({curve.folder for curve in CURVES})
    left_out = set(folders[::10])
    coefficients = fit(
        cuts_of([curve for curve in CURVES if curve.folder not in left_out], (0.3, 0.5, 0.7))
    )
    errors = []
    for curve in CURVES:
        if curve.folder in left_out:
            cut = curve.cut(0.5)
            change, _, _ = predict_change(coefficients, cut.inputs)
            errors.append(abs(change - cut.change))
    assert np.median(errors) < 0.02
    assert np.median(errors) < 0.1 * abs(np.median([curve.cut(0.5).change for curve in CURVES]))


def test_pretrainings_of_a_size_left_out_are_forecast_from_half_their_curve():
    """Forecast the OLMo runs with cosine and WSD schedules.

    If the forecast were based on training runs from the other family, the error would be 0.1 nats.
    """
    nanogpt, shipped = load_coefficients()
    curves = read_curves(FAMILIES[1].path)
    seen = [curve for curve in curves if curve.size != "1B"]
    left_out = replace(fit(cuts_of(seen, (0.3, 0.5, 0.7))), half_widths=shipped.half_widths)
    errors = []
    alone = []
    for cut in cuts_of([curve for curve in curves if curve.size == "1B"], (0.5,)):
        together = forecast_change((nanogpt, left_out), cut.inputs, 0.5)
        errors.append(abs(together.change - cut.change))
        alone.append(abs(predict_change(nanogpt, cut.inputs)[0] - cut.change))

    assert len(errors) == 11
    assert np.median(errors) < 0.01
    assert np.median(alone) > 0.05


def test_each_family_is_forecast_by_its_own_model():
    models = load_coefficients()
    for model, family in zip(models, FAMILIES, strict=True):
        cut = read_curves(family.path)[3].cut(0.5)
        alone, _, distance = predict_change(model, cut.inputs)
        together = forecast_change(models, cut.inputs, 0.5)
        assert together.change == pytest.approx(alone, abs=0.005)
        assert together.distance == pytest.approx(distance)


def test_a_shifted_curve_has_a_shifted_forecast():
    curve = CURVES[0]
    first = forecast_curve(part_of(curve, 0.5))
    shifted = forecast_curve(part_of(curve, 0.5, shift=0.7))
    assert shifted.loss - first.loss == pytest.approx(0.7)
    assert shifted.high - shifted.low == pytest.approx(first.high - first.low)


def test_more_of_a_curve_gives_a_narrower_interval():
    curve = CURVES[20]
    widths = []
    for share in (0.4, 0.6, 0.8):
        forecast = forecast_curve(part_of(curve, share))
        widths.append(forecast.high - forecast.low)
    assert widths == sorted(widths, reverse=True)


def test_a_curve_unlike_all_fitted_ones_is_told_and_wide():
    steps = np.arange(1, 51) * 100_000
    points = tuple(CurvePoint(float(step), 3.0 - 0.2 * math.log10(step)) for step in steps)
    strange = forecast_curve(PartialCurve(points, 10_000_000.0, 0.0))
    usual = forecast_curve(part_of(CURVES[20], 0.5))
    unlike = ForecastMessage.CURVE_UNLIKE_FITTED_ONES.fill(widening=UNLIKE_CURVE_WIDENING)
    assert unlike in strange.warnings
    assert strange.high - strange.low > 3 * (usual.high - usual.low)


def test_a_short_curve_a_complete_one_and_one_beyond_its_end(tmp_path):
    curve = CURVES[0]
    with refuses(DataError, ForecastMessage.CURVE_TOO_SHORT, fewest_points=3):
        forecast_curve(part_of(curve, 0.02))
    complete = forecast_curve(part_of(curve, 1.0))
    assert complete.loss == complete.low == complete.high == curve.losses[-1]
    table = tmp_path / "curve.csv"
    lines = [f"{step},3.5,50,\n" for step in range(10, 101, 10)]
    table.write_text("step,val_loss,total_steps,decay_from\n" + "".join(lines))
    with refuses(DataError, ForecastMessage.CURVE_BEYOND_ITS_END, total_steps=50.0):
        forecast_curve(read_curve(table))


def test_a_step_is_not_taken_for_the_share_after_which_the_rate_falls(tmp_path):
    table = tmp_path / "curve.csv"
    lines = [f"{step},3.5,2000,1600\n" for step in range(100, 1001, 100)]
    table.write_text("step,val_loss,total_steps,decay_from\n" + "".join(lines))
    with refuses(DataError, ForecastMessage.DECAY_FROM_IS_A_SHARE, decay_from=1600.0, share=0.8):
        read_curve(table)

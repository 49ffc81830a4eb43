"""`runbook forecast` as it is typed."""

import csv
import json
from pathlib import Path

DATA = Path(__file__).parents[2] / "benchmarks" / "forecast"


def write_parts(folder: Path) -> tuple[Path, Path]:
    """Write the parts of Step Law's table to two files, without the losses of the targets."""
    with (DATA / "forecast_steplaw.csv").open() as file:
        rows = list(csv.DictReader(file))
    columns = ["series", "params", "params_no_embed", "tokens", "flops", "loss", "extra"]
    for part in ("fit", "target"):
        with (folder / f"{part}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            for row in rows:
                if row["part"] == part:
                    writer.writerow({**row, "loss": row["loss"] if part == "fit" else ""})
    return folder / "fit.csv", folder / "target.csv"


def test_a_table_of_targets_gives_a_list_in_its_order(runbook, tmp_path):
    fit, target = write_parts(tmp_path)
    result = runbook("forecast", "--fit", fit, "--predict", target, "--json")
    assert result.code == 0
    forecasts = json.loads(result.out)
    assert len(forecasts) == 8
    assert all(row["low"] < row["loss"] < row["high"] for row in forecasts)
    assert abs(forecasts[-1]["loss"] / 2.12063 - 1) < 0.02
    text = runbook("forecast", "--fit", fit, "--predict", target).out
    assert "80% interval" in text
    assert f"{forecasts[-1]['loss']:.4f}" in text


def test_half_a_curve_gives_its_end(runbook, tmp_path):
    curve = tmp_path / "curve.csv"
    lines = [f"{step},{6 - 0.8 * step**0.15:.4f},4000,0.5\n" for step in range(125, 2001, 125)]
    curve.write_text("step,val_loss,total_steps,decay_from\n" + "".join(lines))
    result = runbook("forecast", "--curve", curve, "--json")
    assert result.code == 0
    forecast = json.loads(result.out)
    assert forecast["low"] < forecast["loss"] < forecast["high"]
    assert forecast["share"] == 0.5
    assert "After 50% of the steps" in runbook("forecast", "--curve", curve).out


def test_half_of_the_options_is_wrong_usage(runbook, tmp_path):
    fit, _ = write_parts(tmp_path)
    result = runbook("forecast", "--fit", fit)
    assert result.code == 2
    assert "--predict" in result.err

"""`runbook forecast` as a user types it."""

import csv
import json
import math
from pathlib import Path

import pytest
from suite.messages import says

from runbook import params
from runbook.cli.messages import CliMessage
from runbook.phases import open_phase
from runbook.plan_file.learning_rate import LearningRate
from runbook.results.curve_forecast import decay_begins
from runbook.runs.run_folder import RUNS_VARIABLE

DATA = Path(__file__).parents[2] / "benchmarks" / "forecast"


def write_parts(folder: Path) -> tuple[Path, Path]:
    """Write the parts of the Step Law table to two files, without losses for the targets."""
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
    assert says(runbook("forecast", "--curve", curve).out, CliMessage.FORECAST_OF_CURVE, share=0.5)


def test_half_of_the_options_is_wrong_usage(runbook, tmp_path):
    fit, _ = write_parts(tmp_path)
    result = runbook("forecast", "--fit", fit)
    assert result.code == 2
    assert "--predict" in result.err


@pytest.fixture
def trained(project, monkeypatch) -> Path:
    """Create a run of 4,000 iterations that was evaluated every 100 iterations up to iteration
    2,000."""
    monkeypatch.setenv(RUNS_VARIABLE, str(project / "runs"))
    words = ["model=tiny", "training.iterations=4000", "training.eval_interval=100"]
    folder = open_phase.open_run_phase(params.load("local", set_words=words), "00-plan").folder
    lines = []
    for iteration in range(100, 2001, 100):
        loss = 6 - 0.8 * iteration**0.15
        values = {"iteration": iteration, "loss": loss, "perplexity": math.exp(loss)}
        lines.append(json.dumps({**values, "samples": 16, "seconds": 0.5}))
    (folder / "validation.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_a_runs_own_evaluations_give_its_end(runbook, trained):
    result = runbook("forecast", "local", "--json")
    assert result.code == 0, result.err
    forecast = json.loads(result.out)
    assert forecast["share"] == 0.5
    assert forecast["low"] < forecast["loss"] < forecast["high"]
    assert forecast["loss"] < 6 - 0.8 * 2000**0.15


def test_a_run_with_few_evaluations_says_which_key_gives_more(runbook, trained):
    (trained / "validation.jsonl").unlink()
    result = runbook("forecast", "local")
    assert result.code == 1
    assert "training.eval_interval" in result.err


def test_the_decay_begins_after_the_warm_up_or_never():
    cosine = LearningRate(1e-3, 1e-4, "cosine", warmup_samples=100, decay_samples=1000)
    constant = LearningRate(1e-3, 1e-4, "constant", warmup_samples=100, decay_samples=1000)
    assert decay_begins(cosine, 1000) == 0.1
    assert decay_begins(constant, 1000) == 1.0


def test_a_run_and_a_table_together_are_wrong_usage(runbook, tmp_path):
    fit, target = write_parts(tmp_path)
    assert runbook("forecast", "local", "--fit", fit, "--predict", target).code == 2
    assert runbook("forecast").code == 2

"""`runbook plan --predict` and `--search`: the output for a terminal and for a program."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click import UsageError
from click.testing import CliRunner, Result
from suite.messages import refuses
from suite.tables import table_rows

from runbook.cli.messages import CliMessage
from runbook.cli.plan import plan
from runbook.core.errors import ParamsError
from runbook.params.project import project_root
from runbook.phases.messages import PhaseMessage
from runbook.phases.run_plan import load_named
from runbook.phases.run_search import search_run
from runbook.planning.choice import full_choice
from runbook.planning.cost.calibration import LIKE
from runbook.planning.messages import PlanningMessage
from runbook.tools.speed.messages import SpeedMessage
from runbook.tools.speed.predictions import predict_file, predictions_text

ROOT = project_root(Path(__file__))
PUBLISHED = ROOT / "runbook" / "results" / "published" / "published_results.csv"


def call(*words: str) -> Result:
    return CliRunner().invoke(plan, list(words), standalone_mode=False)


def write(path: Path, *rows: dict[str, str]) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_every_row_of_the_published_table_gets_its_answer_in_order() -> None:
    rows = json.loads(call("--predict", str(PUBLISHED), "--json").output)
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        models = [row["model"] for row in csv.DictReader(file)]
    assert [row["model"] for row in rows] == models
    assert [row["row"] for row in rows] == list(range(1, len(models) + 1))
    for row in rows:
        assert (
            (row["tokens_s_per_accel"] is None)
            == (row["tflops_per_accel"] is None)
            == (row["reason"] is not None)
        )


def test_a_table_needs_only_two_columns(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        {"model": "GPT-3 13B", "accelerator": "H100"},
        {"model": "GPT-3 13B", "accelerator": "Cerebras"},
    )
    first, second = predict_file(path)
    assert (first.tokens_s_per_accel or 0) > 1000
    assert second.reason == SpeedMessage.UNKNOWN_ACCELERATOR.fill(accelerator="Cerebras")
    text = predictions_text([first, second])
    known, unknown = (line.partition(": ") for line in text.splitlines() if "GPT-3 13B" in line)
    assert known[0].endswith("H100")
    assert unknown[0].endswith("Cerebras")
    assert second.reason in unknown[2]


def test_a_byte_order_mark_and_rows_of_any_length_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(
        "\ufeffmodel,accelerator,n_accel\nGPT 7.5B,A100\nGPT 7.5B,A100,8,9,10\n".encode()
    )
    assert len([row for row in predict_file(path) if row.tokens_s_per_accel]) == 2
    path.write_text("model,accelerator\n")
    assert predict_file(path) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            b"a;b\n1;2\n",
            "the table has no column model and no column accelerator (its first line: a;b)",
        ),
        (b"", "(its first line: nothing)"),
        (
            b"model,accelerator\n\xff\xfe\n",
            "is not UTF-8 text (byte 18). Save the table as CSV in UTF-8.",
        ),
        (
            b'model,accelerator\n"' + b"x" * 200_000 + b'"\n',
            ": field larger than field limit (131072). Save the table as CSV with commas.",
        ),
    ],
)
def test_a_file_that_is_no_table_ends_with_2(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(ParamsError) as caught:
        predict_file(path)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2
    with refuses(ParamsError, SpeedMessage.TABLE_NOT_READABLE):
        predict_file(tmp_path / "none.csv")


def test_a_run_or_a_table_not_both_and_not_neither() -> None:
    for words in ((), ("local", "--predict", str(PUBLISHED))):
        result = call(*words)
        assert result.exception is not None
        assert str(result.exception) == CliMessage.RUN_OR_PREDICT.fill()


def test_the_search_of_a_shipped_run_ranks_and_grows() -> None:
    search = search_run("azure-175b", ["jobs.training.nodes=16"])
    found: Any = search.as_dict()
    assert found["reason"] is None
    assert found["layouts"][0]["seconds_per_step"] <= found["layouts"][-1]["seconds_per_step"]
    assert [row["devices"] for row in found["growth"]][:3] == [128, 256, 512]
    text = search.as_text()
    assert "Best layouts" in text
    rows = table_rows(text)
    tensor = 1
    pipeline = 2
    layouts = [row for row in rows if row[0].replace(",", "").isdigit()]
    assert len(layouts) > 10
    head = next(row for row in rows if row[0] == "GPUs")
    assert head[tensor : pipeline + 1] == ["tensor", "pipeline"]
    assert head[-1] == PhaseMessage.NODES_IN_MULTIPLES.fill()
    # A replica takes whole nodes of 8 devices.
    for layout in layouts:
        assert int(layout[-1]) == int(layout[tensor]) * int(layout[pipeline]) / 8
    assert json.loads(call("azure-175b", "--search", "--json").output)["device"] == "H100-SXM"


def test_search_prints_options_that_select_the_best_layout() -> None:
    search = search_run("azure-175b", ["jobs.training.nodes=16"])
    best = search.found.ranked[0]
    line = next(line for line in search.as_text().splitlines() if "--set" in line)
    words = [word.strip() for word in line.split("--set ")[1:]]
    assert words[0] == "jobs.training.nodes=16"
    chosen = full_choice(load_named("azure-175b", words))
    assert chosen.layout == best.layout
    assert chosen.micro_batch == best.choice.micro_batch
    assert chosen.training.recompute == best.choice.training.recompute


def test_search_shows_times_with_units_and_the_size_of_the_site() -> None:
    text = search_run("polaris-25b", []).as_text()
    head = next(row for row in table_rows(text) if row[0] == "GPUs")
    assert "replicas" in head
    first = next(row for row in table_rows(text) if row[0].replace(",", "").isdigit())
    assert re.search(r"\d (s|min|h|d)\b", first[head.index("training")])
    assert "polaris has 560 nodes (2,240 devices)" in text


def test_a_machine_without_accelerators_is_told_why_nothing_is_searched() -> None:
    searched = search_run("local", [])
    reason = PlanningMessage.CPU_HAS_NO_LINKS.fill()
    assert searched.found.reason == reason
    assert reason in searched.as_text()


KNOWN = {
    "model": "Llama 3 8B",
    "accelerator": "H100",
    "n_accel": "16",
    "precision": "bf16",
    "seq_len": "8192",
    "global_batch": "128",
    "tp": "1",
    "pp": "1",
    "dp": "16",
    "micro_batch": "1",
    "software": "Megatron-Bridge 0.2",
}
TOKENS = "tokens_s_per_accel"


def test_measured_rows_of_the_same_system_correct_the_predictions(tmp_path: Path) -> None:
    wider = {**KNOWN, "n_accel": "32", "dp": "32", "global_batch": "256"}
    other_program = {**KNOWN, "software": "torchtitan"}
    other_format = {**KNOWN, "precision": "fp8"}
    path = write(tmp_path / "t.csv", KNOWN, wider, other_program, other_format)
    planned = predict_file(path)
    speed = planned[0].tokens_s_per_accel or 0.0
    measured = write(tmp_path / "m.csv", {**KNOWN, TOKENS: str(speed / 1.1)})
    found = json.loads(call("--predict", str(path), "--measured", str(measured), "--json").output)
    assert [row["measurements"] for row in found] == [1, 1, 0, 0]
    slower = [
        (one.tokens_s_per_accel or 0.0) / row[TOKENS]
        for one, row in zip(planned, found, strict=True)
    ]
    assert 1.07 < slower[1] < slower[0] < 1.1
    assert slower[2:] == [1.0, 1.0]
    for one, row in zip(planned[:2], found[:2], strict=True):
        low, high = one.interval
        assert row["low"] < row[TOKENS] < row["high"]
        assert row["high"] / row["low"] < (high or 0) / (low or 1), "a measurement narrows it"
        assert row["iteration_ms"] == pytest.approx(1e3 * row["seconds_per_step"])
    text = call("--predict", str(path), "--measured", str(measured)).output.splitlines()
    corrected = SpeedMessage.CORRECTED.fill(count=1)
    assert [line.endswith(corrected) for line in text[:4]] == [True, True, False, False]
    assert text[4:] == [
        SpeedMessage.NOT_CORRECTED.fill(uncorrected=2, predicted="4 rows", like=LIKE)
    ]
    assert f"({found[0]['low']:g} to {found[0]['high']:g})" in text[0]


def test_a_stated_share_of_the_peak_is_a_measurement_too(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", KNOWN)
    (planned,) = predict_file(path)
    half = str((planned.tflops_per_accel or 0.0) / 2)
    measured = write(tmp_path / "m.csv", {**KNOWN, "tflops_per_accel": half})
    (found,) = predict_file(path, measured)
    ratio = (planned.tflops_per_accel or 0.0) / (found.tflops_per_accel or 1.0)
    assert ratio == pytest.approx(2.0, rel=0.06)


@pytest.mark.parametrize("speed", ["", "fast", "0", "-5", "nan"])
def test_a_measured_table_without_a_speed_ends_with_2(tmp_path: Path, speed: str) -> None:
    path = write(tmp_path / "t.csv", KNOWN)
    measured = write(tmp_path / "m.csv", {**KNOWN, TOKENS: speed})
    with refuses(ParamsError, SpeedMessage.NOTHING_MEASURED) as caught:
        predict_file(path, measured)
    assert caught.value.exit_code == 2


def test_measurements_need_predictions(tmp_path: Path) -> None:
    error = call("local", "--measured", str(write(tmp_path / "m.csv", KNOWN))).exception
    assert isinstance(error, UsageError)
    assert error.message == CliMessage.MEASURED_WITHOUT_PREDICT.fill()


def test_a_toy_step_corrects_no_large_one(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", {**KNOWN, "global_batch": "1024"})
    toy = {**KNOWN, "n_accel": "1", "dp": "1", "global_batch": "8", TOKENS: "100"}
    (found,) = predict_file(path, write(tmp_path / "m.csv", toy))
    assert found.correction is None

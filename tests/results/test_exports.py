"""Exports contain the same numbers as the JSON, under names with units, and name the extra that
they need.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from log_lines import parse_lines
from suite.messages import containing, refuses, says

from runbook.cli.messages import CliMessage
from runbook.core import quantities
from runbook.core.errors import DataError
from runbook.log_readers.read import parse_files
from runbook.results.metrics import COLUMNS
from runbook.tools.logs.exports import export
from runbook.tools.logs.messages import ExportMessage

SAMPLE = Path(__file__).parents[1] / "samples" / "megatron-core.log"


@pytest.fixture
def log():
    return parse_files([SAMPLE])


def test_csv_and_parquet_hold_every_record_and_keep_unknown_unknown(log, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    for word in ("a.csv", "a.parquet"):
        told = export(log, str(tmp_path / word), name="sample")
        assert told.startswith("5 records and 2 evaluations -> ")
    with (tmp_path / "a.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    table = pq.read_table(tmp_path / "a.parquet")
    kept = table.to_pylist()
    assert (
        [float(row["loss"]) for row in rows]
        == [row["loss"] for row in kept]
        == [one.loss for one in log.records]
    )
    assert [row["source"] for row in rows] == [row["source"] for row in kept]
    assert kept[0]["samples_per_second"] is None and rows[0]["samples_per_second"] == ""
    units = json.loads(table.schema.metadata[b"units"])
    assert (units["seconds"], units["tflops"]) == (COLUMNS["seconds"], quantities.SPEED)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.parquet"]


def test_tensorboard_reads_back_the_curves(log, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    export(log, f"tensorboard:{tmp_path}", name="sample")
    (path,) = tmp_path.iterdir()
    found = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            number = value.simple_value or value.tensor.float_val[0]
            found.setdefault(value.tag, []).append((event.step, pytest.approx(number, rel=1e-6)))
    assert found["training/loss (nat/token)"] == [(one.iteration, one.loss) for one in log.records]
    step_times = found[f"training/{COLUMNS['seconds']}"]
    assert step_times == [(one.iteration, one.seconds) for one in log.records]
    assert found["validation/loss (nat/token)"] == [(74, 1.81)]
    assert found["test/loss (nat/token)"] == [(74, 1.82)]


def test_trackers_get_each_number_once(log, monkeypatch):
    """Compare the calls with those of trackio 0.2, which the test environment does not have."""
    calls = []
    fake = types.SimpleNamespace(
        init=lambda **words: calls.append(("init", words["project"], words["name"])),
        log=lambda values, step: calls.append((step, values)),
        finish=lambda: calls.append("finish"),
    )
    monkeypatch.setitem(sys.modules, "trackio", fake)
    export(log, "trackio:gpt3", name="sample")
    assert (calls[0], calls[-1]) == (("init", "gpt3", "sample"), "finish")
    assert [step for step, _ in calls[1:-1]] == [71, 72, 73, 73, 74]
    assert calls[1][1]["loss"] == 1.828812
    assert calls[-2][1]["validation_loss"] == 1.81


@pytest.mark.parametrize(("word", "extra"), [("mlflow:x", "mlflow"), ("trackio:x", "trackio")])
def test_a_missing_tracker_names_its_extra(word, extra, tmp_path):
    code = f"import sys; sys.modules[{extra!r}] = None; from runbook.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "logs", str(SAMPLE), "--to", word],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    remedy = CliMessage.ONE_EXTRA.fill(extra=extra)
    assert says(done.stderr, CliMessage.PACKAGE_MISSING, package=extra, remedy=remedy)


def test_a_missing_package_names_its_extra_and_leaves_no_file(tmp_path):
    code = "import sys; sys.modules['pyarrow'] = None; from runbook.cli import main; main()"
    words = ["logs", str(SAMPLE), "--to", "x.parquet"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, list(tmp_path.iterdir())) == (1, [])
    remedy = containing("'gpt3-runbook[all]'")
    assert says(done.stderr, CliMessage.PACKAGE_MISSING, package="pyarrow", remedy=remedy)


def test_a_place_of_no_kind_and_an_empty_log_are_refused(log):
    with refuses(
        DataError,
        ExportMessage.NOT_A_TARGET,
        target="a.txt",
        forms=containing("FILE.csv, FILE.parquet"),
    ):
        export(log, "a.txt", name="x")
    with refuses(DataError, ExportMessage.NOTHING_TO_EXPORT):
        export(parse_lines(["nothing"]), "a.csv", name="x")


def test_metrics_of_a_run_are_exported_by_its_name(tmp_path, make, plan, spec):
    from click.testing import CliRunner

    from runbook.cli.logs import logs

    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "run.yaml").write_text("run: mine\n")
    phase = replace(
        spec, log=replace(spec.log, metrics="metrics.jsonl", validation="validation.jsonl")
    )
    (folder / "plan.json").write_text(
        json.dumps(replace(plan, phases={"04-training": phase}).as_dict())
    )
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(make.step(n)) + "\n" for n in range(1, 6))
    )
    words = ["mine", "--runs", str(tmp_path), "--to", str(tmp_path / "out.csv")]
    done = CliRunner().invoke(logs, words)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out.csv").read_text().count("\n") == 6
    as_json = CliRunner().invoke(logs, ["mine", "--runs", str(tmp_path), "--json"])
    assert [one["iteration"] for one in json.loads(as_json.output)["records"]] == [1, 2, 3, 4, 5]

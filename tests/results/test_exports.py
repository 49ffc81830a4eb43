"""Exports hold the same numbers as the JSON, under names with units, and say which extra they lack."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from log_lines import parse_lines

from runbook.core.errors import DataError
from runbook.results.log_readers.exports import export, parse_target
from runbook.results.log_readers.read import parse_files

SAMPLE = Path(__file__).parents[1] / "samples" / "megatron-core.log"


@pytest.fixture
def log():
    return parse_files([SAMPLE])


def test_csv_and_parquet_hold_every_record_and_keep_unknown_unknown(log, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    for word in ("a.csv", "a.parquet"):
        told = export(log, parse_target(str(tmp_path / word)))
        assert told.startswith("5 records and 2 evaluations -> ")
    with (tmp_path / "a.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    table = pq.read_table(tmp_path / "a.parquet")
    kept = table.to_pylist()
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in kept] == [one.loss for one in log.records]
    assert [row["source"] for row in rows] == [row["source"] for row in kept]
    assert kept[0]["samples_per_second"] is None and rows[0]["samples_per_second"] == ""
    units = json.loads(table.schema.metadata[b"units"])
    assert (units["seconds"], units["tflops"]) == ("step time (s)", "speed (TFLOP/s/device)")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.parquet"]


def test_tensorboard_reads_back_the_curves(log, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    export(log, parse_target(f"tensorboard:{tmp_path}"))
    (path,) = tmp_path.iterdir()
    found = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            number = value.simple_value or value.tensor.float_val[0]
            found.setdefault(value.tag, []).append((event.step, pytest.approx(number, rel=1e-6)))
    assert found["training/loss (nat/token)"] == [(one.iteration, one.loss) for one in log.records]
    assert found["training/step time (s)"] == [(one.iteration, one.seconds) for one in log.records]
    assert found["validation/loss (nat/token)"] == [(74, 1.81)]
    assert found["test/loss (nat/token)"] == [(74, 1.82)]


@pytest.mark.parametrize(
    ("word", "package", "extra"), [("tensorboard:x", "tensorboard", "train"), ("x.parquet", "pyarrow", "data")]
)
def test_a_missing_package_names_its_extra(word, package, extra, tmp_path):
    code = f"import sys; sys.modules[{package!r}] = None; from runbook.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "logs", str(SAMPLE), "--to", word], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1
    assert f"the package {package} is missing; pip install 'gpt3-runbook[all]'" in done.stderr
    assert f"'gpt3-runbook[{extra}]' this one" in done.stderr


def test_a_place_of_no_kind_and_an_empty_log_are_refused(log):
    with pytest.raises(DataError, match=r"a\.txt is no place to export to\. Give one of FILE\.csv, FILE\.parquet"):
        parse_target("a.txt")
    with pytest.raises(DataError, match="There is no record to export"):
        export(parse_lines(["nothing"]), parse_target("a.csv"))


def test_metrics_of_a_run_are_exported_by_its_name(tmp_path, make, plan, spec):
    from click.testing import CliRunner

    from runbook.cli.logs import logs

    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "run.yaml").write_text("run: mine\n")
    phase = replace(spec, log=replace(spec.log, metrics="metrics.jsonl", validation="validation.jsonl"))
    (folder / "plan.json").write_text(json.dumps(replace(plan, phases={"04-training": phase}).as_dict()))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(make.step(n)) + "\n" for n in range(1, 6)))
    words = ["mine", "--runs", str(tmp_path), "--to", str(tmp_path / "out.csv")]
    done = CliRunner().invoke(logs, words)
    assert done.exit_code == 0, done.output
    assert (tmp_path / "out.csv").read_text().count("\n") == 6
    as_json = CliRunner().invoke(logs, ["mine", "--runs", str(tmp_path), "--json"])
    assert [one["iteration"] for one in json.loads(as_json.output)["records"]] == [1, 2, 3, 4, 5]

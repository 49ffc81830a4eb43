"""The same files are written, however the run is named and whichever tool executes the notebooks."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from suite.messages import containing, says
from toy_project import Ended, Toy, json_of

from runbook import params
from runbook.params.messages import ParamsMessage
from runbook.phases.messages import PhaseMessage
from runbook.phases.phase_steps import phase_step
from runbook.planning import make_plan
from runbook.records.manifest import verify_run
from runbook.runs import this_machine
from runbook.runs.planned_run import PlannedRun

pytestmark = [pytest.mark.notebooks, pytest.mark.rotate(3, turn=2)]

PHASES = ("00-plan", "01-environment", "02-data")
TIMES = {"started", "ended", "seconds", "finished", "made", "rates", "speed", "answers", "mtime_ns"}
"""Keys with times, durations or speeds; `answers` are what each node measured."""
MEASURED = ("disk", "memory")
"""Checks that depend on what was free on the machine at that moment."""


def without_times(content: Any) -> Any:
    """Return the content without anything that differs between two equal executions.

    Only this function decides what counts as time.
    """
    if isinstance(content, list):
        return [without_times(item) for item in content]
    if not isinstance(content, dict):
        return content
    kept = {key: without_times(item) for key, item in content.items() if key not in TIMES}
    if kept.get("name") in MEASURED and "rule" in kept:
        del kept["value"]
    if str(kept.get("path", "")).endswith(
        ".manifest.json"
    ):  # its checksum covers times, so its content is compared separately
        return {"path": kept["path"]}
    return kept


def marks(folder: Path) -> dict[str, Any]:
    return {
        path.stem: without_times(json_of(path))
        for path in sorted((folder / "steps").glob("*.json"))
    }


def twins(folder: Path) -> dict[str, Any]:
    return {phase: without_times(json_of(folder / "records" / f"{phase}.json")) for phase in PHASES}


@pytest.fixture(scope="module")
def ways(toy: Toy, tmp_path_factory) -> dict[str, tuple[Path, list[Ended]]]:
    """Return the run folder and the exit codes of each way to run. Two of them run at a time, for
    two cores."""
    root = tmp_path_factory.mktemp("ways")

    def papermill(way: str, *words: object) -> tuple[str, list[Ended]]:
        ended = [
            toy.call(
                *(
                    "papermill",
                    f"notebooks/{phase}.ipynb",
                    root / f"{way}-{phase}.ipynb",
                    "--no-progress-bar",
                    *words,
                ),
                RUNBOOK_RUNS=str(root / way),
            )
            for phase in PHASES
        ]
        return way, ended

    with ThreadPoolExecutor(2) as pool:
        started = [
            pool.submit(papermill, "parameter", "-p", "run", "local"),
            pool.submit(papermill, "file", "-f", "params/local.yaml"),
            pool.submit(lambda: ("command", [toy.run(root / "command", "--to", "02-data")])),
        ]
    return {
        way: (root / way / "local", ended) for way, ended in (future.result() for future in started)
    }


def test_every_way_comes_to_its_end_without_a_warning_of_ours(ways):
    for way, (_, endings) in ways.items():
        for ended in endings:
            assert ended.code == 0, (way, ended)
            assert "unknown parameter" not in ended.text, (way, ended)
            assert "runbook" not in "".join(
                line for line in ended.text.splitlines() if "Warning" in line
            )


@pytest.mark.parametrize("way", ["parameter", "file"])
def test_the_three_ways_write_the_same(ways, way):
    command = ways["command"][0]
    other = ways[way][0]
    assert (other / "run.yaml").read_bytes() == (command / "run.yaml").read_bytes()
    assert (other / "plan.json").read_bytes() == (command / "plan.json").read_bytes()
    assert marks(other) == marks(command)
    for phase in PHASES:
        assert twins(other)[phase] == twins(command)[phase], phase
    for name in ("corpus_text_document.bin", "corpus_text_document.idx"):
        assert (other / "data" / name).read_bytes() == (command / "data" / name).read_bytes()
    manifests = [
        without_times(json_of(folder / "data" / "corpus.manifest.json"))
        for folder in (command, other)
    ]
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize("way", ["parameter", "file"])
def test_what_comes_next_depends_on_the_tokens_and_not_on_when_they_were_made(ways, toy: Toy, way):
    settings = params.load("local", project=toy.root)
    plan = make_plan(settings, this_machine.measure_machine(settings.site))
    for phase in ("03-smoke-test", "04-training"):
        other = phase_step(PlannedRun(settings, plan, ways[way][0]), phase)
        command = phase_step(PlannedRun(settings, plan, ways["command"][0]), phase)
        assert other.fingerprint == command.fingerprint


def test_what_counts_as_time_leaves_the_rest(ways):
    """Check that only a few values are dropped as times, because the comparison would be worthless
    if all were."""
    folder = ways["command"][0]
    twin = twins(folder)["02-data"]
    assert set(json_of(folder / "records" / "02-data.json")) - set(twin) == {"started", "ended"}
    assert twin["results"]["documents"] > 1000
    assert [cell["state"] for cell in twin["cells"]] == ["completed"] * len(twin["cells"])
    assert all(mark["fingerprint"] for mark in marks(folder).values())
    assert len(marks(folder)["02-data--tokenize"]["outputs"]) == 3
    assert (
        without_times({"name": "disk", "value": "9 GB", "rule": "r", "verdict": "pass"})["verdict"]
        == "pass"
    )


def test_values_that_yaml_1_1_reads_otherwise_are_ours_every_way(ways):
    for way, (folder, _) in ways.items():
        values = yaml.safe_load((folder / "run.yaml").read_text())
        parameters = twins(folder)["00-plan"]["parameters"]
        assert parameters["jobs.smoke.walltime"]["value"] == 12 * 3600, way
        assert parameters["training.weight_decay"]["value"] == 0.1, way
        assert parameters["training.learning_rate"]["value"] == 6.0e-4, way
        assert values["training"]["weight_decay"] == 0.1, way
        assert {one["origin"].partition(":")[0] for one in parameters.values()} == {
            "built-in",
            "params/local.yaml",
        }


def test_check_says_which_words_papermill_would_read_otherwise(toy: Toy):
    ended = toy.call("runbook", "check", "local")
    assert ended.code == 0  # check accepts, with a warning, what plan, render and run accept
    assert "warn" in ended.text
    assert "12:00:00" in ended.text
    assert "1e-1" in ended.text
    assert "Traceback" not in ended.text


def test_a_run_by_another_way_is_done_for_all(ways, toy: Toy):
    """`runbook run` files the notebooks, but does not tokenize again what papermill has finished."""
    folder = ways["parameter"][0]
    before = marks(folder)["02-data--tokenize"]
    ended = toy.run(folder.parent, "--from", "02-data", "--to", "02-data")
    assert (ended.code, ended.executed()) == (0, ["02-data"])
    assert says(
        ended.text,
        PhaseMessage.PHASE_RUNS,
        phase="02-data",
        missing=PhaseMessage.NOTEBOOK_NOT_AMONG_RECORDS.fill(),
    )
    record = nbformat.read(folder / "records" / "02-data.ipynb", as_version=4)
    printed = [
        output.text
        for cell in record.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    ]
    assert PhaseMessage.TOKENIZED_ALREADY.fill() in "".join(printed).splitlines()
    assert marks(folder)["02-data--tokenize"] == before
    again = toy.run(folder.parent, "--from", "02-data", "--to", "02-data")
    assert again.verified() == ["02-data"]


def test_our_engine_files_the_record_and_nbconvert_works_in_the_folder_of_the_notebooks(
    ways, toy: Toy, tmp_path
):
    command = ways["command"][0]
    ended = toy.call(
        *("papermill", "notebooks/00-plan.ipynb", tmp_path / "out.ipynb", "--engine", "runbook"),
        *("--no-progress-bar", "-p", "run", "local"),
        RUNBOOK_RUNS=str(tmp_path / "engine"),
    )
    assert ended.code == 0, ended
    folder = tmp_path / "engine" / "local"
    assert without_times(json_of(folder / "records" / "00-plan.json")) == twins(command)["00-plan"]
    assert (folder / "records" / "00-plan.html").exists()
    assert verify_run(folder) == []
    ended = toy.call(
        *("jupyter-nbconvert", "--to", "notebook", "--execute", "00-plan.ipynb"),
        *("--output-dir", tmp_path, "--output", "converted.ipynb"),
        cwd=toy.root / "notebooks",
        RUNBOOK_RUNS=str(tmp_path / "converted"),
    )
    assert ended.code == 0, ended
    folder = tmp_path / "converted" / "local"
    assert without_times(json_of(folder / "records" / "00-plan.json")) == twins(command)["00-plan"]
    assert sorted(path.name for path in (toy.root / "notebooks").iterdir()) == sorted(
        path.name for path in (Path(__file__).parents[2] / "notebooks").glob("*.ipynb")
    ), "nothing is left beside the masters"


def test_the_masters_are_as_before(ways, toy: Toy):
    for phase in PHASES:
        notebook = nbformat.read(toy.root / "notebooks" / f"{phase}.ipynb", as_version=4)
        assert [cell.get("outputs") for cell in notebook.cells if cell.cell_type == "code"] == [
            []
        ] * sum(cell.cell_type == "code" for cell in notebook.cells)


def test_two_runs_mixed_are_refused_before_anything_is_written(toy: Toy, tmp_path):
    other = json.loads(json.dumps(yaml.safe_load((toy.root / "params/local.yaml").read_text()))) | {
        "run": "other"
    }
    other["model"] = "small"
    toy.write_run_file(yaml.safe_dump(other, sort_keys=False), "other")
    try:
        ended = toy.call(
            *("papermill", "notebooks/00-plan.ipynb", tmp_path / "out.ipynb", "--no-progress-bar"),
            *("-p", "run", "local", "-f", "params/other.yaml"),
            RUNBOOK_RUNS=str(tmp_path / "runs"),
        )
    finally:
        (toy.root / "params" / "other.yaml").unlink()
    assert ended.code == 1
    assert "ParamsError: " in ended.text
    assert says(
        ended.text,
        ParamsMessage.TWO_RUNS_MIXED,
        run="local",
        foreign=containing("model"),
        where=containing("params/other.yaml"),
    )
    assert not (tmp_path / "runs").exists()

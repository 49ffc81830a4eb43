from __future__ import annotations

import json

import pytest

from runbook.analysis.compare import Tolerance, compare, read_run
from runbook.analysis.figures_beside import comparison_figure
from runbook.errors import RecordError


@pytest.fixture
def run_folder(tmp_path, make, spec):
    def build(name, tensor=1, **changes):
        folder = tmp_path / name
        (folder / "records").mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps({"phases": {"04-training": spec}}))
        (folder / "run.yaml").write_text(f"run: {name}\nparallel:\n  tensor: {tensor}\n  data: 2\n")
        (folder / "records" / "04-training.json").write_text(json.dumps({"versions": {"torch": "2.13.0"}}))
        lines = [json.dumps(make.step(n, **changes)) for n in range(1, 101)]
        (folder / "metrics.jsonl").write_text("\n".join(lines))
        return read_run(folder)

    return build


def verdicts(comparison):
    return {check.name: check.verdict for check in comparison.checks}


def test_same_results_pass_and_only_what_differs_is_listed(run_folder):
    found = compare([run_folder("a"), run_folder("b", tensor=2)])
    assert found.passed
    assert found.parameters.rows == (
        {"key": "parallel.tensor", "a": 1, "b": 2},
        {"key": "run", "a": "a", "b": "b"},
    )
    assert found.environment.notes == ("they do not differ",)
    speeds = next(row for row in found.metrics.rows if row["what"] == "throughput (tokens/s)")
    assert (speeds["a"], speeds["b"], speeds["last / first"]) == (512.0, 512.0, 1.0)


def test_slower_than_the_tolerance_fails_and_names_both_numbers(run_folder):
    found = compare([run_folder("a"), run_folder("b", seconds=2.2)])
    (failed,) = [check for check in found.checks if check.verdict == "fail"]
    assert not found.passed
    assert failed.name == "b: throughput (tokens/s)"
    assert failed.value == "465.455, 512 before (-9.1%)"
    assert failed.rule == "not more than 5% lower than in a"
    assert compare([run_folder("c"), run_folder("d", seconds=2.2)], Tolerance(tokens_per_second=0.1)).passed


def test_worse_loss_and_memory_fail_better_ones_pass(run_folder):
    base = run_folder("a")
    worse = verdicts(compare([base, run_folder("b", loss=9.0, memory_bytes=2 * 10**9)]))
    assert (worse["b: last loss (nat/token)"], worse["b: memory (B)"]) == ("fail", "fail")
    better = compare([base, run_folder("c", loss=1.0, memory_bytes=10**8, seconds=1.0)])
    assert better.passed


def test_what_one_run_does_not_know_is_unknown(run_folder):
    found = compare([run_folder("a"), run_folder("b", loss=None)])
    assert verdicts(found)["b: last loss (nat/token)"] == "unknown"


def test_one_run_is_no_comparison(run_folder):
    with pytest.raises(RecordError, match=r"needs at least two runs; 1 given\."):
        compare([run_folder("a")])


def test_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(RecordError, match=r"plan\.json does not exist: is .* the folder of a run\?"):
        read_run(tmp_path)


def test_curves_are_drawn_over_tokens_and_time(run_folder):
    first, second = run_folder("a"), run_folder("b", seconds=1.0)
    figure = comparison_figure({"a": first.history, "b": second.history})
    assert [axes.get_xlabel() for axes in figure.axes] == ["tokens seen (tokens)", "time in steps (s)"]
    assert figure.axes[0].get_ylabel() == "loss (nat/token)"

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from suite.messages import containing, refuses

from runbook.core import quantities
from runbook.core.errors import RecordError
from runbook.results.comparison import Tolerance, compare_runs, loss_at, read_run
from runbook.results.figures.run_figures import comparison_figure
from runbook.results.messages import ResultMessage
from runbook.results.metrics import COLUMNS


@pytest.fixture
def run_folder(tmp_path, make, plan):
    def build(name, tensor=1, **changes):
        folder = tmp_path / name
        (folder / "records").mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps(plan.as_dict()))
        (folder / "run.yaml").write_text(f"run: {name}\nparallel:\n  tensor: {tensor}\n  data: 2\n")
        (folder / "records" / "04-training.json").write_text(
            json.dumps({"versions": {"torch": "2.13.0"}})
        )
        lines = [json.dumps(make.step(n, **changes)) for n in range(1, 101)]
        (folder / "metrics.jsonl").write_text("\n".join(lines))
        return read_run(folder)

    return build


def verdicts(comparison):
    return {check.name: check.verdict for check in comparison.checks}


def test_same_results_pass_and_only_what_differs_is_listed(run_folder):
    found = compare_runs([run_folder("a"), run_folder("b", tensor=2)])
    assert found.passed
    assert found.parameters.rows == (
        {"key": "parallel.tensor", "a": 1, "b": 2},
        {"key": "run", "a": "a", "b": "b"},
    )
    assert found.environment.notes == (ResultMessage.NO_DIFFERENCE.fill(),)
    assert found.environment.rows == ()
    speeds = next(row for row in found.metrics.rows if row["what"] == quantities.THROUGHPUT)
    assert (speeds["a"], speeds["b"], speeds[quantities.LAST_TO_FIRST]) == (512.0, 512.0, 1.0)


@pytest.mark.parametrize(("iteration", "warns"), [(50, True), (100, False)])
def test_scores_that_belong_to_earlier_weights_are_warned_of(
    run_folder, tmp_path, iteration, warns
):
    run_folder("a")
    score = {"what": "corpus", "measure": "bits per byte", "samples": 1, "before": 4.6}
    path = tmp_path / "a" / "evaluation" / "built-in.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps({**score, "after": 3.6, "iteration": iteration}) + "\n")
    found = verdicts(compare_runs([read_run(tmp_path / "a"), run_folder("b")]))
    assert (found.get("a: scores") == "warn") == warns


def test_slower_than_the_tolerance_fails_and_names_both_numbers(run_folder):
    found = compare_runs([run_folder("a"), run_folder("b", seconds=2.2)])
    (failed,) = [check for check in found.checks if check.verdict == "fail"]
    assert not found.passed
    assert failed.name == f"b: {quantities.THROUGHPUT}"
    assert failed.value == ResultMessage.CHANGED_FROM.fill(
        value="465.5", base="512", change="-9.1%"
    )
    assert failed.rule == ResultMessage.NOT_LOWER.fill(allowed=0.05, base="a")
    assert compare_runs(
        [run_folder("c"), run_folder("d", seconds=2.2)], Tolerance(tokens_per_second=0.1)
    ).passed


def test_worse_loss_and_memory_fail_better_ones_pass(run_folder):
    base = run_folder("a")
    worse = verdicts(compare_runs([base, run_folder("b", loss=9.0, memory_bytes=2 * 10**9)]))
    assert (worse[f"b: {quantities.LOSS_AT_EQUAL_TOKENS}"], worse[f"b: {quantities.MEMORY}"]) == (
        "fail",
        "fail",
    )
    better = compare_runs([base, run_folder("c", loss=1.0, memory_bytes=10**8, seconds=1.0)])
    assert better.passed


@pytest.mark.parametrize(
    ("change", "name", "verdict"),
    [
        ({"seconds": 2.0 / 0.96}, quantities.THROUGHPUT, "pass"),
        ({"seconds": 2.0 / 0.94}, quantities.THROUGHPUT, "fail"),
        ({"loss": 3.02}, quantities.LOSS_AT_EQUAL_TOKENS, "pass"),
        ({"loss": 3.04}, quantities.LOSS_AT_EQUAL_TOKENS, "fail"),
        ({"memory_bytes": 1_090_000_000}, quantities.MEMORY, "pass"),
        ({"memory_bytes": 1_110_000_000}, quantities.MEMORY, "fail"),
    ],
)
def test_a_run_may_be_5_percent_slower_1_percent_worse_and_10_percent_larger(
    run_folder, change, name, verdict
):
    runs = [run_folder("a", loss=3.0), run_folder("b", **({"loss": 3.0} | change))]
    assert verdicts(compare_runs(runs))[f"b: {name}"] == verdict


def test_the_loss_at_equal_tokens_is_the_median_of_the_last_five(make):
    losses = [9.0, 1.0, 2.0, 3.0, 9.0, 9.0]
    history = make.history([make.step(n, loss=loss) for n, loss in enumerate(losses, 1)])
    assert loss_at(history, 6 * 1024) == 3.0
    assert loss_at(history, 4 * 1024) == 2.5


def test_a_run_without_a_loss_fails_and_a_base_without_one_says_nothing(run_folder):
    found = compare_runs([run_folder("a"), run_folder("b", loss=None)])
    assert verdicts(found)[f"b: {quantities.LOSS_AT_EQUAL_TOKENS}"] == "fail"
    found = compare_runs([run_folder("c", loss=None), run_folder("d")])
    assert verdicts(found)[f"d: {quantities.LOSS_AT_EQUAL_TOKENS}"] == "unknown"


def test_a_longer_run_is_compared_where_both_have_been(make, run_folder, spec, tmp_path):
    whole = run_folder("whole")
    folder = tmp_path / "whole"
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    short = tmp_path / "short"
    short.mkdir()
    for name in ("plan.json", "run.yaml"):
        (short / name).write_text((folder / name).read_text())
    (short / "metrics.jsonl").write_text("\n".join(lines[:50]))
    found = compare_runs([whole, read_run(short)])
    assert verdicts(found)[f"short: {quantities.LOSS_AT_EQUAL_TOKENS}"] == "pass"
    assert whole.summary.last_loss < read_run(short).summary.last_loss


def test_a_run_that_is_not_finished_is_warned_of(run_folder, tmp_path):
    """A run of half of its steps passed a comparison, and nothing said so."""
    run_folder("half")
    path = tmp_path / "half" / "plan.json"
    content = json.loads(path.read_text())
    content["phases"]["04-training"]["duration"]["iterations"] = 200
    path.write_text(json.dumps(content))
    found = compare_runs([run_folder("whole"), read_run(path.parent)])
    (warned,) = [check for check in found.checks if check.verdict == "warn"]
    assert (warned.name, warned.value) == ("half: finished", "100 of 200 iterations")
    assert found.passed


def test_one_run_is_no_comparison(run_folder):
    with refuses(RecordError, ResultMessage.TOO_FEW_RUNS, number_of_runs=1):
        compare_runs([run_folder("a")])


def test_folder_that_is_no_run_is_named(tmp_path):
    with refuses(RecordError, ResultMessage.NOT_A_RUN_FOLDER, path=containing("plan.json")):
        read_run(tmp_path)


def test_curves_are_drawn_over_tokens_and_time(run_folder):
    first = run_folder("a")
    second = run_folder("b", seconds=1.0)
    figure = comparison_figure({"a": first.history, "b": second.history})
    assert [axes.get_xlabel() for axes in figure.axes] == [
        COLUMNS["consumed_tokens"],
        ResultMessage.STEP_TIME_AXIS.fill(unit="s"),
    ]
    assert figure.axes[0].get_ylabel() == "loss (nat/token)"


def test_command_gives_the_verdict_as_json_and_by_its_exit_code(run_folder, tmp_path):
    from click.testing import CliRunner

    from runbook.cli.compare import compare as command

    for name, seconds in (("a", 2.0), ("b", 2.2)):
        run_folder(name, seconds=seconds)
    figure = tmp_path / "curves.svg"
    done = CliRunner().invoke(
        command,
        ["a", "b", "--runs", str(tmp_path), "--json", "--figure", str(figure)],
        standalone_mode=False,
    )
    content = json.loads(done.output)
    assert (done.return_value, content["verdict"]) == (1, "fail")
    assert content["tolerance"] == {"tokens_per_second": 0.05, "last_loss": 0.01, "memory": 0.1}
    assert [check["name"] for check in content["checks"] if check["verdict"] == "fail"] == [
        f"b: {quantities.THROUGHPUT}"
    ]
    assert figure.read_text().startswith("<?xml")
    loose = ["a", "b", "--runs", str(tmp_path), "--slower", "0.2"]
    allowed = CliRunner().invoke(command, loose, standalone_mode=False)
    assert allowed.return_value == 0
    verdict = ResultMessage.COMPARED.fill(verdict="pass", base="a")
    assert allowed.output.splitlines()[-1] == verdict


def test_runs_on_different_text_are_warned_of(run_folder):
    base = run_folder("a")
    other = replace(base, name="b", parameters={**base.parameters, "data.dataset": "mine"})
    (check,) = [one for one in compare_runs([base, other]).checks if one.name == "b: same text"]
    assert check.verdict == "warn"
    assert check.value.startswith("data.dataset=mine")
    same = replace(base, name="b")
    assert "b: same text" not in verdicts(compare_runs([base, same]))


def test_compared_memory_is_shown_in_a_readable_unit(run_folder):
    found = compare_runs([run_folder("a", memory_bytes=3 * 2**30), run_folder("b")])
    (check,) = [one for one in found.checks if quantities.MEMORY in one.name]
    assert "3.00 GiB" in check.value

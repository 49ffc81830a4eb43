"""Rungs are real training runs without notebooks.

Their records and losses are like those of any run.
"""

import json
import math
import shutil
import sys
from dataclasses import replace

import pytest
from suite.messages import refuses

from runbook import params
from runbook.core.errors import RunbookError
from runbook.phases.ladder.budget import LadderBudget
from runbook.phases.ladder.climb import climb, read_rung, rung_folder
from runbook.phases.ladder.ladder_plan import Ladder, PlannedRung, family_of
from runbook.phases.ladder.rung_training import (
    OUTPUT_FILE,
    can_fork_ranks,
    request_of,
    rung_trainer,
)
from runbook.phases.ladder.rungs import design_rungs
from runbook.phases.messages import PhaseMessage
from runbook.phases.run_plan import load_plan
from runbook.plan_file.phase_names import DATA, FULL
from runbook.records.engine.execution_end import ExecutionState
from runbook.records.manifest import changed_records
from runbook.records.phase_record import find_phase_record
from runbook.runs.run_folder import RUNS_VARIABLE
from runbook.training.health.injected_faults import VARIABLE as FAULTS

pytestmark = [pytest.mark.training, pytest.mark.timeout(1200)]

WORDS = (
    "model=tiny",
    "training.iterations=1600",
    "training.global_batch=2",
    "training.micro_batch=1",
    "training.process_group_timeout=300",
)
STEPS = 4


@pytest.fixture(scope="module")
def ladder() -> Ladder:
    """Two rungs of four steps.

    They train no model, but write all the files that a real rung writes.
    """
    settings, plan = load_plan("local", WORDS)
    family = family_of(settings, plan)
    rungs = []
    for rung in design_rungs(family, 5, family.flops / 4)[:2]:
        rungs.append(
            replace(
                rung,
                iterations=STEPS,
                warmup_iterations=1,
                decay_iterations=STEPS,
                eval_iterations=1,
                tokens=STEPS * 512,
            )
        )
    planned = [PlannedRung(rung, f"two-{number}") for number, rung in enumerate(rungs, start=1)]
    return Ladder(
        run="local",
        name="two",
        set_words=WORDS,
        family={},
        parameters=family.parameters,
        tokens=family.tokens,
        flops=family.flops,
        rungs=tuple(planned),
    )


@pytest.fixture(scope="module")
def trained(ladder, tmp_path_factory):
    """Train a ladder with forked ranks, and return its runs folder."""
    runs = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(RUNS_VARIABLE, str(runs))
        climb_all(ladder, runs)
    return runs


def climb_all(ladder: Ladder, runs) -> list[str]:
    settings, _ = load_plan("local", WORDS)
    folder = runs / "local--two"
    folder.mkdir(exist_ok=True)
    lines: list[str] = []
    budget = LadderBudget(seconds=None)
    with rung_trainer(settings, folder) as train:
        climb(ladder, None, settings, budget, folder, train, lines.append)
    return lines


def losses_of(folder) -> list[float]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [row["loss"] for row in rows if "iteration" in row]


def test_each_rung_is_a_recorded_run(trained, ladder):
    for planned in ladder.rungs:
        folder = trained / f"local--{planned.name}"
        record = find_phase_record(folder, FULL)
        assert record.state is ExecutionState.DONE
        assert record.results["iterations"] == STEPS
        assert {check.verdict for check in record.checks} <= {"pass", "warn"}
        assert record.results["validation_loss"] == pytest.approx(
            read_rung(folder, planned).loss, abs=1e-3
        )
        assert (folder / "index.html").exists()
        assert (folder / "jobs" / FULL / "exit_code").read_text().split()[0] == "0"
        assert changed_records(folder) == []
    first = trained / "local--two-1"
    assert find_phase_record(first, DATA).results["tokens"] > 3_000_000


def test_rungs_share_the_tokens_and_one_import_of_torch(trained, ladder):
    tokens = [
        next((trained / f"local--{planned.name}" / "data").glob("*.bin")).stat().st_ino
        for planned in ladder.rungs
    ]
    assert tokens[0] == tokens[1]
    assert find_phase_record(trained / "local--two-2", DATA) is None
    script = (trained / "local--two-2" / "jobs" / FULL / "job.sh").read_text()
    assert str(trained / "local--two" / "python") in script
    assert "tokenize" in (trained / "local--two" / OUTPUT_FILE).read_text()


def test_a_rung_whose_ranks_import_torch_themselves_has_the_same_losses(
    trained, ladder, tmp_path, monkeypatch
):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))
    shutil.copytree(trained / "local--two-1", tmp_path / "local--two-1")
    (tmp_path / "local--two").mkdir()
    settings, _ = load_plan("local", WORDS)
    with rung_trainer(settings, tmp_path / "local--two") as train:
        train.__self__.warm = None
        train(ladder, ladder.rungs[1], [].append)
    cold = losses_of(tmp_path / "local--two-2")
    assert len(cold) == STEPS
    assert cold == losses_of(trained / "local--two-2")
    assert all(math.isfinite(loss) for loss in cold)


def test_a_trained_rung_is_not_trained_again(trained, ladder, monkeypatch):
    monkeypatch.setenv(RUNS_VARIABLE, str(trained))
    climb_all(ladder, trained)
    jobs = [path.name for path in (trained / "local--two-1" / "jobs").iterdir()]
    assert jobs == [FULL]


def test_changed_losses_of_a_trained_rung_stop_the_ladder(trained, ladder, tmp_path, monkeypatch):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))
    shutil.copytree(trained / "local--two-1", tmp_path / "local--two-1")
    with (tmp_path / "local--two-1" / "metrics.jsonl").open("a") as metrics:
        metrics.write("\n")
    with refuses(
        RunbookError, PhaseMessage.RUNG_STOPPED, folder_name="local--two-1", to_phase=FULL
    ):
        climb_all(ladder, tmp_path)


def test_a_rung_that_fails_says_so_in_its_record_and_goes_on_afterwards(
    trained, ladder, tmp_path, monkeypatch
):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))
    shutil.copytree(trained / "local--two-1", tmp_path / "local--two-1")
    monkeypatch.setenv(FAULTS, "raise:step=2")
    with refuses(
        RunbookError, PhaseMessage.RUNG_STOPPED, folder_name="local--two-2", to_phase=FULL
    ):
        climb_all(ladder, tmp_path)
    record = find_phase_record(tmp_path / "local--two-2", FULL)
    assert record.state is ExecutionState.FAILED
    assert record.verdict == "fail"
    assert read_rung(tmp_path / "local--two-2", ladder.rungs[1]) is None

    monkeypatch.delenv(FAULTS)
    climb_all(ladder, tmp_path)
    assert find_phase_record(tmp_path / "local--two-2", FULL).state is ExecutionState.DONE
    # The metrics begin with the first step of the attempts that failed.
    losses = losses_of(tmp_path / "local--two-2")
    assert losses[-STEPS:] == losses_of(trained / "local--two-2")


def test_a_rung_that_was_begun_with_the_prompt_of_the_run_keeps_it(ladder, tmp_path, monkeypatch):
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path))
    planned = ladder.rungs[0]
    no_prompt = "training.sample_prompt="
    words = request_of(ladder, planned, [].append).set_words
    assert no_prompt in words
    older = [word for word in words if word != no_prompt]
    settings = params.load(ladder.run, set_words=[*older, f"as={planned.name}"])
    assert settings.run.training.sample_prompt
    folder = rung_folder(ladder, settings, planned)
    folder.mkdir()
    (folder / "run.yaml").write_text(settings.as_yaml())
    assert request_of(ladder, planned, [].append).set_words == tuple(older)


def test_ranks_are_forked_only_on_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not can_fork_ranks(params.load("local", set_words=WORDS))


def test_ranks_are_forked_only_on_this_machines_cpu():
    assert can_fork_ranks(params.load("local", set_words=WORDS))
    gpu = params.load("local", set_words=["site=local-gpu"])
    assert not can_fork_ranks(gpu)
    assert not can_fork_ranks(params.load("lumi-13b"))
    own_python = params.load("local")
    site = own_python.site.model_copy(update={"python": "/opt/python"})
    assert not can_fork_ranks(replace(own_python, site=site))
